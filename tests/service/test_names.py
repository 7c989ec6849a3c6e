"""A service whose labels are ids of a vocabulary: responses include names, and requests may use them."""

import shutil

import pytest
from annif_client import AnnifClient

TEXT = "referee goal stadium coach"
ID = "http://example.org/{}".format
SPORT, UNSEEN = ID(0), ID("unseen")


@pytest.fixture(scope="module")
def named(named_model, tmp_path_factory, serving):
    with serving(shutil.copytree(named_model, tmp_path_factory.mktemp("served") / "named")) as running:
        yield running


@pytest.fixture
def client(named):
    with named.writer() as client:
        yield client


def test_predictions_carry_names_next_to_labels(client, names_of_labels):
    one = client.post("/v1/predict", json={"text": TEXT}).json()
    (batch,) = client.post("/v1/predict/batch", json={"texts": [TEXT]}).json()["predictions"]
    assert batch == one
    assert SPORT in one["labels"]
    assert [row["name"] for row in one["scores"]] == [names_of_labels[row["label"]] for row in one["scores"]]
    shown = {*one["labels"], *(label for near in one["neighbours"] for label in near["labels"])}
    assert shown <= set(one["names"]) and one["names"].items() <= names_of_labels.items()
    near = client.post("/v1/neighbours", json={"text": TEXT}).json()
    assert near["names"].items() <= names_of_labels.items() and near["names"]


def test_labels_are_found_by_name_and_by_id(client):
    rows = client.get("/v1/labels", params={"query": "SPORT"}).json()
    assert [(row["label"], row["name"]) for row in rows["labels"]] == [(SPORT, "sport")]
    assert rows["names"] == {SPORT: "sport"}
    assert client.get("/v1/labels", params={"query": "example.org/0"}).json()["total"] == 1
    names = [row["name"] for row in client.get("/v1/labels", params={"sort": "name"}).json()["labels"]]
    assert names == sorted(names)
    assert client.get("/v1/map").json()["names"][SPORT] == "sport"


def test_documents_are_stored_by_id_however_their_labels_are_written(client):
    body = {"documents": [{"text": "a new one", "labels": ["sport", UNSEEN], "rejected": ["music"], "id": "n"}]}
    assert client.post("/v1/documents", json=body).status_code == 201
    stored = client.get("/v1/documents/n").json()
    assert (stored["labels"], stored["rejected"]) == ([SPORT, UNSEEN], [ID(4)])
    assert stored["names"] == {SPORT: "sport", UNSEEN: "seen nowhere", ID(4): "music"}
    listed = client.get("/v1/documents", params={"label": "seen nowhere"}).json()
    assert ([one["id"] for one in listed["documents"]], listed["names"][UNSEEN]) == (["n"], "seen nowhere")
    changed = client.patch("/v1/documents/n", json={"drop": ["seen nowhere"], "add": ["music", "brand new"]}).json()
    assert changed["labels"] == [SPORT, ID(4), "brand new"]
    assert changed["names"] == {SPORT: "sport", ID(4): "music"}
    put = client.put("/v1/documents/n", json={"text": "other", "labels": ["music"]}).json()
    assert (put["labels"], put["names"]) == ([ID(4)], {ID(4): "music"})
    assert client.delete("/v1/documents/n").status_code == 200


def test_thresholds_are_set_by_name_and_by_id(client):
    def asked(**thresholds: float) -> tuple[list[str], dict[str, float]]:
        found = client.post("/v1/predict", json={"text": TEXT, "thresholds": thresholds}).json()
        return found["labels"], {row["label"]: row["threshold"] for row in found["scores"]}

    assert SPORT in asked()[0]
    assert asked(sport=1.0) == asked(**{SPORT: 1.0})
    labels, thresholds = asked(sport=1.0)
    assert SPORT not in labels and thresholds[SPORT] == 1.0


def test_annifs_clients_get_uris_and_names(named, client):
    annif = AnnifClient(named.url.replace("://", f"://denn:{named.write_key}@") + "/v1/")
    first = annif.suggest("named", TEXT)[0]
    assert (first["uri"], first["label"]) == (SPORT, "sport")
    subjects = [{"uri": UNSEEN}, {"uri": ID(4), "label": "another name"}, {"label": "haute cuisine"}]
    annif.learn("named", [{"text": "of many things", "subjects": subjects}])
    (taught,) = client.get("/v1/documents", params={"source": "teach: annif"}).json()["documents"]
    assert taught["labels"] == [UNSEEN, ID(4), ID(1)]
    assert client.delete(f"/v1/documents/{taught['id']}").status_code == 200

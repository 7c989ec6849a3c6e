"""Facts about a service and its model; models without a datastore or with an empty one."""

import shutil
from datetime import datetime

import pytest
from inside import Inside, inside

import denn
from denn import __version__
from denn.service.keys import Keys, new_key

pytestmark = pytest.mark.slow  # each starts its own service

KEY, LINE = new_key("write")
TEXT = {"text": "referee goal stadium"}


@pytest.fixture
def client(service):
    with service.client() as client:
        yield client


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory, tiny_corpus):
    """A service with a model that has no datastore."""
    folder = tmp_path_factory.mktemp("models") / "dummy"
    denn.train(tiny_corpus, out=folder, method="dummy").close()
    with inside(folder, name="dummy", keys=Keys.parse([LINE])) as running:
        yield running


@pytest.fixture(scope="module")
def emptied(tmp_path_factory, tiny_model):
    """A service with a model whose documents were all removed."""
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("models") / "empty")
    with inside(folder, keys=Keys.parse([LINE])) as running:
        running.model.store.remove(running.model.store.ids())
        yield running


def count(client) -> int:
    return client.get("/v1/documents", params={"limit": 0}).json()["total"]


def got(running: Inside, path: str, **query):
    with running.client(KEY) as client:
        answer = client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_session(client):
    assert client.get("/v1/session").json() == {
        "version": __version__, "model": "tiny", "method": "denn", "key": None,
        "rights": ["read"], "expires": None, "why_not": None, "may_read": True, "may_write": False, "writes": "on",
        "learns": True, "neighbours": True, "k": 5,
        "limits": {"body_bytes": 8 * 2**20, "texts": 256, "characters": 100_000},
    }  # fmt: skip


def test_labels(client, service, tiny_corpus):
    found = client.get("/v1/labels").json()
    documents = client.get("/v1/documents", params={"limit": 1000}).json()["documents"]
    counts = {label: sum(label in document["labels"] for document in documents) for label in tiny_corpus.labels.names}
    trained = {row["label"]: row for row in found["labels"] if row["trained"]}
    assert {label: row["documents"] for label, row in trained.items()} == counts
    assert all(list(row) == ["label", "documents", "trained", "threshold"] for row in found["labels"])
    order = [(-row["documents"], row["label"]) for row in found["labels"]]
    assert order == sorted(order) and found["total"] == len(order)
    with denn.load(service.folder) as model:
        assert {row["threshold"] for row in trained.values()} == {model.card.thresholds["final"].overall}
    named = client.get("/v1/labels", params={"sort": "name", "offset": 1, "limit": 2}).json()
    assert [row["label"] for row in named["labels"]] == sorted(row["label"] for row in found["labels"])[1:3]
    assert named["total"] == found["total"]
    assert [row["label"] for row in client.get("/v1/labels", params={"query": "КОСМ"}).json()["labels"]] == ["Космос"]
    assert client.get("/v1/labels", params={"query": "nobody's"}).json() == {
        "total": 0,
        "decides": "tuned",
        "labels": [],
    }
    assert client.get("/v1/labels", params={"sort": "size"}).status_code == 422


def test_examples_are_documents_that_the_model_has_not_learnt_from(client, service, tiny_corpus):
    found = client.get("/v1/examples").json()
    known = {document.id: document for document in tiny_corpus.valid}
    assert found["held_out"] and len(found["documents"]) == 3
    for row in found["documents"]:
        assert (row["text"], row["labels"]) == (known[row["id"]].text, list(known[row["id"]].labels))
    most = max(min(3, len(document.labels)) for document in tiny_corpus.valid)
    assert min(3, len(found["documents"][0]["labels"])) == most
    assert len(client.get("/v1/examples", params={"limit": 10}).json()["documents"]) == 10
    assert client.get("/v1/examples", params={"limit": 0}).status_code == 422


def test_examples_of_a_model_that_keeps_no_documents(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    with denn.load(folder) as model:
        model.forget([f"valid-{number}" for number in range(60)])
    with inside(folder, keys=Keys.parse([LINE])) as running:
        found = got(running, "/v1/examples", limit=2)
        assert not found["held_out"] and [row["id"][:5] for row in found["documents"]] == ["train", "train"]
        running.model.store.remove(running.model.store.ids())
        assert got(running, "/v1/examples") == {"held_out": False, "documents": []}


def test_model_card(client, service):
    card = client.get("/v1/model").json()
    assert set(card) == {
        "name", "method", "encoder", "parameters", "labels", "metrics", "thresholds", "corpus", "training", "versions",
        "created", "store", "refitted", "decides",
    }  # fmt: skip
    assert card["name"] == "tiny" and card["method"] == "denn" and card["parameters"]["k"] == 5
    assert 0 < card["thresholds"]["final"] < 1 and datetime.fromisoformat(card["created"])
    assert card["store"]["kind"] == "embedded" and card["store"]["documents"] == count(client) and card["labels"] >= 6
    assert "path" not in card["store"] and str(service.folder) not in str(card["store"])


def test_map_and_place(client):
    map_ = client.get("/v1/map").json()
    assert len(map_["points"]) == map_["documents"] == count(client) and 0 < map_["share"] <= 1
    assert all(list(point) == ["id", "x", "y", "labels"] for point in map_["points"])
    assert 0 < len(map_["labels"]) <= 10 and "sport" in map_["labels"]
    few = client.get("/v1/map", params={"limit": 7}).json()
    assert len(few["points"]) == 7 and few["documents"] == count(client)
    whole = {point["id"]: point for point in client.get("/v1/map").json()["points"]}
    document = client.get("/v1/documents/train-7").json()
    place = client.post("/v1/map/place", json={"text": document["text"]}).json()
    assert place == {axis: pytest.approx(whole["train-7"][axis], abs=1e-3) for axis in "xy"}


def test_recent_predictions_without_their_texts(client):
    before = client.get("/v1/recent").json()
    client.post("/v1/predict", json=TEXT)
    client.post("/v1/predict/batch", json={"texts": ["chord violin", "goal"], "threshold": 1})
    client.post("/v1/predict/stream", content='{"text": "orbit rocket planet"}')
    recent = client.get("/v1/recent").json()
    assert list(recent) == ["total", "empty", "predictions"]
    assert (recent["total"] - before["total"], recent["empty"] - before["empty"]) == (4, 2)
    assert all(list(one) == ["time", "labels", "best"] for one in recent["predictions"])
    assert [one["labels"] == 0 for one in recent["predictions"][-4:]] == [False, True, True, False]
    assert all(datetime.fromisoformat(one["time"]).tzinfo and 0 <= one["best"] <= 1 for one in recent["predictions"])
    client.post("/v1/predict/batch", json={"texts": ["x"] * 250})
    recent = client.get("/v1/recent").json()
    assert len(recent["predictions"]) == 200 and recent["total"] == before["total"] + 254


def test_health_and_description(client):
    assert client.get("/health").json() == {"status": "ok"} and client.get("/ready").json() == {"status": "ready"}
    described = client.get("/openapi.json").json()
    assert described["openapi"] == "3.1.0" and "/v1/predict" in described["paths"]
    assert client.get("/redoc").status_code == 404  # it would load code from a CDN
    page = client.get("/")
    assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html")


def test_a_model_without_a_datastore_predicts_and_says_what_it_cannot(forgetful):
    session = got(forgetful, "/v1/session")
    assert session["learns"] is session["neighbours"] is False and session["k"] is None
    assert got(forgetful, "/v1/model")["store"] is None and got(forgetful, "/ready") == {"status": "ready"}
    assert {row["trained"] for row in got(forgetful, "/v1/labels")["labels"]} == {True}
    found = forgetful.post("/v1/predict", {**TEXT, "top_k": 1}).json()
    assert len(found["labels"]) == 1 and found["confidence"] is None and found["neighbours"] == []
    assert found["familiarity"] is None and found["unfamiliar"] is False
    document = {"text": "x", "labels": []}
    with forgetful.client(KEY) as client:
        for answer in (
            client.get("/v1/documents"), client.get("/v1/documents/x"), client.get("/v1/history"),
            client.get("/v1/map"),
            client.post("/v1/neighbours", json=TEXT), client.post("/v1/map/place", json=TEXT),
            client.post("/v1/documents", json={"documents": [document]}), client.put("/v1/documents/x", json=document),
            client.patch("/v1/documents/x", json={"add": ["y"]}), client.delete("/v1/documents/x"),
            client.post("/v1/history/1/undo"),
        ):  # fmt: skip
            assert answer.status_code == 409 and "keeps no datastore" in answer.json()["detail"]
        assert client.get("/metrics").status_code == 200


def test_an_empty_datastore(emptied):
    found = emptied.post("/v1/predict", TEXT).json()
    assert found["neighbours"] == [] and found["confidence"] == 0 and found["scores"]
    assert found["familiarity"] == 0 and found["unfamiliar"] is True
    assert emptied.post("/v1/neighbours", TEXT).json() == {"neighbours": []}
    assert got(emptied, "/v1/documents") == {"total": 0, "documents": []}
    assert {row["documents"] for row in got(emptied, "/v1/labels")["labels"]} == {0}
    assert got(emptied, "/v1/map") == {"points": [], "labels": [], "documents": 0, "share": 0.0}
    place = emptied.post("/v1/map/place", TEXT).json()
    assert set(place) == {"x", "y"}
    with emptied.client(KEY) as client:
        assert client.put("/v1/documents/first", json={"text": "referee", "labels": ["sport"]}).status_code == 200
        assert len(got(emptied, "/v1/map")["points"]) == 1
        assert emptied.post("/v1/predict", TEXT).json()["neighbours"][0]["id"] == "first"

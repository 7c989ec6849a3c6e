"""The published Annif client against the service."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from annif_client import AnnifClient
from requests import HTTPError

import denn
from denn.service.keys import new_key

TEXT = "referee goal stadium kyoto temple sakura"
PROJECT = "tiny"
ODD = ["a/b?c#d", "100 %", "a%20b", "Ünïcode 電車", "https://example.org/subject/1", "urn: of no kind", "<script>"]


def client_of(service, key: str | None = None) -> AnnifClient:
    """Return a client for an address, with its key if there is one."""
    login = f"denn:{quote(key)}@" if key else ""
    return AnnifClient(service.url.replace("://", f"://{login}") + "/v1/")


@pytest.fixture
def client(service) -> AnnifClient:
    return client_of(service)


@pytest.fixture
def teacher(service) -> Iterator[AnnifClient]:
    """A client with write access; its documents are removed afterwards."""
    yield client_of(service, service.write_key)
    with service.writer() as own:
        for document in taught(service):
            assert own.delete(f"/v1/documents/{document['id']}").status_code == 200


def taught(service) -> list[dict]:
    with service.client() as own:
        return own.get("/v1/documents", params={"source": "teach: annif", "limit": 1000}).json()["documents"]


def labels_of(results: list[dict]) -> list[str]:
    return [result["label"] for result in results]


def refused(status: int, detail: str, call) -> None:
    """Check that a call of the client fails with this status and reason."""
    with pytest.raises(HTTPError) as caught:
        call()
    assert caught.value.response.status_code == status
    assert caught.value.response.headers["Content-Type"] == "application/problem+json"
    assert detail in caught.value.response.json()["detail"]


def test_the_service_and_its_project(service, client):
    assert client.api_info == {"title": "Annif REST API, served by denn", "version": denn.__version__}
    (project,) = client.projects
    assert client.get_project(PROJECT) == project
    with service.client() as own:
        size = own.get("/v1/labels").json()["total"]
        vocabulary = {"vocab_id": PROJECT, "languages": ["und"], "size": size, "loaded": True}
        assert own.get("/v1/vocabs").json() == {"vocabs": [vocabulary]}
    assert project.pop("modification_time").startswith("20")
    assert project == {
        "project_id": PROJECT,
        "name": "tiny",
        "language": "und",
        "backend": {"backend_id": "denn"},
        "vocab": vocabulary,
        "vocab_language": "und",
        "is_trained": True,
    }


def test_suggest_gives_the_scores_of_our_own_api(service, client):
    with service.client() as own:
        answer = own.post("/v1/predict", json={"text": TEXT, "threshold": 0.0, "evidence": 0}).json()
    expected = [(one["label"], one["score"]) for one in answer["scores"] if one["score"] > 0]
    results = client.suggest(PROJECT, TEXT, limit=100)
    assert [(one["label"], one["score"]) for one in results] == expected
    assert {one["label"] for one in results[:2]} == {"sport", "日本 旅行"}
    uris = {one["label"]: one["uri"] for one in results}
    assert uris["sport"] == "urn:denn:label:sport"
    assert uris["日本 旅行"] == "urn:denn:label:" + quote("日本 旅行")
    assert {one["notation"] for one in results} == {None}


def test_suggest_keeps_to_limit_and_threshold(client):
    every = client.suggest(PROJECT, TEXT, limit=100)
    assert client.suggest(PROJECT, TEXT, limit=1) == every[:1]
    assert client.suggest(PROJECT, TEXT, limit=0) == []
    assert client.suggest(PROJECT, TEXT, limit=10**30) == every
    lowest = every[1]["score"]
    assert client.suggest(PROJECT, TEXT, threshold=lowest) == [one for one in every if one["score"] >= lowest]
    assert client.suggest(PROJECT, TEXT, limit=1, threshold=lowest) == every[:1]
    assert all(one["score"] == 1 for one in client.suggest(PROJECT, TEXT, threshold=1))


def test_suggest_reads_files_and_empty_texts(client):
    assert client.suggest(PROJECT, io.StringIO(TEXT)) == client.suggest(PROJECT, TEXT) == client.analyze(PROJECT, TEXT)
    assert client.suggest(PROJECT, "") == client.suggest_batch(PROJECT, [{"text": ""}])[0]["results"]
    longest = "😀" * 100_000
    assert client.suggest(PROJECT, longest) == client.suggest_batch(PROJECT, [{"text": longest}])[0]["results"]


def test_suggest_passes_over_what_other_clients_send_besides(service, client):
    more = {"language": "fi", "project": "x", "metadata_title": "Goal!"}
    with service.client() as own:
        answer = own.post(f"/v1/projects/{PROJECT}/suggest", data={"text": TEXT, **more})
    assert answer.json() == {"results": client.suggest(PROJECT, TEXT)}


def test_suggest_batch_answers_in_order(client):
    texts = [TEXT, "violin chord melody", "rocket orbit comet"]
    documents = [{"text": text, "document_id": f"d{number}"} for number, text in enumerate(texts)]
    documents[1] = {"text": texts[1], "metadata": {"title": "x"}}
    found = client.suggest_batch(PROJECT, documents, limit=1, threshold=0.1)
    assert [one["document_id"] for one in found] == ["d0", None, "d2"]
    assert [labels_of(one["results"]) for one in found][1:] == [["music"], ["Космос"]]
    for one, text in zip(client.suggest_batch(PROJECT, documents), texts, strict=True):
        alone = client.suggest(PROJECT, text)
        assert labels_of(one["results"]) == labels_of(alone)
        expected = [result["score"] for result in alone]
        assert [result["score"] for result in one["results"]] == pytest.approx(expected, abs=1e-5)
    assert client.suggest_batch(PROJECT, []) == []


def test_what_was_learnt_is_suggested_until_it_is_removed(service, client, teacher):
    text = "barometer drizzle truffle"
    before = client.suggest(PROJECT, text)
    changed = client.get_project(PROJECT)["modification_time"]
    subjects = [{"uri": "http://www.yso.fi/onto/yso/p1", "label": "koira"}]
    assert teacher.learn(PROJECT, [{"text": text, "subjects": subjects}] * 5).status_code == 204
    assert client.get_project(PROJECT)["modification_time"] > changed
    best = client.suggest(PROJECT, text)[0]
    assert (best["label"], best["uri"]) == ("koira", "urn:denn:label:koira")
    assert best["score"] > 0.9
    with service.writer() as own:
        number = own.get("/v1/history", params={"limit": 1}).json()["changes"][0]
        assert (number["source"], number["documents"]) == ("teach: annif", 5)
        assert own.post(f"/v1/history/{number['number']}/undo").status_code == 200
    assert client.suggest(PROJECT, text) == before


def test_more_than_ten_labels_are_suggested_where_asked(client, teacher):
    names = [f"one of many {number}" for number in range(40)]
    text = "hurricane tempo osaka"
    teacher.learn(PROJECT, [{"text": text, "subjects": [{"label": name} for name in names]}] * 5)
    assert len(client.suggest(PROJECT, text)) == 10
    assert set(labels_of(client.suggest(PROJECT, text, limit=100))) >= set(names)
    assert len(client.suggest(PROJECT, text, limit=25)) == 25


def test_a_suggested_uri_names_the_same_label_when_learnt(service, client, teacher):
    teacher.learn(PROJECT, [{"text": TEXT, "subjects": [{"label": label} for label in ODD]}] * 5)
    found = {one["label"]: one["uri"] for one in client.suggest(PROJECT, TEXT, limit=100)}
    assert set(ODD) <= set(found)
    assert found["https://example.org/subject/1"] == "https://example.org/subject/1"
    assert all(" " not in uri and uri.isascii() for uri in found.values())
    with_other_label = [{"uri": found[label], "label": "something else"} for label in ODD]
    teacher.learn(PROJECT, [{"text": "learnt by uri", "subjects": with_other_label}])
    assert [document["labels"] for document in taught(service) if document["text"] == "learnt by uri"] == [ODD]


def test_learn_passes_over_what_lacks_text_or_subjects(service, teacher):
    documents = [{"text": "no subjects"}, {"subjects": []}, {}, {"text": "no labels", "subjects": []}]
    assert teacher.learn(PROJECT, documents).status_code == 204
    assert teacher.learn(PROJECT, []).status_code == 204
    assert [(one["text"], one["labels"]) for one in taught(service)] == [("no labels", [])]


@pytest.mark.parametrize(
    "subject",
    [{}, {"uri": None}, {"uri": "http://other.org/1"}, {"uri": "urn:denn:label:"}, {"uri": "urn:denn:label:%ff"}],
)
def test_a_subject_that_nothing_is_known_of_is_refused_with_all_documents(service, teacher, subject):
    documents = [{"text": "a", "subjects": [{"label": "sport"}]}, {"text": "b", "subjects": [subject]}]
    refused(400, "Send the label as well.", lambda: teacher.learn(PROJECT, documents))
    refused(400, "Send the label as well.", lambda: teacher.learn(PROJECT, [{"subjects": [subject]}]))
    assert taught(service) == []


def test_learn_needs_the_key(service, client, teacher):
    documents = [{"text": "a", "subjects": [{"label": "sport"}]}]
    refused(401, "A key with the right to teach is required", lambda: client.learn(PROJECT, documents))
    wrong = client_of(service, "denn-write-wrong")
    refused(401, "This key is not valid", lambda: wrong.learn(PROJECT, documents))
    assert taught(service) == []


def test_an_unknown_project_is_an_error_that_the_client_knows(client, teacher):
    calls = (
        lambda: client.get_project("yso-en"),
        lambda: client.suggest("yso-en", TEXT),
        lambda: client.suggest_batch("yso-en", [{"text": TEXT}]),
        lambda: teacher.learn("yso-en", []),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"Project 'yso-en' not found\. The only project here is 'tiny'"):
            call()


def test_languages_are_not_detected(client):
    with pytest.raises(ValueError, match="does not detect languages"):
        client.detect_language(TEXT, ["en", "fi"])


def test_what_is_not_as_expected_is_refused_and_changes_nothing(service, client, teacher):
    with service.client() as own:
        before = own.get("/v1/history").json()
    refused(422, "body.limit", lambda: client.suggest(PROJECT, TEXT, limit=-1))
    refused(422, "body.threshold", lambda: client.suggest(PROJECT, TEXT, threshold=1.1))
    refused(422, "body.threshold", lambda: client.suggest(PROJECT, TEXT, threshold="nan"))
    refused(422, "query.limit", lambda: client.suggest_batch(PROJECT, [], limit=-1))
    refused(422, "query.threshold", lambda: client.suggest_batch(PROJECT, [], threshold=-0.1))
    refused(422, "body.documents.0.text", lambda: client.suggest_batch(PROJECT, [{"document_id": "a"}]))
    refused(422, "body.0.text", lambda: teacher.learn(PROJECT, [{"text": 1}]))
    refused(413, "100,001 characters", lambda: client.suggest(PROJECT, "a" * 100_001))
    refused(413, "The request has 257 texts", lambda: client.suggest_batch(PROJECT, [{"text": "a"}] * 257))
    refused(413, "The request has 257 texts", lambda: teacher.learn(PROJECT, [{"text": "a", "subjects": []}] * 257))
    long = [{"text": "a", "subjects": [{"label": "b" * 1001}]}]
    refused(400, "1,001 characters", lambda: teacher.learn(PROJECT, long))
    with service.client() as own:
        assert own.get("/v1/history").json() == before


@pytest.mark.parametrize(
    "body, status", [(b"", 422), (b'{"text": "a"}', 422), (b"text=%ff", 400), (b"a=&" * 1001, 400)]
)
def test_a_form_that_cannot_be_read_is_refused(service, body, status):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    with service.client() as own:
        answer = own.post(f"/v1/projects/{PROJECT}/suggest", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["detail"]


def test_suggestions_are_counted_by_what_the_model_would_choose(service, client):
    texts = [TEXT, "the very old orbit was in tempo with butter", "drizzle"]
    with service.client() as own:
        predicted = own.post("/v1/predict/batch", json={"texts": texts}).json()["predictions"]
        before = own.get("/v1/recent").json()
        suggested = client.suggest_batch(PROJECT, [{"text": text} for text in texts])
        after = own.get("/v1/recent").json()
    chosen = [len(one["labels"]) for one in predicted]
    assert chosen != [len(one["results"]) for one in suggested]
    assert [one["labels"] for one in after["predictions"][-3:]] == chosen
    assert after["total"] == before["total"] + 3


def test_the_description_says_what_a_form_holds(service):
    with service.client() as own:
        paths = own.get("/openapi.json").json()["paths"]
    operation = paths["/v1/projects/{project_id}/suggest"]["post"]
    form = operation["requestBody"]["content"]["application/x-www-form-urlencoded"]["schema"]
    assert set(form["properties"]) == {"text", "limit", "threshold", "language"}
    assert form["required"] == ["text"]
    assert {"200", "400", "401", "404", "413", "422", "503"} <= set(operation["responses"])


@pytest.mark.slow
def test_read_keys_other_uris_and_a_name_that_no_url_could_hold(tiny_model: Path, serving, tmp_path: Path, monkeypatch):
    folder, keys = tmp_path / "Été: v1.2", tmp_path / "keys"
    shutil.copytree(tiny_model, folder)
    key, line = new_key("read", "catalogue")
    keys.write_text(line)
    options = ("--keys", str(keys), "--label-uri", "https://example.org/labels/")
    with serving(folder, *options, teach=False) as running:
        refused(401, "A key is required", lambda: client_of(running).projects)
        client = client_of(running, key)
        (project,) = client.projects
        assert (project["project_id"], project["name"]) == ("t-v1-2", "Été: v1.2")
        assert client.suggest("t-v1-2", "goal match team", limit=1)[0]["uri"] == "https://example.org/labels/sport"
        refused(403, "Editing is off", lambda: client.learn("t-v1-2", []))
        (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login denn password {key}")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        assert client_of(running).projects == [project]


@pytest.mark.slow
def test_a_model_without_a_datastore_suggests_and_does_not_learn(tiny_corpus: denn.Corpus, serving, tmp_path: Path):
    folder = tmp_path / "dummy"
    denn.train(tiny_corpus, method="dummy", out=folder).close()
    with serving(folder) as running:
        client = client_of(running, running.write_key)
        assert client.projects[0]["vocab"]["size"] == len(tiny_corpus.labels)
        assert labels_of(client.suggest("dummy", "", limit=3)) == list(tiny_corpus.labels.names[:3])
        refused(409, "keeps no datastore", lambda: client.learn("dummy", []))

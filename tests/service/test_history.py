"""The history: authors of changes, which cannot be forged, and changes that need confirmation."""

import shutil
from collections.abc import Iterator

import pytest
from inside import Inside, inside

from denn.service.keys import Keys, new_key

pytestmark = pytest.mark.slow  # each starts its own service

ALICE, ALICE_LINE = new_key("write", "alice")
NAMELESS, NAMELESS_LINE = new_key("write")
READ, READ_LINE = new_key("read", "bob")


@pytest.fixture
def running(tiny_model, tmp_path) -> Iterator[Inside]:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    with inside(folder, name="model", keys=Keys.parse([ALICE_LINE, NAMELESS_LINE, READ_LINE])) as running:
        yield running


@pytest.mark.parametrize(("key", "name"), [(ALICE, "alice"), (NAMELESS, "administer")], ids=["named", "nameless"])
@pytest.mark.parametrize(("claimed", "behind"), [(None, ""), ("", ""), ("bob", ": bob"), ("é" * 200, ": " + "é" * 200)])
def test_the_history_names_the_key_before_what_its_owner_says(running, key, name, claimed, behind):
    body = {} if claimed is None else {"source": claimed}
    document = {"text": "x", "labels": ["sport"]}
    with running.client(key) as client:
        client.post("/v1/documents", json={"documents": [{**document, "id": "a"}], **body})
        client.put("/v1/documents/a", json={**document, **body})
        client.patch("/v1/documents/a", json={"add": ["music"], **body})
        number = client.get("/v1/history").json()["changes"][0]["number"]
        client.post(f"/v1/history/{number}/undo", params=body)
        client.delete("/v1/documents/a", params=body)
        client.put("/v1/documents/b", json={**document, **body})
        client.delete("/v1/documents/b", params={"forget": True, **body})
        changes = client.get("/v1/history").json()["changes"][:-1]  # the first change is from training
        assert [one["action"] for one in changes] == ["forget", "add", "remove", "undo", "relabel", "add", "add"]
        assert {one["source"] for one in changes} == {name + behind}
        assert {one["author"] for one in changes} == {name}
        subjects = [{"label": "sport"}]
        client.post("/v1/projects/model/learn", json=[{"text": "x", "subjects": subjects}])
        (newest,) = client.get("/v1/history", params={"limit": 1}).json()["changes"]
        assert newest["source"] == f"{name}: annif"
        found = client.get("/v1/documents", params={"source": f"{name}: annif"}).json()
        assert found["total"] == 1


@pytest.mark.parametrize(
    "source", ["two\nlines", "\x00", "tab\t", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u202e", "x" * 201]
)
def test_a_source_is_one_short_line(running, source):
    document = {"text": "x", "labels": []}
    with running.client(ALICE) as client:
        answers = [
            client.post("/v1/documents", json={"documents": [document], "source": source}),
            client.put("/v1/documents/train-1", json={**document, "source": source}),
            client.patch("/v1/documents/train-1", json={"add": ["y"], "source": source}),
            client.delete("/v1/documents/train-1", params={"source": source}),
            client.post("/v1/history/1/undo", params={"source": source, "confirm": True}),
        ]
    assert {answer.status_code for answer in answers} == {422}
    assert len(running.model.store.history()) == 1


def test_who_may_only_read_writes_no_history(running):
    with running.client(READ) as client:
        assert client.post("/v1/history/1/undo", params={"confirm": True}).status_code == 403
        assert client.put("/v1/documents/a", json={"text": "x", "labels": []}).status_code == 403
    assert len(running.model.store.history()) == 1


def test_an_undo_that_touches_many_documents_has_to_be_confirmed(running):
    with running.client(ALICE) as client:
        answer = client.post("/v1/history/1/undo")  # stored by training
        assert answer.status_code == 409
        assert answer.json()["detail"] == (
            "Undoing change 1 affects 60 documents; the datastore holds 60. Send confirm=true to proceed."
        )
        assert answer.json()["errors"] == [{"where": "query.confirm", "message": "affects 60 documents"}]
        assert len(running.model.store) == 60
        assert client.post("/v1/history/1/undo", params={"confirm": "false"}).status_code == 409
        undone = client.post("/v1/history/1/undo", params={"confirm": "true"}).json()
        assert undone == {"documents": 60, "change": 2}
        assert len(running.model.store) == 0
        assert client.post("/v1/history/2/undo").status_code == 409  # all of them again
        redone = client.post("/v1/history/2/undo", params={"confirm": "true"}).json()
        assert redone == {"documents": 60, "change": 3}


def test_an_undo_of_a_tenth_or_of_one_document_needs_none(running):
    documents = [{"text": str(number), "labels": []} for number in range(7)]
    with running.client(ALICE) as client:
        for count, status in ((6, 200), (7, 409)):  # of 66 and of 67
            client.post("/v1/documents", json={"documents": documents[:count]})
            (newest,) = client.get("/v1/history", params={"limit": 1}).json()["changes"]
            assert client.post(f"/v1/history/{newest['number']}/undo").status_code == status
        running.model.store.remove(running.model.store.ids())
        client.post("/v1/documents", json={"documents": documents[:1]})
        (newest,) = client.get("/v1/history", params={"limit": 1}).json()["changes"]
        assert client.post(f"/v1/history/{newest['number']}/undo").status_code == 200
        assert client.post("/v1/history/999/undo").status_code == 404


@pytest.mark.parametrize("name", ["text", "source", "label"])
def test_an_empty_filter_is_a_mistake(running, name):
    with running.client(READ) as client:
        answer = client.get("/v1/documents", params={name: ""})
        assert answer.status_code == 422 and f"query.{name}" in answer.json()["detail"]
        assert len(answer.json()["errors"]) == 1 and "more mistake" not in answer.json()["detail"]

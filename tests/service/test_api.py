"""The API: the response of each route."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from urllib.parse import quote

import httpx
import pytest

import denn
from denn.service.key_ring import Access
from denn.service.request_schemas import Options
from denn.service.routes_predict import _stream
from denn.service.settings import Settings

TEXT = "referee goal stadium kyoto temple sakura"
TEXTS = [TEXT, "violin chord melody", "", "the of and", "オーブン 🚀 \x00 <script>", "oven " * 500]


@pytest.fixture
def client(service) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def writer(service) -> Iterator[httpx.Client]:
    """A client with write access; documents it adds are removed afterwards."""
    with service.writer() as client:
        yield client
        for document in client.get("/v1/documents", params={"limit": 1000}).json()["documents"]:
            if not document["id"].startswith("train-"):
                assert client.delete(at(document["id"])).status_code == 200


@pytest.fixture(scope="module")
def model(service) -> Iterator[denn.Model]:
    """The same model in this process."""
    with denn.load(service.folder) as model:
        yield model


def test_labels_that_the_model_will_never_give_are_warned_of(serving, deaf_model):
    new = {"text": "zeppelin", "labels": ["airships"]}
    with serving(deaf_model) as running, running.writer() as writer:
        answer = writer.post("/v1/documents", json={"documents": [new]})
        assert answer.status_code == 201
        assert answer.json()["warning"].startswith("The model cannot predict the new label 'airships' yet, because it")
        answer = writer.post("/v1/documents", json={"documents": [{**new, "labels": ["sport"]}]})
        assert answer.json().keys() == {"ids", "change"}


def at(id: str) -> str:
    return "/v1/documents/" + quote(id, safe="").replace(".", "%2E")


def same(found: dict, expected: denn.Prediction) -> None:
    """Compare a response with a prediction of the library; sums in other batches differ in their last digits."""
    assert found["labels"] == list(expected.labels)
    assert {one["label"]: one["score"] for one in found["scores"]} == pytest.approx(expected.scores, abs=1e-4)
    assert [one["score"] for one in found["scores"]] == sorted((one["score"] for one in found["scores"]), reverse=True)
    assert [one["label"] for one in found["scores"] if one["chosen"]] == found["labels"]
    assert found["confidence"] == pytest.approx(expected.confidence, abs=1e-4)
    assert found["familiarity"] == pytest.approx(expected.familiarity, abs=1e-2)  # few documents: it is steep
    for one in found["scores"]:
        assert {"classifier", "neighbours"} <= set(one["parts"])
        assert one["parts"] == pytest.approx(expected.parts[one["label"]], abs=1e-4)
        words = [(row["word"], pytest.approx(row["weight"], abs=1e-4)) for row in one["words"]]
        assert words == list(expected.words.get(one["label"], ()))
    for one, other in zip(found["neighbours"], expected.neighbours, strict=True):
        assert (one["id"], one["labels"], one["text"]) == (other.id, list(other.labels), other.text[:300])
        assert one["similarity"] == pytest.approx(other.similarity, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [{}, {"threshold": 0.01}, {"threshold": 1}, {"per_label": True}, {"min_labels": 3, "threshold": 0.99},
     {"evidence": 2}, {"evidence": 0}],
)  # fmt: skip
def test_predictions_are_those_of_the_library(client, model, options):
    expected = model.predict(TEXTS, **{"evidence": 10, **options})
    batch = client.post("/v1/predict/batch", json={"texts": TEXTS, **options}).json()["predictions"]
    lines = "".join(json.dumps({"text": text, "id": place}) + "\n" for place, text in enumerate(TEXTS))
    query = {"evidence": 10, **options}
    stream = client.post("/v1/predict/stream", content=lines, params=query).text.splitlines()
    one = client.post("/v1/predict", json={"text": TEXTS[0], **options}).json()
    same(one, expected[0])
    for place, (found, line, prediction) in enumerate(zip(batch, map(json.loads, stream), expected, strict=True)):
        same(found, prediction)
        assert (line.pop("line"), line.pop("id")) == (place + 1, place)
        same(line, prediction)


def test_the_shape_of_a_prediction(client):
    found = client.post("/v1/predict", json={"text": TEXT}).json()
    assert list(found) == ["labels", "scores", "confidence", "familiarity", "unfamiliar", "same_text", "neighbours"]
    assert set(found["labels"]) == {"sport", "日本 旅行"} and 0 <= found["confidence"] <= 1
    assert all(list(one) == ["label", "score", "threshold", "chosen", "parts", "words"] for one in found["scores"])
    assert all(list(one) == ["id", "similarity", "labels", "rejected", "text"] for one in found["neighbours"])
    assert len(found["neighbours"]) == 5  # k of the model


def test_own_thresholds_top_k_and_lengths_of_texts(client):
    def asked(**options):
        return client.post("/v1/predict", json={"text": TEXT, **options}).json()

    best, second = (one["label"] for one in asked()["scores"][:2])
    assert asked(thresholds={best: 1})["labels"] == [second]
    scores = {one["label"]: one for one in asked(threshold=0.0, thresholds={second: 0.9999, "nobody's": 0.5})["scores"]}
    assert scores[second]["threshold"] == pytest.approx(0.9999) and scores[best]["threshold"] == 0
    only = asked(top_k=1)
    assert only["labels"] == [best] and [one["chosen"] for one in only["scores"][:2]] == [True, False]
    assert asked(top_k=1000, threshold=0.0, min_labels=100)["labels"][:2] == [best, second]
    assert {len(one["text"]) for one in asked(text_characters=3)["neighbours"]} == {3}
    assert {one["text"] for one in asked(text_characters=0)["neighbours"]} == {""}


def test_a_stream_goes_on_after_broken_lines(client):
    lines = [
        b'{"text": "goal", "id": "a"}', b"{", b'{"id": [1, {"b": null}]}', b'{"text": 5, "id": 7}', b"", b"\xff",
        b'{"text": "chord"}\r', b'"goal"', b'{"text": "orbit", "id": "\\ud800"}', b'{"text": "last", "id": 0}',
    ]  # fmt: skip
    answer = client.post("/v1/predict/stream", content=b"\n".join(lines), params={"top_k": 1, "min_labels": 1})
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["line"] for row in rows] == list(range(1, 11))
    assert [row["id"] for row in rows] == ["a", None, [1, {"b": None}], 7, None, None, None, None, None, 0]
    assert [place for place, row in enumerate(rows) if "error" not in row] == [0, 6, 9]
    assert all(len(row["labels"]) == 1 and row["neighbours"] == [] for row in rows if "error" not in row)
    assert {tuple(row) for row in rows if "error" in row} == {("line", "id", "error")}
    assert client.post("/v1/predict/stream", content=b"").text == ""
    many = client.post("/v1/predict/stream", content=b'{"text": "goal"}\n' * 100).text.splitlines()
    assert [json.loads(line)["line"] for line in many] == list(range(1, 101))


def test_a_stream_lets_others_in_between_its_lines():
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def read() -> None:
        task = asyncio.create_task(other())
        service = SimpleNamespace(settings=Settings())  # invalid lines need only the settings
        async for _ in _stream(service, Access(), enumerate([b"\n"] * 100, 1), Options()):
            pass
        task.cancel()

    asyncio.run(read())
    assert turns >= 100


def test_neighbours(client, model):
    found = client.post("/v1/neighbours", json={"text": TEXT, "k": 7, "text_characters": 4}).json()["neighbours"]
    expected = model.store.search(model.method.embed([TEXT]), 7)
    assert [one["id"] for one in found] == list(expected.ids[0])
    assert [one["similarity"] for one in found] == pytest.approx(expected.similarity[0].tolist(), abs=1e-4)
    assert {len(one["text"]) for one in found} == {4}
    assert len(client.post("/v1/neighbours", json={"text": ""}).json()["neighbours"]) == 10
    assert len(client.post("/v1/neighbours", json={"text": "x", "k": 1000}).json()["neighbours"]) == len(model.store)


def test_the_queue_ranks_as_the_model_does(client, writer, model):
    texts = ["goal match team", "orbit violin", "zzyzx", "goal match team", "chord of a rocket"]
    expected = model.queue(texts)
    answer = client.post("/v1/queue", json={"documents": [{"text": text} for text in texts]}).json()["queue"]
    assert [texts[row["place"]] for row in answer] == [one.text for one in expected] and len(answer) == 4
    assert answer[0] == {
        "place": texts.index(expected[0].text), "labels": list(expected[0].prediction.labels),
        "uncertainty": pytest.approx(expected[0].uncertainty, abs=1e-3),
        "nearness": pytest.approx(expected[0].nearness, abs=1e-3),
    }  # fmt: skip
    first = {"documents": [{"text": texts[0]}, {"text": texts[1]}], "count": 1}
    assert len(client.post("/v1/queue", json=first).json()["queue"]) == 1
    assert client.post("/v1/queue", json={"documents": []}).status_code == 422


def test_a_stored_document_without_labels_is_no_evidence_for_itself(client, writer, model):
    text = "the goal of the match and the team"
    before = client.post("/v1/predict", json={"text": text}).json()
    writer.put(at("blank"), json={"text": text, "labels": []}).raise_for_status()
    assert client.get("/v1/documents", params={"unlabelled": True, "limit": 1}).json()["documents"][0]["id"] == "blank"
    assert client.post("/v1/predict", json={"text": text}).json()["same_text"] == "blank"
    own = client.post("/v1/predict", json={"text": text, "id": "blank"}).json()
    assert own["labels"] == before["labels"] and own["neighbours"] == before["neighbours"]
    (row,) = client.post("/v1/queue", json={"documents": [{"text": text, "id": "blank"}]}).json()["queue"]
    (other,) = client.post("/v1/queue", json={"documents": [{"text": text}]}).json()["queue"]
    assert row["nearness"] < other["nearness"] and row["labels"] == before["labels"]
    assert model.queue([denn.Document(text, id="blank")])[0].nearness == pytest.approx(row["nearness"], abs=1e-3)


def test_what_is_taught_is_known_at_once(client, writer, model):
    text = "zeppelin moorings of the aerodrome"
    documents = [{"text": f"{text} {word}", "labels": ["airships", "music"]} for word in ("one", "two", "three")]
    answer = writer.post("/v1/documents", json={"documents": documents, "source": "desk"})
    ids = answer.json()["ids"]
    assert answer.status_code == 201 and len(set(ids)) == 3
    found = client.post("/v1/predict", json={"text": f"{text} one"}).json()
    expected = {**documents[0], "id": ids[0], "rejected": [], "similarity": pytest.approx(1, abs=1e-4)}
    assert found["neighbours"][0] == expected
    scores = {one["label"]: one for one in found["scores"]}
    assert "airships" in found["labels"] and "airships" in scores
    (row,) = client.get("/v1/labels", params={"query": "AIRSHIP"}).json()["labels"]
    assert row == {
        "label": "airships", "documents": 3, "trained": False, "threshold": model.label_thresholds(["airships"])[0],
    }  # fmt: skip
    assert scores["airships"]["threshold"] == pytest.approx(row["threshold"])
    for id in ids:
        assert writer.delete(at(id)).status_code == 200
    again = client.post("/v1/predict", json={"text": f"{text} one"}).json()
    assert not set(ids) & {one["id"] for one in again["neighbours"]} and "airships" not in again["labels"]
    assert client.get("/v1/labels", params={"query": "AIRSHIP"}).json()["total"] == 0


NAMES = [
    "a", "a/b/c", "/", "..", "../../x", "with space", "日本/旅行", "100%", "%2F", "a?b=c#d", "n\x00l", "'; DROP",
    "e\u0301\u202e🚀", "two\nlines\r\n", "x" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("id", NAMES, ids=range(len(NAMES)))
def test_the_life_of_a_document(client, writer, id):
    def newest() -> int:
        return client.get("/v1/history", params={"limit": 1}).json()["changes"][0]["number"]

    put = {"text": "<script>alert(1)</script> goal", "labels": ["sport", "<b>", "sport", "l" * 1000]}
    assert client.get(at(id)).status_code == writer.delete(at(id)).status_code == 404
    made = writer.put(at(id), json=put)
    assert made.status_code == 200
    stored = {"id": id, "text": put["text"], "labels": ["sport", "<b>", "l" * 1000], "rejected": []}
    assert made.json() == stored | {"change": newest()}
    assert client.get(at(id)).json() == stored
    added = writer.post("/v1/documents", json={"documents": [{**put, "text": "new", "id": id}]})
    assert added.json() == {"ids": [id], "change": newest()}
    assert client.get(at(id)).json()["text"] == "new"
    assert writer.patch(at(id), json={"add": ["music"], "drop": ["<b>"]}).json()["labels"] == [
        "sport",
        "l" * 1000,
        "music",
    ]
    emptied = {"id": id, "text": "new", "labels": [], "rejected": []}
    assert writer.patch(at(id), json={"labels": []}).json() == emptied | {"change": newest()}
    assert writer.patch(at(id), json={"labels": []}).json() == emptied | {"change": None}  # nothing changed
    changes = client.get("/v1/history", params={"id": id, "limit": 5}).json()["changes"]
    assert [change["action"] for change in changes[:4]] == ["relabel", "relabel", "add", "add"]
    assert writer.delete(at(id)).json() == {"change": newest()}
    assert client.get(at(id)).status_code == 404


def test_rejected_labels(client, writer):
    new = {"text": "goal match team", "labels": ["sport"], "rejected": ["music", "<i>", "music"], "id": "rejecting"}
    assert writer.post("/v1/documents", json={"documents": [new]}).status_code == 201
    stored = client.get(at("rejecting")).json()
    assert (stored["labels"], stored["rejected"]) == (["sport"], ["music", "<i>"])
    assert client.get("/v1/documents", params={"limit": 1}).json()["documents"] == [stored]
    near = client.post("/v1/neighbours", json={"text": new["text"], "k": 1}).json()["neighbours"]
    evidence = client.post("/v1/predict", json={"text": new["text"], "evidence": 1}).json()["neighbours"]
    assert near[0]["rejected"] == evidence[0]["rejected"] == ["music", "<i>"]
    changed = writer.patch(at("rejecting"), json={"add": ["music"], "drop": ["<i>"], "reject": ["sport"]}).json()
    assert (changed["labels"], changed["rejected"]) == (["music"], ["sport"])
    for answer in (
        writer.patch(at("rejecting"), json={"add": ["war"], "reject": ["war"]}),
        writer.put(at("rejecting"), json={"text": "x", "labels": ["war"], "rejected": ["war"]}),
    ):
        assert answer.status_code == 422
        assert answer.json()["detail"] == "The label 'war' is both given and rejected. Keep one of the two."
    assert client.get(at("rejecting")).json() | {"change": changed["change"]} == changed
    assert writer.patch(at("rejecting"), json={"reject": []}).status_code == 422
    put = writer.put(at("rejecting"), json={"text": "x", "labels": [], "rejected": ["war"]})
    stored = client.get(at("rejecting")).json()
    assert stored == {"id": "rejecting", "text": "x", "labels": [], "rejected": ["war"]}
    assert put.json() == stored | {"change": put.json()["change"]}
    assert writer.delete(at("rejecting")).status_code == 200


def test_a_forgotten_document_cannot_come_back(client, writer):
    writer.put(at("forget me"), json={"text": "x", "labels": []})
    assert writer.delete(at("forget me"), params={"forget": True}).status_code == 200
    assert writer.delete(at("forget me"), params={"forget": True}).status_code == 404
    again = writer.put(at("forget me"), json={"text": "x", "labels": []})
    assert again.status_code == 409 and "was forgotten on" in again.json()["detail"]
    assert [one["action"] for one in client.get("/v1/history", params={"limit": 1}).json()["changes"]] == ["forget"]


def test_a_document_that_was_removed_can_be_forgotten(client, writer):
    writer.put(at("removed before"), json={"text": "x", "labels": []})
    assert writer.delete(at("removed before")).status_code == 200
    assert writer.delete(at("removed before")).status_code == 404
    assert writer.delete(at("removed before"), params={"forget": True}).status_code == 200
    assert [one["action"] for one in client.get("/v1/history", params={"id": "removed before"}).json()["changes"]] == []
    assert writer.delete(at("removed before"), params={"forget": True}).status_code == 404


def test_a_change_is_known_by_its_number_whatever_others_change(client, writer, model):
    """The same model in this process changes the datastore like another replica."""
    writer.put(at("shared"), json={"text": "x", "labels": ["sport"]})
    model.store.relabel("shared", add=["music"], source="someone else")
    kept = writer.patch(at("shared"), json={"add": ["music"]}).json()
    assert kept["labels"] == ["sport", "music"] and kept["change"] is None  # the newest change is not ours
    ours = writer.patch(at("shared"), json={"add": ["war"]}).json()["change"]
    model.store.relabel("shared", add=["peace"], source="someone else")
    theirs, mine, *_ = client.get("/v1/history", params={"id": "shared"}).json()["changes"]
    assert mine["number"] == ours and mine["author"] == "teach" and theirs["source"] == "someone else"


def test_adding_is_all_or_nothing(client, writer):
    before = client.get("/v1/documents", params={"limit": 0}).json()
    good = {"text": "x", "labels": ["sport"], "id": "good"}
    for bad in ({**good}, {"text": "\ud800", "labels": []}, {"text": "x"}):
        body = json.dumps({"documents": [good, bad]})
        answer = writer.post("/v1/documents", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
    assert client.get("/v1/documents", params={"limit": 0}).json() == before


def test_listing_documents(client, writer):
    writer.post(
        "/v1/documents", json={"documents": [{"text": "100%_A", "labels": ["x", "y"], "id": "n1"}], "source": "ann"}
    )
    middle = datetime.now(UTC)
    writer.post(
        "/v1/documents", json={"documents": [{"text": "Zebra", "labels": ["y", "z"], "id": "n2"}], "source": "bob"}
    )

    def listed(**query) -> list[str]:
        found = client.get("/v1/documents", params={"limit": 1000, **query}).json()
        assert found["total"] == len(found["documents"])
        return [one["id"] for one in found["documents"]]

    everything = listed()
    count = len(everything)
    assert everything[:2] == ["n2", "n1"] and everything.index("train-59") < everything.index("train-58") and count > 61
    assert (
        listed(label="y") == ["n2", "n1"] and listed(label=["x", "z"]) == ["n2", "n1"] and listed(label="x") == ["n1"]
    )
    assert listed(text="ebr") == ["n2"] and listed(text="EBR") == [] and listed(text="%") == listed(text="_A") == ["n1"]
    assert listed(source="teach: ann") == ["n1"] and listed(source="teach: ann", label="z") == []
    east = timedelta(hours=5, minutes=30)
    for moment in (middle.isoformat(), (middle + east).isoformat().replace("+00:00", "+05:30")):
        assert listed(since=moment) == ["n2"] and listed(before=moment) == everything[1:]
    assert listed(since=middle.isoformat(), before=middle.isoformat()) == []
    page = client.get("/v1/documents", params={"offset": 1, "limit": 2}).json()
    assert page["total"] == count and [one["id"] for one in page["documents"]] == everything[1:3]
    assert client.get("/v1/documents", params={"offset": count}).json() == {"total": count, "documents": []}
    assert len(client.get("/v1/documents").json()["documents"]) == 50


def test_history_and_undo(client, writer):
    writer.put(at("u"), json={"text": "one", "labels": ["sport"], "source": "ann"})
    writer.put(at("u"), json={"text": "two", "labels": [], "source": "bob"})
    second, first = client.get("/v1/history", params={"limit": 2}).json()["changes"]
    assert {"number", "time", "action", "source", "documents", "ids", "undoes", "undone", "undoable"} <= set(first)
    assert first["ids"] == second["ids"] == ["u"] and not first["undone"]
    assert (first["action"], first["source"], first["documents"]) == ("add", "teach: ann", 1)
    assert datetime.fromisoformat(first["time"]).tzinfo and first["number"] < second["number"]
    blocked = writer.post(f"/v1/history/{first['number']}/undo")
    assert blocked.status_code == 409 and "Undo that first" in blocked.json()["detail"]
    assert writer.post(f"/v1/history/{second['number']}/undo", params={"source": "eve"}).json() == {
        "documents": 1, "change": second["number"] + 1,
    }  # fmt: skip
    assert client.get(at("u")).json() == {"id": "u", "text": "one", "labels": ["sport"], "rejected": []}
    assert client.get("/v1/history", params={"limit": 1}).json()["changes"][0]["source"] == "teach: eve"
    assert writer.post(f"/v1/history/{second['number']}/undo").status_code == 409
    assert writer.post("/v1/history/123456/undo").status_code == 404
    assert client.get("/v1/history", params={"limit": 0}).json() == {"changes": []}
    assert client.get("/v1/history", params={"id": "never there"}).json() == {"changes": []}


def test_forget_reaches_a_document_that_is_kept_for_validation(service, writer, tiny_corpus):
    gone = tiny_corpus.valid[7]
    assert writer.delete(at(gone.id)).status_code == 404  # it is not in the datastore
    assert writer.delete(at(gone.id), params={"forget": True}).status_code == 200
    assert writer.delete(at(gone.id), params={"forget": True}).status_code == 404
    assert gone.text.encode() not in b"".join(path.read_bytes() for path in service.folder.glob("validation*/*"))
    denn.load(service.folder).close()

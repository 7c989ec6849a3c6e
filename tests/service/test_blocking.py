"""Large or slow requests do not delay others, and no request can exceed the memory limits."""

import json
import shutil
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from inside import PATIENCE, Inside, eventually, inside, request

from denn import bundle
from denn.errors import UnavailableError
from denn.service import answers, projection
from denn.service import guard as guarding
from denn.service.keys import Keys, new_key
from denn.service.labels import OrderedLabels
from denn.service.probe import Probe
from denn.types import Document
from denn.vocabulary import Vocabulary, VocabularyEntry

pytestmark = pytest.mark.slow  # each starts its own service

KEY, LINE = new_key("write")
TEXT = {"text": "goal match team"}
LATER = [f"later {number}" for number in range(40)]


@pytest.fixture(scope="module")
def running(tiny_model, tmp_path_factory) -> Iterator[Inside]:
    """A service whose datastore has 40 labels added after training."""
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("blocking") / "tiny")
    with inside(folder, keys=Keys.parse([LINE])) as running:
        store = running.model.store
        documents = [Document(TEXT["text"], (label,), f"{label} {n}") for label in LATER for n in range(2)]
        store.add(documents, running.model.method.embed([TEXT["text"]]).repeat(len(documents), 1))
        yield running


class Held:
    """Calls of a datastore method that block until a test releases them."""

    def __init__(self, monkeypatch, store, name: str) -> None:
        self.go_on, self.begun, self._real = threading.Event(), 0, getattr(store, name)
        monkeypatch.setattr(store, name, self)

    def __call__(self, *given, **named):
        self.begun += 1
        assert self.go_on.wait(PATIENCE)
        return self._real(*given, **named)


def in_threads(count: int, work) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def got(running: Inside, path: str):
    with running.client() as client:
        begun = time.monotonic()
        return client.get(path), time.monotonic() - begun


def test_labels_are_listed_at_once_whatever_their_thresholds_cost(running, monkeypatch):
    held, new = threading.Event(), running.model._new
    monkeypatch.setattr(new, "_estimate", lambda name: held.wait(PATIENCE) and {part: 0.75 for part in new.fallbacks})
    try:
        first, seconds = got(running, "/v1/labels?limit=1000&query=later")
        assert first.status_code == 200 and seconds < 5 and len(first.json()["labels"]) == 40
        tuned = running.model.card.thresholds["final"].overall
        assert {row["threshold"] for row in first.json()["labels"]} == {tuned}  # used until there is another
        new._allowance._left = -1e9  # predictions have used up their share
        assert running.post("/v1/predict", TEXT).status_code == 200
    finally:
        held.set()
        new._allowance._left = 0.0
    eventually(
        lambda: {row["threshold"] for row in got(running, "/v1/labels?query=later")[0].json()["labels"]} == {0.75}
    )
    new._found.clear()


def test_health_ready_and_metrics_wait_for_nobody(running, monkeypatch):
    held = Held(monkeypatch, running.model.store, "get")
    threads = in_threads(8, lambda: got(running, "/v1/documents/train-1"))
    try:
        eventually(lambda: held.begun == 4)  # all reader threads
        for path in ("/health", "/ready", "/metrics", "/v1/session", "/v1/recent"):
            answer, seconds = got(running, path)
            assert answer.status_code == 200 and seconds < 1, path
    finally:
        held.go_on.set()
        for thread in threads:
            thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("held_up", "path"),
    [
        ("select", "/v1/documents?text=goal"),
        ("select", "/v1/documents?source=x"),
        ("select", "/v1/documents?since=2020-01-01"),
        ("ids", "/v1/documents?limit=1000"),
        ("ids", "/v1/map"),
    ],
)
def test_what_reads_much_is_refused_where_others_do_and_short_reads_go_on(running, monkeypatch, held_up, path):
    monkeypatch.setattr(projection, "KEPT", 0.0)
    held = Held(monkeypatch, running.model.store, held_up)
    answers = []
    threads = in_threads(2, lambda: answers.append(got(running, path)[0]))
    try:
        eventually(lambda: held.begun == 1)
        eventually(lambda: sum(running.engine._long_reads.values()) == 2)  # the other waits
        refused, seconds = got(running, path)
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1 and seconds < 1
        assert "Too many large reads" in refused.json()["detail"]
        for short in ("/v1/documents/train-1", "/v1/labels?limit=5", "/v1/history", "/v1/model"):
            answer, seconds = got(running, short)
            assert answer.status_code == 200 and seconds < 5, short
    finally:
        held.go_on.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert got(running, path)[0].status_code == 200


def test_ready_says_when_the_datastore_is_away_and_when_it_is_back():
    import asyncio

    away, hold = threading.Event(), threading.Event()

    def count() -> int:
        if away.is_set():
            raise UnavailableError("away")
        if hold.is_set():
            time.sleep(0.5)
        return 7

    async def scenario() -> None:
        probe = Probe(count, every=0.01, late=0.2)
        assert probe.well
        probe.start()

        async def until(condition) -> None:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    await asyncio.sleep(0.005)

        await until(lambda: probe.documents == 7)
        away.set()
        await until(lambda: not probe.well)
        away.clear()
        await until(lambda: probe.well)
        hold.set()
        await until(lambda: not probe.well)  # it has been silent for too long
        hold.clear()
        await until(lambda: probe.well)
        await probe.stop()

    asyncio.run(scenario())


def test_the_service_is_not_ready_without_its_datastore(running, monkeypatch):
    monkeypatch.setattr(running.engine.probe, "_failed", True)
    monkeypatch.setattr(running.engine.probe, "_every", PATIENCE)
    answer, _ = got(running, "/ready")
    if answer.status_code == 200:  # a check came in between
        running.engine.probe._failed = True
        answer, _ = got(running, "/ready")
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
    assert answer.json()["detail"] == "The datastore is unavailable. Try again later."
    assert got(running, "/health")[0].status_code == 200


def test_a_service_whose_model_was_trained_again_stores_nothing_and_is_not_ready(tiny_model, tmp_path, caplog):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    with inside(folder, keys=Keys.parse([LINE])) as running, running.client(KEY) as client:
        bundle.replace(shutil.copytree(tiny_model, tmp_path / "new"), folder)
        document = {**TEXT, "labels": ["sport"]}
        assert client.post("/v1/documents", json={"documents": [document]}).status_code == 503
        assert "Load the model again, or restart the service." in caplog.text
        assert eventually(lambda: client.get("/ready").status_code == 503)
        assert client.post("/v1/predict", json=TEXT).status_code == 200, "predictions continue until the restart"


def test_answers_hold_no_more_text_than_they_may(running, monkeypatch):
    monkeypatch.setattr(answers, "ANSWER_CHARACTERS", 1000)
    with running.client() as client:
        for answer in (
            client.get("/v1/documents", params={"limit": 200}),
            client.post("/v1/neighbours", json={**TEXT, "k": 120}),
            client.post("/v1/predict/batch", json={"texts": [TEXT["text"]] * 50}),
        ):
            assert answer.status_code == 413 and "characters of text. Request less." in answer.json()["detail"]
        assert client.get("/v1/documents", params={"limit": 5}).status_code == 200
        assert client.post("/v1/neighbours", json={**TEXT, "k": 120, "text_characters": 2}).status_code == 200


def test_large_answers_have_a_limit_together(running, monkeypatch):
    monkeypatch.setattr(guarding, "SMALL_ANSWER", 100)
    object.__setattr__(running.guard._settings, "stream_bytes", 100)  # eight of them: less than the list
    try:
        answer, _ = got(running, "/v1/documents")
        assert answer.status_code == 503 and "Too many large responses" in answer.json()["detail"]
        assert answer.headers["Retry-After"] == "5"
        assert got(running, "/health")[0].status_code == 200
    finally:
        object.__setattr__(running.guard._settings, "stream_bytes", 64 * 2**20)
    assert got(running, "/v1/documents")[0].status_code == 200
    eventually(lambda: running.guard._leaving == 0)  # the client receives the response before the server closes it


class Drawing:
    """A datastore that counts how often a map of it is drawn."""

    dimension = 2

    def __init__(self, documents: int) -> None:
        self.documents, self.drawn = documents, 0

    def __len__(self) -> int:
        return self.documents

    def ids(self) -> list[str]:
        self.drawn += 1
        return [str(number) for number in range(self.documents)]

    def get(self, ids):
        assert len(ids) <= 500  # so that others can run in between
        return [Document("x", (f"label {int(id) % 3}",), id) for id in ids]

    def vectors(self, ids):
        return torch.rand(len(ids), 2)


def test_maps_of_any_size_are_parts_of_two(monkeypatch):
    store, maps = Drawing(12_000), projection.Projection()
    for limit in (1, 7, 1999, 2000, 2001, 9999, 10_000, 10_001):
        drawn = maps.map(store, limit)
        assert len(drawn.points) == min(limit, 10_000) and drawn.documents == 12_000
    assert store.drawn == 2 and len(maps._kept) == 2
    places = [int(point.id) for point in maps.map(store, 7).points]
    assert places == sorted(places) and places[0] == 0 and places[-1] > 9000


def test_a_map_that_takes_long_is_not_drawn_after_every_change(monkeypatch):
    store, maps = Drawing(100), projection.Projection()
    maps.map(store, 10)
    store.documents += 1
    maps.map(store, 10)
    assert store.drawn == 2  # it was quick
    drawn, made, _ = maps._kept[2000]
    maps._kept[2000] = drawn, made, 5.0  # as if it had taken that
    for _ in range(5):
        store.documents += 1
        assert maps.map(store, 10).documents == 101
    assert store.drawn == 2
    maps._kept[2000] = drawn, made - 51.0, 5.0
    assert maps.map(store, 10).documents == 106


def test_labels_are_put_in_order_once():
    class Counted(dict):
        looks = 0

        def __getitem__(self, name):
            Counted.looks += 1
            return super().__getitem__(name)

    names, labels, vocabulary = {"b": 1, "a": 1, "Ä": 3, "c": 2}, OrderedLabels(), Vocabulary()
    for _ in range(5):
        assert labels.find(Counted(names), "", "documents", vocabulary) == ["Ä", "c", "a", "b"]
        assert labels.find(Counted(names), "ä", "name", vocabulary) == ["Ä"]
    assert Counted.looks == len(names)
    renamed = Vocabulary((VocabularyEntry("b", "A"),))
    assert labels.find(names, "", "documents", renamed) == ["Ä", "c", "b", "a"]
    assert labels.find(names | {"b": 9}, "", "documents", vocabulary)[0] == "b"
    assert labels.find({}, "", "name", vocabulary) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/predict/batch", '{"texts": [' + "1," * 400_000 + "1]}"),
        ("/v1/documents", '{"documents": [' + "1," * 400_000 + "1]}"),
        ("/v1/predict", '{"text": "a", ' + ", ".join(f'"{n}": 1' for n in range(100_000)) + "}"),
        ("/v1/predict", '{"text": "a", "thresholds": {' + ", ".join(f'"{n}": 5' for n in range(100_000)) + "}}"),
        ("/v1/projects/model/suggest-batch", '{"documents": [' + "1," * 400_000 + "1]}"),
        ("/v1/projects/model/learn", "[" + "1," * 400_000 + "1]"),
    ],
)
def test_a_body_of_mistakes_costs_as_much_as_one(running, path, body):
    """All mistakes used to be described before the first was reported: a minute and 5 GB for a body of 8 MB."""
    with running.client(KEY) as client:
        begun = time.monotonic()
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422 and len(answer.json()["errors"]) == 1
        assert time.monotonic() - begun < 5


def test_who_pipelines_and_goes_leaves_no_fault_in_the_log(running, caplog):
    running.gate.hold()
    with running.connect() as connection:
        connection.sendall(request("/v1/predict", json.dumps(TEXT).encode()) * 3)
        eventually(lambda: running.engine.waiting == 1)
    eventually(lambda: running.engine.waiting == 0)
    running.gate.release()
    assert running.post("/v1/predict", TEXT).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]

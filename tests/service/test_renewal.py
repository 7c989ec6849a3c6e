"""A refit while the service answers: every response is from the old or the new model, and none is lost."""

import asyncio
import gc
import json
import shutil
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from inside import PATIENCE, eventually, gated

import denn
from denn.renewing import renew
from denn.service.app import make_app
from denn.service.engine import DecisionOptions, Engine
from denn.service.renewal import Renewal
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.stores.address import use

NEW = "chess: opening"
TEXTS = ["gambit bishop knight rook", "violin chord and a drum", "goal match the team", "oven butter pawn castling"]


@pytest.fixture
def taught(tiny_model, tmp_path) -> Path:
    """A copy of the tiny model that was taught a label."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "taught"))
    later = [denn.Document(f"gambit bishop knight rook pawn {n}", (NEW,), f"later-{n}") for n in range(20)]
    with denn.load(folder) as model:
        model.add(later)
    return folder


def same(found: dict, expected: dict) -> bool:
    """Compare two responses; sums in other batches differ in their last digits."""
    if found["labels"] != expected["labels"]:
        return False
    ours, theirs = ({one["label"]: one for one in answer["scores"]} for answer in (found, expected))
    return ours.keys() == theirs.keys() and all(
        one[what] == pytest.approx(theirs[label][what], abs=1e-4)
        for label, one in ours.items()
        for what in ("score", "threshold", "parts")
    )


def answers(client) -> list[dict]:
    return client.post("/v1/predict/batch", json={"texts": TEXTS, "evidence": 3}).json()["predictions"]


class Clients:
    """Several clients that send requests without a pause and keep the responses."""

    def __init__(self, running, count: int = 4) -> None:
        self.single: list[tuple[int, dict]] = []  # index of the text, response
        self.batches: list[list[dict]] = []
        self.failures: list[object] = []
        self._running, self._over = running, threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> "Clients":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        with self._running.client() as client:
            while not self._over.is_set():
                try:
                    if number == 0:
                        found = client.post("/v1/predict/batch", json={"texts": 5 * TEXTS, "evidence": 3})
                        self.batches.append(found.json()["predictions"])
                    else:
                        found = client.post("/v1/predict", json={"text": TEXTS[number], "evidence": 3})
                        self.single.append((number, found.json()))
                    if found.status_code != 200:
                        self.failures.append(found.text)
                except Exception as error:  # this test looks for dropped connections
                    self.failures.append(error)


def refit_outside(folder: Path, *options: str) -> None:
    subprocess.run([sys.executable, "-m", "denn", "refit", str(folder), "--quiet", *options], check=True)


def switched(running) -> bool:
    return any("switched to the refitted model" in line for line in running.log)


def test_answers_during_a_refit_and_the_switch(taught, serving):
    with serving(taught, "--batch-tokens", "40") as running, running.client() as client:  # a batch of 20 is split
        old = answers(client)
        with Clients(running) as clients:
            refit_outside(taught)
            eventually(lambda: switched(running))
            before = len(clients.single), len(clients.batches)
            eventually(lambda: len(clients.single) > before[0] + 20 and len(clients.batches) > before[1] + 2)
        new = answers(client)
        shown = client.get("/v1/model").json()
        labels = {one["label"]: one for one in client.get("/v1/labels").json()["labels"]}
    assert clients.failures == []
    assert not any(same(*pair) for pair in zip(old, new, strict=True))
    assert {one["threshold"] for one in old[0]["scores"]}.isdisjoint(one["threshold"] for one in new[0]["scores"])
    by = {"old": 0, "new": 0}
    for number, found in clients.single:
        kinds = [name for name, known in (("old", old), ("new", new)) if same(found, known[number])]
        assert len(kinds) == 1, found
        by[kinds[0]] += 1
    for batch in clients.batches:
        kinds = [name for name, known in (("old", old), ("new", new)) if all(map(same, batch, 5 * known))]
        assert len(kinds) == 1, batch  # one request, one model
        by[kinds[0]] += 1
    assert min(by.values()) > 10
    with denn.load(taught) as model:
        for one, expected in zip(new, model.predict(TEXTS, evidence=3), strict=True):
            assert one["labels"] == list(expected.labels)
            assert {s["label"]: s["score"] for s in one["scores"]} == pytest.approx(dict(expected.scores), abs=1e-4)
        assert shown["refitted"] == model.card.refitted
        assert shown["thresholds"]["final"] == model.card.thresholds["final"].overall == labels[NEW]["threshold"]
        assert labels[NEW]["trained"]


def test_one_refit_after_the_other_is_taken_up(taught, serving):
    with serving(taught) as running, running.writer() as client:
        for number in (1, 2):
            word = {"text": f"label{number} yacht harbour", "labels": [f"label {number}"]}
            client.post("/v1/documents", json={"documents": [word] * 12}).raise_for_status()
            denn.refit(taught, force=True).close()
            eventually(lambda number=number: len([line for line in running.log if "switched" in line]) == number)
            rows = client.get("/v1/labels", params={"query": f"label {number}"}).json()["labels"]
            assert rows[0]["trained"]
            client.post("/v1/documents", json={"documents": [word]}).raise_for_status()  # the datastore is open


def test_another_model_or_a_broken_one_leaves_the_old_one_in_use(taught, serving):
    good = (taught / "bundle.json").read_text(encoding="utf-8")
    card = json.loads(good)
    with serving(taught) as running, running.client() as client:
        before = answers(client)
        for content, reason in (
            (json.dumps(card | {"created": "2020-02-02T00:00:00+00:00"}), "another model"),
            (json.dumps(card | {"learnt": "learnt-9"}), "learnt-9"),
            ("{", "bundle.json"),
        ):
            (taught / "bundle.json.new").write_text(content, encoding="utf-8")
            (taught / "bundle.json.new").replace(taught / "bundle.json")
            eventually(lambda reason=reason: any("keeps the model" in line and reason in line for line in running.log))
        time.sleep(2.5)  # several checks
        assert len([line for line in running.log if "keeps the model" in line]) == 3
        assert all(map(same, answers(client), before))
        (taught / "bundle.json.new").write_text(good, encoding="utf-8")
        (taught / "bundle.json.new").replace(taught / "bundle.json")
        denn.refit(taught).close()
        eventually(lambda: switched(running))


def test_a_refit_from_another_datastore_is_not_taken_up(taught, serving, tmp_path):
    with serving(taught) as running:
        shutil.copytree(taught / "store", tmp_path / "elsewhere")
        use(taught, tmp_path / "elsewhere" / "store.sqlite")
        denn.refit(taught).close()
        eventually(lambda: any("now uses another datastore" in line for line in running.log))
        assert not switched(running)


def test_labels_renamed_elsewhere_reach_a_model_that_cannot_be_refitted(taught):
    model, gate = gated(taught)
    gate.can_refit = False

    async def scenario() -> None:
        engine = Engine(model, Settings(), Telemetry())
        renewal = Renewal(engine, every=0.01)
        renewal.start()
        with denn.load(taught) as other:
            await asyncio.to_thread(other.rename_label, "sport", "athletics")
        while engine.model.vocabulary.name("sport") != "athletics":
            await asyncio.sleep(0.01)
        await renewal.stop()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    model.close()


def test_what_waits_during_a_switch_is_answered_by_the_model_it_came_to(taught):
    """Requests to both models wait together, and parts of one request are scored after the switch."""
    model, gate = gated(taught)
    denn.refit(taught).close()
    new = renew(model)

    async def scenario(engine: Engine) -> list:
        gate.hold()
        large = asyncio.create_task(engine.predict(TEXTS, DecisionOptions()))  # in parts
        while not gate.batches:
            await asyncio.sleep(0.005)
        before = asyncio.create_task(engine.predict(TEXTS[:1], DecisionOptions()))
        await asyncio.sleep(0)
        await engine.switch(new)
        after = asyncio.create_task(engine.predict(TEXTS[:1], DecisionOptions()))
        await asyncio.sleep(0.05)
        gate.release()
        return [*await large, *await before, *await after]

    async def run() -> list:
        engine = Engine(model, Settings(batch_tokens=24), Telemetry())
        engine.start()
        try:
            return await asyncio.wait_for(scenario(engine), PATIENCE)
        finally:
            gate.release()
            await engine.stop()

    found = asyncio.run(run())
    expected = [*model.predict(TEXTS), *model.predict(TEXTS[:1]), *new.predict(TEXTS[:1])]
    cuts = [model.card.thresholds["final"].overall] * 5 + [new.card.thresholds["final"].overall]
    for one, other, cut in zip(found, expected, cuts, strict=True):
        assert one.prediction.labels == other.labels
        assert dict(one.prediction.scores) == pytest.approx(dict(other.scores), abs=1e-4)
        trained = [t for t, label in zip(one.thresholds, one.prediction.scores, strict=True) if label != NEW]
        assert trained == pytest.approx([cut] * len(trained))
    assert gate.batches[:3] == [TEXTS[:3], TEXTS[:1], TEXTS[3:]]
    new.close()


def test_nothing_of_the_old_model_is_left_after_a_switch(taught):
    model = denn.load(taught)
    old = weakref.ref(model.method.network.head)
    guard = make_app(model, Settings())
    del model

    async def scenario() -> None:
        async with guard.app.router.lifespan_context(guard.app):
            engine = guard.app.state.service.engine
            await engine.predict(TEXTS, DecisionOptions())
            await asyncio.to_thread(lambda: denn.refit(taught).close())
            gc.disable()  # a service freezes loaded objects, which hides them from the garbage collector
            while old() is not None:
                await asyncio.sleep(0.1)
            assert NEW in engine.model.labels
            await engine.predict(TEXTS, DecisionOptions())
            await engine.add([denn.Document("gambit", (NEW,))], "test")  # encoder and datastore are shared

    try:
        asyncio.run(asyncio.wait_for(scenario(), PATIENCE))
    finally:
        gc.enable()

"""The engine: batches across requests, turns, failures and cancellations, on the real model."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import torch
from inside import PATIENCE, Gate, gated

from denn.model import Model
from denn.prediction_types import Prediction
from denn.service.engine import DecisionOptions, Engine
from denn.service.problems import Busy
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.types import Document

TEXTS = ["goal match team", "oven butter sauce chef", "orbit rocket", "kyoto temple", "violin chord melody drum", "the"]
TWO = "referee goal stadium kyoto temple sakura"  # sport, 日本 旅行


@pytest.fixture(scope="module")
def loaded(served_model) -> Iterator[tuple[Model, Gate]]:
    model, gate = gated(served_model)
    yield model, gate
    model.close()


@pytest.fixture
def model(loaded) -> Model:
    return loaded[0]


@pytest.fixture
def gate(loaded) -> Iterator[Gate]:
    gate = loaded[1]
    gate.batches, gate.poison = [], None
    yield gate
    gate.release()


def working(model: Model, scenario, **limits) -> object:
    """Run an asynchronous test with a started engine, and cancel it if it hangs."""

    async def run() -> object:
        engine = Engine(model, Settings(**limits), Telemetry())
        engine.start()
        try:
            return await asyncio.wait_for(scenario(engine), PATIENCE)
        finally:
            model.method.release()
            await engine.stop()

    return asyncio.run(run())


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def soon(work) -> asyncio.Task:
    return asyncio.get_running_loop().create_task(work)


def alike(found: Prediction, expected: Prediction) -> bool:
    """Compare predictions; sums in other batches differ in their last digits."""
    return (
        found.labels == expected.labels
        and dict(found.scores) == pytest.approx(dict(expected.scores), abs=1e-4)
        and found.confidence == pytest.approx(expected.confidence, abs=1e-4)
        and [one.id for one in found.neighbours] == [one.id for one in expected.neighbours]
    )


def as_predicted(model: Model, found, texts: list[str], **options) -> bool:
    """Return whether the decisions are those of the library for the same texts."""
    expected = model.predict(texts, **{"evidence": 10, **options})
    return all(alike(one.prediction, other) for one, other in zip(found, expected, strict=True))


def test_requests_that_come_together_are_scored_together(model, gate):
    async def scenario(engine):
        gate.hold()
        first = soon(engine.predict(["first"], DecisionOptions()))
        await until(lambda: gate.batches)
        rest = [soon(engine.predict([text, text.upper()], DecisionOptions())) for text in TEXTS]
        await until(lambda: engine.waiting == 1 + 2 * len(TEXTS))
        gate.release()
        return await asyncio.gather(first, *rest)

    _, *found = working(model, scenario)
    assert gate.batches == [["first"], [one for text in TEXTS for one in (text, text.upper())]]
    for text, decided in zip(TEXTS, found, strict=True):
        assert as_predicted(model, decided, [text, text.upper()])


def test_long_texts_are_not_all_scored_in_one_batch(model, gate):
    """The encoder reads only their beginnings, but the word witness reads all of them while others wait."""
    texts = ["goal oven " * 10_000] * 20
    found = working(model, lambda engine: engine.predict(texts, DecisionOptions(evidence=1)))
    assert len(found) == 20
    assert 1 < max(map(len, gate.batches)) < 16


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"threshold": 0.05, "evidence": 0},
        {"per_label": True, "min_labels": 3},
        {"threshold": 1.0, "min_labels": 1, "evidence": 2},
    ],
)
def test_predictions_are_those_of_the_library(model, gate, options):
    found = working(model, lambda engine: engine.predict(TEXTS, DecisionOptions(**options)))
    assert as_predicted(model, found, TEXTS, **options)


def test_thresholds_of_some_labels_go_before_all_others(model, gate):
    own = (("sport", 1.0), ("日本 旅行", 0.125), ("nobody's", 0.5))

    async def scenario(engine):
        return [await engine.predict([TWO], DecisionOptions(threshold, own)) for threshold in (None, 0.0)]

    for (one,), every in zip(working(model, scenario), (model.card.thresholds["final"].overall, 0.0), strict=True):
        thresholds = dict(zip(one.prediction.scores, one.thresholds, strict=True))
        assert thresholds.pop("sport") == 1.0 and thresholds.pop("日本 旅行") == 0.125
        assert all(cut == pytest.approx(every) for cut in thresholds.values()) and (thresholds or every)
        assert "日本 旅行" in one.prediction.labels and "sport" not in one.prediction.labels


def test_others_come_between_the_parts_of_a_large_request(model, gate):
    async def scenario(engine):
        gate.hold()
        large = soon(engine.predict([f"part {number} " + "x" * 40 for number in range(6)], DecisionOptions()))
        await until(lambda: gate.batches)
        small = soon(engine.predict(["small"], DecisionOptions()))
        await until(lambda: engine.waiting == 7)
        gate.let(2)
        await small
        assert not large.done() and len(gate.batches) <= 3
        gate.release()
        return await large

    found = working(model, scenario, batch_tokens=15)
    texts = [text for batch in gate.batches for text in batch if text != "small"]
    assert texts == [f"part {number} " + "x" * 40 for number in range(6)]
    assert as_predicted(model, found, texts)


def test_the_token_budget_of_a_batch(model, gate):
    texts = ["x" * (4 * length) for length in (3, 50, 1, 1, 9, 2, 30, 7, 7, 7, 1, 64, 64, 500)]

    async def scenario(engine):
        gate.hold()
        first = soon(engine.predict(["first"], DecisionOptions()))
        await until(lambda: gate.batches)
        rest = [soon(engine.predict([text], DecisionOptions())) for text in texts]
        await until(lambda: engine.waiting == 1 + len(texts))
        gate.release()
        await asyncio.gather(first, *rest)

    working(model, scenario, batch_tokens=40)
    longest = model.card.parameters["max_length"]
    weights = [[min(len(text) // 4 + 1, longest) for text in batch] for batch in gate.batches]
    assert [text for batch in gate.batches[1:] for text in batch] == texts
    assert all(sum(batch) <= 40 or len(batch) == 1 for batch in weights)
    assert len(weights) < len(texts)  # but together if they fit


def test_a_text_that_fails_fails_alone(model, gate):
    gate.poison = "poison"

    async def scenario(engine):
        gate.hold()
        tasks = [soon(engine.predict([text], DecisionOptions())) for text in ("first", "good", "poison", "better")]
        await until(lambda: engine.waiting == 4)
        gate.release()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert engine.waiting == 0
        again = await engine.predict(["good"], DecisionOptions())
        return [*found, again]

    first, good, poisoned, better, again = working(model, scenario)
    assert isinstance(poisoned, RuntimeError)
    assert as_predicted(model, [*first, *good, *better, *again], ["first", "good", "better", "good"])


def test_what_nobody_waits_for_is_passed_over(model, gate):
    async def scenario(engine):
        gate.hold()
        first = soon(engine.predict(["first"], DecisionOptions()))
        await until(lambda: gate.batches)
        left = soon(engine.predict(["left"], DecisionOptions()))
        embedded = soon(engine.embed(["left too"]))
        stayed = soon(engine.predict(["stayed"], DecisionOptions()))
        await until(lambda: engine.waiting == 4)
        left.cancel()
        embedded.cancel()
        await until(lambda: engine.waiting == 2)  # their place is free at once
        gate.release()
        await asyncio.gather(first, stayed)

    working(model, scenario)
    assert gate.batches == [["first"], ["stayed"]]


def test_a_full_queue_says_when_to_come_back(model, gate):
    async def scenario(engine):
        gate.hold()
        kept = [soon(engine.predict([text, text], DecisionOptions())) for text in ("one", "two")]
        await until(lambda: engine.waiting == 4)
        for refused in (engine.predict(["three"], DecisionOptions()), engine.embed(["three"])):
            with pytest.raises(Busy, match="The queue is full: 4 of 4 texts") as busy:
                await refused
            assert int(busy.value.headers["Retry-After"]) >= 1
        gate.release()
        await asyncio.gather(*kept)
        return await engine.predict(["three"], DecisionOptions())

    assert len(working(model, scenario, queue=4)) == 1


def test_a_request_larger_than_the_queue_is_let_in_alone(model, gate):
    found = working(model, lambda engine: engine.predict(TEXTS, DecisionOptions()), queue=2)
    assert as_predicted(model, found, TEXTS)


def test_embeddings_take_turns_with_scores(model, gate):
    async def scenario(engine):
        vectors = soon(engine.embed(TEXTS))
        decided = await engine.predict(TEXTS, DecisionOptions())
        return await vectors, decided

    vectors, decided = working(model, scenario, batch_tokens=8)
    expected = torch.cat([model.method.embed([text]) for text in TEXTS])
    assert torch.allclose(vectors, expected, atol=1e-5)
    assert as_predicted(model, decided, TEXTS)


def test_texts_to_rank_are_embedded_once(model, gate):
    documents = [Document(text) for text in TEXTS]
    found = working(model, lambda engine: engine.rank(documents, len(documents)))
    assert gate.batches == [TEXTS]
    expected = model.queue(documents)
    assert [one.text for one in found] == [one.text for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert alike(one.prediction, other.prediction)
        assert (one.uncertainty, one.nearness) == pytest.approx((other.uncertainty, other.nearness), abs=1e-4)


def test_a_change_is_known_by_its_number_and_nothing_has_none(model, gate):
    store, vectors = model.store, model.method.embed(["numbered"])

    async def scenario(engine):
        added = await engine.change(lambda: store.add([Document("numbered", ("sport",), "numbered")], vectors))
        nothing = await engine.change(lambda: store.relabel("numbered", add=["sport"]))
        return added, nothing

    (ids, number), nothing = working(model, scenario)
    assert ids == ["numbered"] and number == model.store.history(1)[0].number and nothing == (0, None)
    model.store.remove("numbered")


def test_a_write_holds_up_neither_predictions_nor_reads(model, gate):
    done = threading.Event()

    async def scenario(engine):
        write = soon(engine.write(lambda: done.wait(PATIENCE)))
        await engine.predict(["meanwhile"], DecisionOptions())
        assert await engine.read(lambda: len(model.store)) > 0 and not write.done()
        done.set()
        return await write

    assert working(model, scenario) is True


def test_a_write_that_has_begun_is_finished_though_nobody_waits_and_before_the_next(model, gate):
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE)
        model.store.add([Document("kept", ("sport",), "kept")], model.method.embed(["kept"]))

    async def scenario(engine):
        write = soon(engine.write(work))
        await until(begun.is_set)
        write.cancel()
        after = soon(engine.write(lambda: "kept" in model.store.ids()))
        await asyncio.sleep(0.05)
        go_on.set()
        return await after

    assert working(model, scenario) is True
    model.store.remove("kept")


def test_a_stop_finishes_what_was_accepted(model, gate):
    async def scenario(engine):
        gate.hold()
        tasks = [soon(engine.predict([text], DecisionOptions())) for text in TEXTS]
        await until(lambda: gate.batches)
        stopping = soon(engine.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        gate.release()
        found = await asyncio.gather(*tasks)
        await stopping
        return found

    assert len(working(model, scenario)) == len(TEXTS)


def test_a_stop_does_not_wait_for_ever(model, gate):
    async def scenario(engine):
        gate.hold()
        task = soon(engine.predict(["stuck"], DecisionOptions()))
        await until(lambda: gate.batches)
        stopping = soon(engine.stop())
        await asyncio.sleep(0.2)  # longer than it has
        assert engine.waiting == 1  # abandoned, but still running
        gate.release()
        await stopping
        task.cancel()
        return stopping.exception()

    assert working(model, scenario, stop_seconds=0.1) is None

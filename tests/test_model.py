"""A model in memory: predictions in order with evidence, thresholds, and changes of the datastore."""

import ctypes
import itertools
import pickle
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import denn
from denn.bundle import add_facts
from denn.errors import BundleError, ConfigError, DataError, StoreError
from denn.prediction_types import Scores
from denn.predictions import SHOWN, WORTH_SHOWING, checked
from denn.text_batches import BATCH, SCORES_BYTES
from denn.types import Where

pytestmark = pytest.mark.slow  # loads a trained model


@pytest.fixture
def model(tiny_model, tmp_path):
    """A copy of the tiny model that may be changed."""
    with denn.load(Path(shutil.copytree(tiny_model, tmp_path / "model"))) as loaded:
        yield loaded


@pytest.fixture
def texts(tiny_corpus) -> list[str]:
    """Texts the model has not seen."""
    return [document.text for document in tiny_corpus.test]


@pytest.mark.parametrize(
    ("where", "value"),
    [
        *((where, value) for where in ("scores", "confidence") for value in (float("nan"), float("inf"), -0.5)),
        *(("classifier scores", value) for value in (float("inf"), -0.5)),
    ],
)
def test_what_is_no_score_is_refused_wherever_it_is(where, value):
    def tensor(name: str, *shape: int) -> torch.Tensor:
        return torch.full(shape, value if name == where else 0.5)

    parts = {name: tensor(f"{name} scores", 2, 3) for name in ("neighbours", "classifier")}
    scores = Scores(tensor("scores", 2, 3), ("a", "b", "c"), parts, tensor("confidence", 2))
    with pytest.raises(BundleError, match=f"The model gives {where} from .*, expected 0 to 1"):
        checked(scores)


def test_of_some_labels_a_witness_may_have_no_idea():
    half, some = torch.full((2, 3), 0.5), torch.tensor([[0.5, float("nan"), 0.5]] * 2)
    scores = Scores(half, ("a", "b", "c"), {"neighbours": half, "words": some})
    assert checked(scores) is scores


def test_a_classifier_that_gives_no_number_is_damaged(model, texts):
    with torch.no_grad():
        model.method.network.head.bias[0] = float("nan")
    with pytest.raises(BundleError, match="classifier's scores are not finite"):
        model.predict(texts)


def test_device_and_precision_can_be_chosen(tiny_model, texts):
    with denn.load(tiny_model) as plain, denn.load(tiny_model, device="cpu", precision="bfloat16") as rough:
        assert (rough.method.parameters.device, rough.method.parameters.precision) == ("cpu", "bfloat16")
        assert rough.card.parameters == plain.card.parameters, "the card says how the model was trained"
        assert rough.scores(texts).final == pytest.approx(plain.scores(texts).final, abs=0.05)
        assert not torch.equal(rough.scores(texts).final, plain.scores(texts).final)
    with pytest.raises(ConfigError, match="device"):
        denn.load(tiny_model, device="tpu")


def test_predictions_are_in_order_and_as_if_alone(model, texts):
    together = model.predict(texts)
    assert [prediction.labels for prediction in model.predict(texts[::-1])] == [p.labels for p in together[::-1]]
    for text, expected in zip(texts, together, strict=True):
        (alone,) = model.predict([text])
        assert alone.labels == expected.labels
        assert dict(alone.scores) == pytest.approx(dict(expected.scores), abs=1e-4)
        assert [n.id for n in alone.neighbours] == [n.id for n in expected.neighbours]


def test_predictions_are_worth_having(model, tiny_corpus):
    assert model.evaluate(tiny_corpus.test).headline["micro_f1"] > 0.7


def test_more_texts_than_one_batch(model, texts):
    many = list(itertools.islice(itertools.cycle(texts), 2 * BATCH + 3))
    expected = [prediction.labels for prediction in model.predict(texts)]
    assert [p.labels for p in model.predict(many)] == [expected[i % len(texts)] for i in range(len(many))]
    scores = model.scores(many)
    assert scores.final.shape == (len(many), len(scores.names))
    assert scores.confidence.shape == (len(many),)
    assert scores.neighbours is None
    torch.testing.assert_close(scores.final[-1], scores.final[(len(many) - 1) % len(texts)], rtol=0, atol=1e-5)


def test_a_stream_reads_no_further_than_it_must(model):
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield f"goal {number}"

    stream = model.stream(endless(), evidence=0)
    assert read == []
    for expected in (BATCH, BATCH, 2 * BATCH):
        for _ in range(BATCH // 2):
            next(stream)
        assert len(read) == expected


def test_what_is_no_text_is_refused_with_its_number(model):
    with pytest.raises(DataError, match=r"Got one string, expected a list of texts"):
        model.predict("one string")
    for table in (pd.DataFrame({"text": ["a goal"]}), {"text": ["a goal"]}):
        with pytest.raises(DataError, match=rf"Got a {type(table).__name__}, .* predict\(table\['text'\]\)"):
            model.predict(table)
    with pytest.raises(DataError, match=f"Text {BATCH + 2} is of type int, expected a string"):
        model.predict(["text"] * (BATCH + 1) + [5])
    with pytest.raises(DataError, match="Text 1 is of type NoneType"):
        model.predict([None])
    with pytest.raises(DataError, match="lone surrogate"):
        model.predict(["goal \ud800"])
    with pytest.raises(DataError, match="no texts"):
        model.scores([])
    assert model.predict([]) == []


def test_a_model_shows_its_folder_and_cannot_be_pickled(model):
    assert repr(model) == f"Model('{model.folder}': denn, 6 labels)"
    with pytest.raises(TypeError, match=r"Pass its folder instead, and call denn\.load"):
        pickle.dumps(model)


@pytest.mark.parametrize(
    "documents",
    [
        pd.DataFrame({"text": ["a goal", "a match"], "labels": [["sport"], ["brand new"]]}),
        [{"text": "a goal", "labels": ["sport"]}, {"text": "a match", "labels": ["brand new"]}],
        [("a goal", ["sport"]), ("a match", ["brand new"])],
    ],
    ids=["frame", "dicts", "pairs"],
)
def test_documents_to_add_come_in_any_form(model, documents):
    for _ in range(2):  # ids are assigned by the store, so that the second time replaces nothing
        added = model.store.get(model.add(documents))
        assert [(one.text, one.labels) for one in added] == [("a goal", ("sport",)), ("a match", ("brand new",))]
    assert len(model.store) == 64


def test_documents_to_add_that_are_not_documents_are_refused(model):
    for wrong, message in (
        (denn.Document("a goal", ["sport"]), "documents: got Document"),
        (["a goal"], "documents, row 1"),
    ):
        with pytest.raises(DataError, match=message):
            model.add(wrong)


def test_evaluation_warns_if_the_model_knows_no_label_of_the_documents(model, texts, caplog):
    model.evaluate([denn.Document(texts[0], ["Sport"]), denn.Document(texts[1], ["sport"])])
    assert "knows none" not in caplog.text
    model.evaluate([denn.Document(texts[0], ["Sport"]), denn.Document(texts[1], [])])
    assert "The model knows none of the labels of these documents: 'Sport'. Its own are 'sport'" in caplog.text


def test_a_threshold_of_ones_own(model, texts):
    scores = model.scores(texts)
    for threshold in (0.0, 0.2, 0.9, 1.0):
        for row, prediction in enumerate(model.predict(texts, threshold=threshold)):
            expected = {name for c, name in enumerate(scores.names) if float(scores.final[row, c]) > threshold}
            assert set(prediction.labels) == expected
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ConfigError, match="must be a number from 0 to 1"):
            model.predict(texts, threshold=wrong)


def test_a_model_can_decide_with_a_threshold_per_label(model, texts, monkeypatch):
    expected = [prediction.labels for prediction in model.predict(texts, per_label=True)]
    tuned = model.card.thresholds["final"]
    assert model.label_thresholds(model.labels.names) == [tuned.overall] * len(tuned.per_label)
    own = tuned.model_copy(update={"decides": "per_label"})
    card = model.card.model_copy(update={"thresholds": {**model.card.thresholds, "final": own}})
    monkeypatch.setattr(model, "card", card)
    assert [prediction.labels for prediction in model.predict(texts)] == expected
    assert model.label_thresholds(model.labels.names) == pytest.approx(tuned.per_label)
    assert [prediction.labels for prediction in model.predict(texts, threshold=1.0)] == [()] * len(texts)


def test_thresholds_per_label(model, texts):
    tuned = model.card.thresholds["final"]
    assert len(set(tuned.per_label)) > 1
    model.add([denn.Document("goal", ("new label",), "new")])
    scores = model.scores(texts)
    cuts = [*tuned.per_label, tuned.overall]
    for row, prediction in enumerate(model.predict(texts, per_label=True)):
        expected = {name for c, name in enumerate(scores.names) if float(scores.final[row, c]) > torch.tensor(cuts)[c]}
        assert set(prediction.labels) == expected


def test_at_least_so_many_labels(model, texts):
    scores = model.scores(texts)
    for row, prediction in enumerate(model.predict(texts, threshold=1.0, min_labels=2)):
        best = scores.final[row].argsort(descending=True, stable=True)[:2].tolist()
        assert prediction.labels == tuple(scores.names[column] for column in best)
    assert all(len(p.labels) == len(scores.names) for p in model.predict(texts, min_labels=99))


def test_the_scores_worth_showing(model, texts):
    model.add([denn.Document(texts[0], tuple(f"label {i}" for i in range(2 * SHOWN)), "many")])
    scores = model.scores(texts[:3])
    for row, prediction in enumerate(model.predict(texts[:3])):
        values = dict(zip(scores.names, scores.final[row].tolist(), strict=True))
        shown = sorted(values, key=values.get, reverse=True)[:SHOWN]
        worth = {name for name in shown if values[name] >= WORTH_SHOWING}
        assert len(prediction.scores) <= max(SHOWN, len(prediction.labels))
        assert set(prediction.labels) <= set(prediction.scores)
        assert len(prediction.scores) >= len(worth)
        lowest = min(values[name] for name in worth)
        assert all(values[name] >= lowest or name in prediction.labels for name in prediction.scores)


def test_neighbours_come_nearest_first_with_their_texts(model, texts, tiny_corpus):
    stored = {document.id: document for document in tiny_corpus.train}
    for prediction in model.predict(texts):
        assert len(prediction.neighbours) == 5
        similarities = [neighbour.similarity for neighbour in prediction.neighbours]
        assert similarities == sorted(similarities, reverse=True)
        for neighbour in prediction.neighbours:
            document = stored[neighbour.id]
            assert (neighbour.text, set(neighbour.labels)) == (document.text, set(document.labels))
    (own,) = model.predict([tiny_corpus.train[0].text])
    assert own.neighbours[0].text == tiny_corpus.train[0].text
    assert own.neighbours[0].similarity == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("limit", [0, 1, 3, 99])
def test_evidence_can_be_limited(model, texts, limit):
    whole = model.predict(texts[:4])
    for full, limited in zip(whole, model.predict(texts[:4], evidence=limit), strict=True):
        assert limited.neighbours == full.neighbours[:limit]
        assert (limited.labels, limited.scores) == (full.labels, full.scores)


def test_a_documents_own_copy_does_not_count_as_a_neighbour(model, tiny_corpus):
    own = tiny_corpus.train[:4]
    scores = model.score([document.text for document in own], [document.id for document in own])
    whole = model.neighbours(scores, None)
    assert [neighbours[:3] for neighbours in whole] == model.neighbours(scores, 3)
    assert [len(neighbours) for neighbours in whole] == [5] * 4
    assert all(document.id not in {one.id for one in row} for document, row in zip(own, whole, strict=True))


def test_a_negative_number_of_neighbours_is_refused(model, texts):
    with pytest.raises(ConfigError, match=r"evidence must be a number of neighbours, 0 or more, .*, not -1"):
        model.predict(texts, evidence=-1)


def test_texts_to_score_are_checked_as_texts_to_predict(model, texts):
    with pytest.raises(DataError, match=r"Got one string, expected a list of texts. Write scores\(\[text\]\)"):
        model.scores(texts[0])
    assert torch.equal(model.scores(np.array(texts)).final, model.scores(texts).final)
    with pytest.raises(DataError, match="no texts"):
        model.scores(np.array([]))


def test_new_documents_and_labels_are_seen_at_once_and_survive(model, tmp_path):
    text = "hurricane violin oven ryokan"
    documents = [denn.Document(f"{text} {word}", ("brand new", "日本 新"), None) for word in ("", "old", "new", "very")]
    before = model.predict([text])[0]
    ids = model.add(documents)
    assert len(set(ids)) == 4
    after = model.predict([text])[0]
    assert "brand new" not in before.scores
    assert {"brand new", "日本 新"} <= set(after.labels)
    assert set(ids) & {neighbour.id for neighbour in after.neighbours}
    with denn.load(tmp_path / "model") as again:
        assert again.predict([text])[0] == after
        assert again.labels == model.labels
    assert model.remove(ids) == 4
    gone = model.predict([text])[0]
    assert gone.labels == before.labels
    assert gone.neighbours == before.neighbours
    with pytest.raises(StoreError, match="has no document with the id"):
        model.remove(ids[:1])


def test_neighbours_show_what_was_rejected_and_scores_stay(model, tiny_corpus):
    text, id = tiny_corpus.train[0].text, tiny_corpus.train[0].id
    before = model.predict([text])[0]
    model.store.relabel(id, reject=["unheard of"])
    after = model.predict([text])[0]
    assert [one.rejected for one in before.neighbours] == [()] * 5
    assert {one.id: one.rejected for one in after.neighbours if one.rejected} == {id: ("unheard of",)}
    assert [one.labels for one in after.neighbours] == [one.labels for one in before.neighbours]
    assert after.scores == pytest.approx(before.scores) and after.labels == before.labels


def test_changes_say_where_they_come_from(model):
    ids = model.add([denn.Document("goal", ("new",))], source="desk")
    model.remove(Where(labels=("new",)), source="cleaning")
    removed, added = model.store.history(2)
    assert (added.action, added.source, added.documents) == ("add", "desk", 1)
    assert (removed.action, removed.source, removed.documents) == ("remove", "cleaning", 1)
    assert not set(ids) & set(model.store.ids())


@pytest.fixture
def weather(model) -> list[denn.Document]:
    """Twenty documents of a label that the model was not trained on, in its datastore."""
    words = ("hurricane", "barometer", "drizzle")
    documents = [
        denn.Document(f"{a} {b} {'very ' * times}", ("storm",), f"storm-{a}-{b}-{times}")
        for a, b in itertools.permutations(words, 2)
        for times in range(4)
    ][:20]
    model.add(documents)
    return documents


def test_a_new_label_is_decided_by_its_own_threshold_unless_one_is_given(model, texts, weather):
    texts = [*texts, *(document.text for document in weather)]
    scores, tuned = model.scores(texts), model.card.thresholds["final"]
    (own,) = model.later_thresholds(scores)["final"].tolist()
    assert own != pytest.approx(tuned.overall, abs=0.01)
    known = len(model.labels)
    for arguments, cuts in (
        ({}, [*[tuned.overall] * known, own]),
        ({"per_label": True}, [*tuned.per_label, own]),
        ({"threshold": 0.1}, [0.1] * (known + 1)),
        ({"threshold": 0.1, "per_label": True}, [0.1] * (known + 1)),
    ):
        for row, prediction in enumerate(model.predict(texts, **arguments)):
            expected = {name for c, name in enumerate(scores.names) if scores.final[row, c] > torch.tensor(cuts)[c]}
            assert set(prediction.labels) == expected
    assert all("storm" in prediction.labels for prediction in model.predict([d.text for d in weather]))


def test_evaluation_decides_new_labels_as_predictions_do(model, weather, tiny_corpus):
    documents = [*tiny_corpus.test, *(denn.Document(f"{d.text} old", d.labels) for d in weather)]
    found = model.evaluate(documents)
    given = [set(prediction.labels) for prediction in model.predict([document.text for document in documents])]
    for column, name in enumerate(found.names):
        rows = [row for row, labels in enumerate(given) if name in labels]
        assert int(found.table.predicted[column]) == len(rows)
        assert int(found.table.true_positives[column]) == sum(name in documents[row].labels for row in rows)
    assert int(found.table.true_positives[found.names.index("storm")]) >= 18
    assert found.headline["threshold"] == model.card.thresholds["final"].overall
    assert found.unknown_labels == 0


def test_documents_of_a_new_label_change_no_score_where_none_of_them_is_near(model, texts, request):
    before = model.method.scores(texts)
    request.getfixturevalue("weather")
    after = model.method.scores(texts)
    far = [row for row, ids in enumerate(after.neighbours.ids) if not any(id.startswith("storm") for id in ids)]
    assert len(texts) > len(far) > 5
    for row in far:
        assert after.neighbours.ids[row] == before.neighbours.ids[row]
        # One more column: a CPU may divide the work differently and round the last bit.
        torch.testing.assert_close(after.final[row, :-1], before.final[row], rtol=1e-6, atol=1e-7)
        assert after.final[row, -1] == 0
        assert torch.equal(after.confidence[row], before.confidence[row])


def peak() -> int:
    """Return the most bytes that this process had in memory since the last call.

    Free memory is returned first: otherwise reusing it would not be counted.
    """
    status = Path("/proc/self/status").read_text()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone tells the peak of a process")
def test_a_hundred_thousand_labels_are_scored_in_bounded_memory(model):
    model.add([denn.Document("drizzle", tuple(f"label {number}" for number in range(100_000)), "many")])
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield f"goal match team {number % 7}"

    model.predict(["goal"])  # one-time allocations do not count
    peak()
    settled = peak()
    prediction = next(model.stream(endless(), evidence=0))
    assert not any(label.startswith("label") for label in prediction.labels)
    assert BATCH / 4 < len(read) < BATCH
    assert len(read) * 100_000 * 4 < peak() - settled < 1.1 * SCORES_BYTES


def test_an_id_that_exists_is_replaced(model):
    count = len(model.method.store)
    model.add([denn.Document("goal", ("changed",), "train-0")])
    assert len(model.method.store) == count
    (nearest,) = model.predict(["goal"], evidence=1)[0].neighbours
    assert (nearest.id, nearest.labels) == ("train-0", ("changed",))


def test_a_document_that_goes_between_search_and_text_is_left_out(model, texts):
    store = model.method.store
    whole = model.predict(texts[:2])
    gone = whole[0].neighbours[1].id

    class Racing:
        """The store, with another process that removes a document after each search."""

        def __getattr__(self, name: str):
            return getattr(store, name)

        def search(self, *arguments: object):
            found = store.search(*arguments)
            if gone in store.ids():
                store.remove([gone])
            return found

    model.method.store = Racing()
    raced = model.predict(texts[:2])
    for before, after in zip(whole, raced, strict=True):
        assert after.neighbours == tuple(n for n in before.neighbours if n.id != gone)
        assert after.labels == before.labels


def test_evaluation_can_leave_out_a_documents_own_copy(model, tiny_corpus):
    copied = model.evaluate(tiny_corpus.train).systems["neighbours"]["tuned"]["micro_f1"]
    honest = model.evaluate(tiny_corpus.train, stored=True).systems["neighbours"]["tuned"]["micro_f1"]
    assert copied > honest


def test_evaluation_of_nothing_is_refused(model):
    with pytest.raises(DataError, match="no texts"):
        model.evaluate([])


def test_a_method_without_a_datastore_says_so(tiny_corpus, tmp_path):
    with denn.train(tiny_corpus, method="dummy", out=tmp_path / "model") as model:
        (prediction,) = model.predict(["goal"], min_labels=1)
        assert (prediction.confidence, prediction.neighbours) == (None, ())
        assert len(prediction.labels) >= 1
        assert model.evaluate(tiny_corpus.test).confidence is None
        for change in (lambda: model.add([denn.Document("goal")]), lambda: model.remove(["train-0"])):
            with pytest.raises(StoreError, match=r"keeps no datastore\. Train with a method that does"):
                change()


def test_copies_in_the_datastore_are_noticed_where_they_do_not_decide(tiny_model, tiny_corpus, tmp_path, caplog):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "by-confidence"))
    add_facts(folder, parameters={"combination": "confidence"})
    with denn.load(folder) as model:
        model.evaluate([*tiny_corpus.train[:3], *tiny_corpus.test])
    assert "The datastore contains 3 of these 23 documents, so the scores are too good" in caplog.text


def test_evaluation_reads_what_a_corpus_can_be_read_from(model, tiny_corpus):
    frame = pd.DataFrame([{"text": d.text, "labels": list(d.labels)} for d in tiny_corpus.test])
    expected = model.evaluate(tiny_corpus.test).as_dict()
    assert model.evaluate(frame).as_dict() == expected
    assert model.evaluate([(d.text, d.labels) for d in tiny_corpus.test]).as_dict() == expected
    with pytest.raises(DataError, match="there is no column 'labels'; found: 'text', 'tags'"):
        model.evaluate(frame.rename(columns={"labels": "tags"}))

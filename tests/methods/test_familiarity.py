"""Familiarity of texts: the position among the quantiles, their file, and predictions."""

import json
import shutil

import pytest
import torch

import denn
from denn.errors import BundleError
from denn.evaluation import concatenate, share_unfamiliar
from denn.methods.familiarity import FILE, NEAREST, Familiarity, among_stored, nearness
from denn.prediction_types import UNFAMILIAR, Prediction, Scores
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document

NONE = float("-inf")
STRANGE = "zebra crossing painter"  # no word of the tiny corpus


def test_nearness_is_the_mean_of_the_five_nearest_that_are_there():
    similarity = torch.tensor(
        [
            [0.9, 0.8, 0.7, 0.6, 0.5, 0.4],
            [0.9, NONE, 0.7, 0.6, 0.5, 0.4],  # its own document is left out
            [0.9, 0.8, NONE, NONE, NONE, NONE],
            [NONE] * 6,
        ]
    )
    assert nearness(similarity).tolist() == pytest.approx([0.7, 0.62, 0.85, NONE])
    assert nearness(torch.empty(2, 0)).tolist() == [NONE, NONE]


def test_familiarity_is_the_share_of_documents_with_farther_neighbours():
    ordinary = torch.rand(5_000, 8, generator=torch.Generator().manual_seed(0)).sort(1, descending=True).values
    others = torch.rand(200, 8, generator=torch.Generator().manual_seed(1)).sort(1, descending=True).values
    table = Familiarity.measure(ordinary)
    for familiarity, near in zip(table.of(others).tolist(), nearness(others).tolist(), strict=True):
        farther = float((nearness(ordinary) < near).float().mean())
        assert familiarity == pytest.approx(farther, abs=0.01)
    order = nearness(others).argsort()
    assert (table.of(others)[order].diff() >= 0).all()
    assert (table.of(ordinary) < UNFAMILIAR).float().mean() == pytest.approx(UNFAMILIAR, abs=0.001)


def test_the_nearest_and_the_farthest_are_one_and_nought():
    table = Familiarity.measure(torch.tensor([[0.2], [0.3], [0.7]]))
    assert table.of(torch.tensor([[-1.0], [0.1], [0.3], [0.7], [0.9], [NONE]])).tolist() == pytest.approx(
        [0, 0, 0.5, 1, 1, 0], abs=1e-4
    )
    copies = Familiarity.measure(torch.ones(9, 5))
    assert copies.of(torch.tensor([[1.0], [1 - 1e-6], [0.99]])).tolist() == [1, 1, 0]


def test_without_neighbours_there_is_nothing_to_measure():
    assert Familiarity.measure(torch.full((3, 5), NONE)) is None
    assert Familiarity.measure(torch.empty(0, 5)) is None


@pytest.mark.parametrize("k", [1, NEAREST, 30])
def test_stored_documents_are_not_their_own_neighbours(tmp_path, k):
    vectors = torch.nn.functional.normalize(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    with EmbeddedStore.create(tmp_path / "store.sqlite", 4, ("a",)) as store:
        store.add([Document(f"text {row}", ("a",)) for row in range(12)], vectors)
        found = among_stored(store, k, seed=0)
    cosines = (vectors @ vectors.T).fill_diagonal_(NONE).topk(min(k, NEAREST)).values
    assert sorted(nearness(found).tolist()) == pytest.approx(sorted(nearness(cosines).tolist()), abs=1e-5)


def test_what_is_written_is_read_again(tmp_path):
    table = Familiarity.measure(torch.rand(50, 5))
    table.save(tmp_path)
    again = Familiarity.load(tmp_path)
    assert again.quantiles.tolist() == pytest.approx(table.quantiles.tolist(), abs=1e-6)
    (tmp_path / FILE).unlink()
    assert Familiarity.load(tmp_path) is None


GOOD = [place / 200 for place in range(101)]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "expected an object"),
        ({}, "expected 101 numbers"),
        ({"quantiles": GOOD[1:]}, "expected 101 numbers"),
        ({"quantiles": [*GOOD[:-1], float("nan")]}, "expected 101 numbers"),
        ({"quantiles": [*GOOD[:-1], float("inf")]}, "expected 101 numbers"),
        ({"quantiles": [*GOOD[:-1], 1.5]}, "expected 101 numbers"),
        ({"quantiles": [*GOOD[:-1], 10**400]}, "expected 101 numbers"),
        ({"quantiles": [*GOOD[:-1], "0.9"]}, "expected 101 numbers"),
        ({"quantiles": [*GOOD[:-1], True]}, "expected 101 numbers"),
        ({"quantiles": dict.fromkeys(map(str, GOOD))}, "expected 101 numbers"),
        ({"quantiles": GOOD[::-1]}, "ascending order"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, expected):
    (tmp_path / FILE).write_text(json.dumps(content))
    with pytest.raises(BundleError, match=expected):
        Familiarity.load(tmp_path)


def prediction(familiarity: float | None, same_text: str | None = None) -> Prediction:
    return Prediction((), {}, None, (), same_text=same_text, familiarity=familiarity)


def test_a_text_is_unfamiliar_below_a_level_unless_it_is_stored():
    assert prediction(0.0).unfamiliar
    assert prediction(UNFAMILIAR - 1e-6).unfamiliar
    assert not prediction(UNFAMILIAR).unfamiliar
    assert not prediction(None).unfamiliar
    assert not prediction(0.0, same_text="taught").unfamiliar


def test_scores_carry_familiarity_through_rows_and_batches():
    def batch(values: list[float], same: tuple[str | None, ...] = ()) -> Scores:
        return Scores(torch.zeros(len(values), 1), ("a",), familiarity=torch.tensor(values), same_text=same)

    joined = concatenate([batch([0.0, 0.5]), batch([0.01, 0.0], same=(None, "taught"))])
    assert joined.familiarity.tolist() == pytest.approx([0, 0.5, 0.01, 0])
    assert joined.rows(1, 3).familiarity.tolist() == pytest.approx([0.5, 0.01])
    assert share_unfamiliar(joined) == 0.5
    assert share_unfamiliar(Scores(torch.zeros(2, 1), ("a",))) is None
    assert concatenate([Scores(torch.zeros(2, 1), ("a",))]).familiarity is None


@pytest.mark.slow
def test_a_model_measures_familiarity_when_it_is_written(tiny_model, tmp_path):
    shutil.copytree(tiny_model, tmp_path / "model")
    with denn.load(tmp_path / "model") as model:
        documents = model.store.get(model.store.ids())
        own = model.scores([d.text for d in documents], [d.id for d in documents])
        assert float(own.familiarity.mean()) == pytest.approx(0.5, abs=0.03)
        ordinary, strange = model.predict([documents[0].text[:-1], STRANGE])
        assert ordinary.familiarity > strange.familiarity
        (tmp_path / "model" / FILE).write_text("{}")
    with pytest.raises(BundleError, match="changed since it was written"):
        denn.load(tmp_path / "model")


@pytest.mark.slow
def test_a_model_without_validation_documents_gets_it_and_an_earlier_one_has_none(tiny_corpus, tiny_settings, tmp_path):
    corpus = denn.Corpus(tiny_corpus.train)
    with denn.train(corpus, out=tmp_path / "model", **{**tiny_settings, "epochs": 1}) as model:
        assert 0 <= model.predict([STRANGE])[0].familiarity <= 1
    card = json.loads((tmp_path / "model" / "bundle.json").read_text())
    del card["digests"][FILE]
    (tmp_path / "model" / "bundle.json").write_text(json.dumps(card))
    (tmp_path / "model" / FILE).unlink()
    with denn.load(tmp_path / "model") as model:
        (earlier,) = model.predict([STRANGE])
        assert earlier.familiarity is None
        assert not earlier.unfamiliar
        assert model.evaluate(corpus.train).as_dict()["unfamiliar"] is None

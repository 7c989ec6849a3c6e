"""The model of `learnt`: monotone for any weights, the same in both forms, and careful with labels it cannot know."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_witnesses import made

from denn.combiners import additive, cells, mean_known
from denn.combiners.additive import Additive
from denn.core.combine import less_rejected, vote
from denn.errors import BundleError
from denn.prediction_types import Context

WITNESSES = ("classifier", "neighbours", "words")
scores = st.one_of(st.sampled_from([0.0, 0.5, 0.7, 1.0]), st.floats(0, 1, width=32))


@st.composite
def models(draw, witnesses):
    """Draw a model with any weights within their bounds, not only those of a fit."""
    drawn = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    knots = tuple(
        tuple((20 * torch.rand(additive.RAMPS + 1, generator=drawn) - 10).sort().values.tolist()) for _ in witnesses
    )
    frequencies = tuple(sorted(draw(st.sets(st.integers(0, 12), min_size=1, max_size=4))))
    mass = draw(st.sampled_from([-20.0, -8.0, 1.0])) if "neighbours" in witnesses else None
    blank = Additive(witnesses, knots, frequencies, mass, (), (1.0, -2.0))
    _, positive = blank._prior()
    weights = 10 * torch.rand(len(positive), generator=drawn) - 5
    few = torch.rand(len(positive), generator=drawn) < draw(st.sampled_from([0.02, 0.2, 1.0]))
    bounded = torch.where(few, weights.clamp(min=0), 0.0)  # few of these help, so a leaking statistic would show
    return replace(blank, weights=tuple(torch.where(positive, bounded, weights).tolist()))


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), st.sampled_from([WITNESSES, WITNESSES[:2], ("words",), ("neighbours", "words")]))
def test_raising_a_score_of_a_label_never_lowers_its_result(data, witnesses):
    model, width = data.draw(models(witnesses)), data.draw(st.integers(1, 5))
    parts = {name: torch.tensor([[data.draw(scores) for _ in range(width)]]) for name in witnesses}
    context = Context(torch.tensor([data.draw(st.integers(0, 5000)) for _ in range(width)]), torch.rand(1, 3))
    before = model.combine(parts, context)
    label, raised = data.draw(st.integers(0, width - 1)), data.draw(st.sampled_from(witnesses))
    higher = parts[raised].clone()
    higher[0, label] = data.draw(st.floats(float(higher[0, label]), 1, width=32))
    after = model.combine({**parts, raised: higher}, context)
    assert bool(((before >= 0) & (before <= 1)).all())
    assert float(after[0, label]) >= float(before[0, label]) - 1e-6


@pytest.mark.slow
@settings(max_examples=200)
@given(st.data(), st.sampled_from([WITNESSES, ("neighbours",), ("neighbours", "words")]))
def test_a_taught_document_raises_its_own_labels_and_no_others(data, witnesses):
    """For any weights: it replaces the farthest neighbour, or is added to them."""
    model, width, k = data.draw(models(witnesses)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    parts = {name: torch.tensor([[data.draw(scores) for _ in range(width)]]) for name in witnesses}
    counts = torch.tensor([data.draw(st.integers(0, 5000)) for _ in range(width)])
    stored = sorted(data.draw(st.lists(st.floats(-0.2, 0.9), min_size=1, max_size=k)), reverse=True)
    has = torch.tensor([[data.draw(st.booleans()) for _ in range(width)] for _ in stored])
    own, similarity = torch.tensor([data.draw(st.booleans()) for _ in range(width)]), data.draw(st.floats(0.9, 1))

    rejects = torch.tensor([data.draw(st.booleans()) for _ in range(width)]) & ~own

    def final(similarities, labels, rejected):
        near = torch.tensor([similarities])[:, :k]
        votes = vote(near, labels[None, :k].float(), 0.05)
        votes = less_rejected(votes, vote(near, rejected[None, :k].float(), 0.05), 3.0)
        return model.combine({**parts, "neighbours": votes}, Context(counts, near))[0]

    none = torch.zeros_like(has)
    before = final(stored, has, none)
    after = final([similarity, *stored], torch.cat([own[None], has]), torch.cat([rejects[None], none]))
    assert bool(torch.where(own, after >= before - 1e-6, after <= before + 1e-6).all())


def test_a_fitted_model_is_monotone_in_every_witness():
    parts, gold, context = made()
    model = Additive.fit(parts, gold, context)
    before = model.combine(parts, context)
    draw = torch.Generator().manual_seed(1)
    for name in parts:
        for label in range(gold.shape[1]):
            higher = parts[name].clone()
            higher[:, label] += (1 - higher[:, label]) * torch.rand(len(gold), generator=draw)
            after = model.combine({**parts, name: higher}, context)
            assert bool((after[:, label] >= before[:, label] - 1e-6).all())


@pytest.mark.slow
@given(st.data(), st.sampled_from([WITNESSES, ("neighbours",), ("classifier", "words")]))
def test_the_fast_form_is_the_weighted_sum_of_the_features(data, witnesses):
    model = data.draw(models(witnesses))
    parts, gold, context = made(7, 4, witnesses, seed=data.draw(st.integers(0, 99)))
    context = replace(context, similarity=torch.rand(7, 3))
    rows, columns = torch.ones_like(gold).nonzero(as_tuple=True)
    features = model._design(parts, context, rows, columns)
    expected = (features.double() @ torch.tensor(model.weights, dtype=torch.float64)).view(gold.shape)
    expected[:, :2] += torch.tensor([1.0, -2.0])
    torch.testing.assert_close(
        model._logits(parts, context, model._terms(context)).double(), expected, atol=1e-3, rtol=1e-4
    )


def test_without_anything_learnt_it_is_the_mean():
    parts, gold, context = made()
    fitted = Additive.fit(parts, gold, context)
    model = replace(fitted, weights=tuple(fitted._prior()[0].tolist()), offsets=())
    torch.testing.assert_close(model.combine(parts, context), mean_known(parts), atol=1e-5, rtol=1e-4)


def test_blocks_of_texts_change_nothing(monkeypatch):
    parts, gold, context = made()
    model = Additive.fit(parts, gold, context)
    whole = model.combine(parts, context)
    monkeypatch.setattr(additive, "BLOCK", 30)
    torch.testing.assert_close(model.combine(parts, context), whole)


def test_a_sample_of_the_cells_fits_nearly_the_same(monkeypatch):
    parts, gold, context = made(2000, 20)
    whole = Additive.fit(parts, gold, context).combine(parts, context)
    monkeypatch.setattr(cells, "CELLS", 12_000)
    assert float((Additive.fit(parts, gold, context).combine(parts, context) - whole).abs().mean()) < 0.01


def test_later_labels_get_the_mean_and_change_no_other_score():
    parts, gold, context = made()
    model = Additive.fit(parts, gold, context)
    before = model.combine(parts, context)
    later = {
        name: torch.cat([part, torch.full((len(gold), 2), 0.8 if name == "neighbours" else math.nan)], 1)
        for name, part in parts.items()
    }
    counts = torch.cat([context.label_counts, torch.tensor([1, 2])])
    after = model.combine(later, replace(context, label_counts=counts))
    torch.testing.assert_close(after[:, :-2], before)
    torch.testing.assert_close(after[:, -2:], torch.full((len(gold), 2), 0.8))


def test_texts_without_neighbours_are_far():
    parts, gold, context = made()
    model = Additive.fit(parts, gold, context)
    nothing = model.combine(parts, replace(context, similarity=torch.full_like(context.similarity, -torch.inf)))
    assert bool(nothing.isfinite().all())
    assert torch.equal(model.combine(parts, replace(context, similarity=torch.zeros(len(gold), 0))), nothing)


def test_no_texts():
    parts, gold, context = made()
    model = Additive.fit(parts, gold, context)
    none = {name: part[:0] for name, part in parts.items()}
    assert model.combine(none, context.rows(slice(0, 0))).shape == (0, gold.shape[1])
    no_labels = {name: part[:, :0] for name, part in parts.items()}
    assert model.combine(no_labels, replace(context, label_counts=torch.zeros(0))).shape == (len(gold), 0)


def written(model):
    return json.loads(json.dumps(model.as_dict()))


def test_as_json_and_back():
    parts, gold, context = made()
    model = Additive.fit(parts, gold, context)
    assert Additive.from_dict(written(model), "x") == model


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights", [1.0]),
        ("weights", "many"),
        ("weights", [10**400]),
        ("weights", None),
        ("offsets", [None]),
        ("knots", [[0.0, 1.0]]),
        ("knots", 3),
        ("frequencies", []),
        ("frequencies", [2.0, 1.0]),
        ("usual_mass", None),
        ("usual_mass", [1.0]),
        ("usual_mass", math.inf),
        ("witnesses", ["words", "words", "words"]),
        ("witnesses", [1, 2, 3]),
    ],
)
def test_damage_is_one_sentence(field, value):
    parts, gold, context = made()
    content = written(Additive.fit(parts, gold, context))
    with pytest.raises(BundleError, match=r"^x does not contain a usable combiner"):
        Additive.from_dict({**content, field: value}, "x")


def test_negative_weights_of_a_witness_are_refused():
    parts, gold, context = made()
    content = written(Additive.fit(parts, gold, context))
    content["weights"] = [*content["weights"][:-1], -0.1]
    with pytest.raises(BundleError, match="a weight is negative"):
        Additive.from_dict(content, "x")

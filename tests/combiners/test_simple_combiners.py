"""The mean and the paper's λ: their results, and that scores do not change between versions."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from denn.combiners import mean_known
from denn.combiners.average import Average
from denn.combiners.confidence import Confidence
from denn.core.combine import combine_known, debiased_confidence
from denn.prediction_types import Context

NAN = float("nan")


@given(st.integers(0, 10_000), st.integers(0, 5), st.integers(1, 20), st.integers(0, 4), st.integers(0, 6))
def test_confidence_is_equations_11_to_13(seed, texts, known, later, k):
    draw = torch.Generator().manual_seed(seed)
    classifier, votes = torch.rand(texts, known, generator=draw), torch.rand(texts, known + later, generator=draw)
    similarity = torch.rand(texts, k, generator=draw).sort(descending=True).values
    if texts and k:
        similarity[0] = -torch.inf  # a text without neighbours
    confidence = debiased_confidence(classifier, votes[:, :known], 0.6)
    confidence = confidence.where(similarity.isfinite().any(1), 0.0)
    parts = {"classifier": torch.nn.functional.pad(classifier, (0, later), value=NAN), "neighbours": votes}
    final = Confidence().combine(parts, Context(torch.ones(known + later), similarity, gamma=0.6))
    assert torch.equal(final, combine_known(classifier, votes, confidence))


def test_the_mean_of_those_who_know():
    parts = {
        "classifier": torch.tensor([[0.2, NAN, NAN]]),
        "neighbours": torch.tensor([[0.4, 0.5, NAN]]),
        "words": torch.tensor([[0.9, NAN, NAN]]),
    }
    torch.testing.assert_close(mean_known(parts), torch.tensor([[0.5, 0.5, 0.0]]))


def test_labels_unknown_to_the_classifier_get_the_votes_wherever_they_are():
    classifier, votes = torch.tensor([[NAN, 0.9, NAN, 0.2]]), torch.tensor([[0.4, 0.5, 0.3, 0.1]])
    parts = {"classifier": classifier, "neighbours": votes}
    final = Confidence().combine(parts, Context(torch.ones(4), torch.ones(1, 1), gamma=0.7))
    torch.testing.assert_close(final, torch.tensor([[0.4, 0.7, 0.3, 0.15]]))  # λ = 0.5


def test_averages_are_their_own_held_out_scores(tmp_path):
    parts = {"classifier": torch.rand(4, 3), "neighbours": torch.rand(4, 3)}
    for kind in (Average, Confidence):
        combiner, context = kind(), Context(torch.ones(3), torch.rand(4, 2))
        assert combiner.fit(parts, torch.zeros(4, 3, dtype=torch.bool), context) == {}
        combiner.save(tmp_path)
        assert torch.equal(combiner.held_out, kind.load(tmp_path).combine(parts, context))

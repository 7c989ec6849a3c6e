"""Votes, confidence and combination against sums written out in loops, and the sparse form against the dense one."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from denn.core.combine import combine, combine_known, debiased_confidence, less_rejected, vote, vote_sparse

temperatures = st.sampled_from([0.01, 0.05, 1.0, 100.0])
gammas = st.sampled_from([0.0, 0.25, 0.75, 1.0])


@st.composite
def neighbourhoods(draw, dtype=torch.float32):
    """Draw similarity (n,k), nearest first and −inf from some place on, with labels (n,k,L)."""
    n, k, width = draw(st.integers(0, 4)), draw(st.integers(0, 5)), draw(st.integers(0, 4))
    cosine = st.floats(-1, 1, width=32)
    similarity = torch.full((n, k), -math.inf, dtype=dtype)
    for row in similarity:
        found = sorted(draw(st.lists(cosine, max_size=k)), reverse=True)
        row[: len(found)] = torch.tensor(found, dtype=dtype)
    cells = draw(st.lists(st.booleans(), min_size=n * k * width, max_size=n * k * width))
    return similarity, torch.tensor(cells, dtype=torch.bool).view(n, k, width)


@st.composite
def score_pairs(draw):
    """Draw classifier scores and votes, both (n,L) in [0,1], with zeros, ones and equal values among them."""
    n, width = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    value = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1, width=32))
    cells = st.lists(value, min_size=n * width, max_size=n * width)
    return tuple(torch.tensor(draw(cells), dtype=torch.float32).view(n, width) for _ in range(2))


def vote_in_loops(similarity, labels, temperature):
    n, k, width = labels.shape
    votes = torch.zeros(n, width, dtype=torch.float64)
    for text in range(n):
        found = [j for j in range(k) if similarity[text, j] != -math.inf]
        terms = {j: math.exp((float(similarity[text, j]) - 1) / temperature) for j in found}
        for j in found:
            for label in range(width):
                votes[text, label] += terms[j] / sum(terms.values()) * float(labels[text, j, label])
    return votes


def sparse(labels):
    """Return the offsets and label columns of `prediction_types.Neighbours` for labels (n,k,L)."""
    counts = labels.bool().sum(2).flatten()
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0)), labels.nonzero()[:, 2]


@given(neighbourhoods(torch.float64), temperatures)
def test_vote_equals_the_sum_written_out(found, temperature):
    similarity, labels = found
    expected = vote_in_loops(similarity, labels, temperature)
    torch.testing.assert_close(vote(similarity, labels.double(), temperature), expected)


@given(neighbourhoods(), temperatures)
def test_sparse_vote_equals_the_dense_one(found, temperature):
    similarity, labels = found
    dense = vote(similarity, labels, temperature)
    votes = vote_sparse(similarity, *sparse(labels), labels.shape[2], temperature)
    assert votes.dtype == dense.dtype
    torch.testing.assert_close(votes, dense)


@given(neighbourhoods(), temperatures)
def test_votes_are_between_zero_and_one(found, temperature):
    similarity, labels = found
    dense = vote(similarity, labels, temperature)
    votes = vote_sparse(similarity, *sparse(labels), labels.shape[2], temperature)
    assert ((dense >= 0) & (dense <= 1) & (votes >= 0) & (votes <= 1)).all()


@given(neighbourhoods(torch.float64), temperatures, st.randoms(use_true_random=False))
def test_vote_ignores_the_order_of_neighbours_and_follows_that_of_texts_and_labels(found, temperature, random):
    similarity, labels = found
    texts, neighbours, columns = (random.sample(range(size), size) for size in labels.shape)
    moved = vote(similarity[texts][:, neighbours], labels[texts][:, neighbours][:, :, columns], temperature)
    torch.testing.assert_close(moved, vote(similarity, labels, temperature)[texts][:, columns])


@given(neighbourhoods(torch.float64), temperatures, st.floats(0.1, 10), st.floats(-1, 1))
def test_vote_keeps_when_similarity_and_temperature_scale_or_similarity_shifts(found, temperature, factor, shift):
    similarity, labels = found
    votes = vote(similarity, labels, temperature)
    torch.testing.assert_close(vote(similarity * factor, labels, temperature * factor), votes, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(vote(similarity + shift, labels, temperature), votes, rtol=1e-6, atol=1e-9)


@given(neighbourhoods(torch.float64), temperatures)
def test_shares_sum_to_one_so_a_label_of_all_neighbours_gets_one(found, temperature):
    similarity, labels = found
    n, k, _ = labels.shape
    everyone = vote(similarity, torch.ones(n, k, 1), temperature)
    some_found = (similarity > -math.inf).any(1, keepdim=True)
    torch.testing.assert_close(everyone, some_found.double())


def test_one_neighbour_passes_its_labels_on():
    labels = torch.tensor([[[1.0, 0.0, 1.0]]])
    assert torch.equal(vote(torch.tensor([[-0.4]]), labels, 0.05), labels[:, 0])


def test_infinite_temperature_gives_the_plain_mean():
    labels = torch.tensor([[[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]]])
    assert vote(torch.tensor([[0.9, 0.5, 0.1, -1.0]]), labels, math.inf).tolist() == [[0.75, 0.25]]


def test_equal_neighbours_do_not_round_past_one():
    similarity = torch.full((1, 30), 0.8)  # 30 float32 shares of 1/30 sum to 1.0000004
    labels = torch.ones(1, 30, 1)
    assert vote(similarity, labels, 0.05).item() <= 1
    assert vote_sparse(similarity, *sparse(labels), 1, 0.05).item() <= 1


@pytest.mark.parametrize("column", [-1, 2, 3])
def test_a_column_that_is_no_label_votes_for_nobody_else(column):
    with pytest.raises(IndexError, match="0 to 1"):
        vote_sparse(torch.ones(2, 1), torch.tensor([0, 1, 2]), torch.tensor([column, 0]), 2, 0.05)


def test_a_text_without_neighbours_gets_no_votes():
    similarity = torch.tensor([[-math.inf, -math.inf], [0.5, -math.inf]])
    labels = torch.ones(2, 2, 3)
    expected = [[0.0] * 3, [1.0] * 3]
    assert vote(similarity, labels, 0.05).tolist() == expected
    assert vote_sparse(similarity, *sparse(labels), 3, 0.05).tolist() == expected


@given(score_pairs(), gammas)
def test_confidence_is_the_smallest_vote_where_the_classifier_is_sure(pair, gamma):
    classifier, neighbours = pair
    expected = []
    for scores, votes in zip(classifier.tolist(), neighbours.tolist(), strict=True):
        expected.append(min((v for s, v in zip(scores, votes, strict=True) if s >= gamma), default=1.0))
    assert debiased_confidence(classifier, neighbours, gamma).tolist() == expected


def test_a_score_of_exactly_gamma_counts():
    classifier, neighbours = torch.tensor([[0.7, 0.69]]), torch.tensor([[0.4, 0.1]])
    assert debiased_confidence(classifier, neighbours, 0.7).item() == pytest.approx(0.4)


def test_no_sure_label_gives_the_neighbours_alone():
    classifier, neighbours = torch.tensor([[0.6, 0.2]]), torch.tensor([[0.1, 0.9]])
    confidence = debiased_confidence(classifier, neighbours, 0.7)
    assert confidence.tolist() == [1.0]
    assert torch.equal(combine(classifier, neighbours, confidence), neighbours)


def test_gamma_zero_with_an_unvoted_label_gives_the_classifier_alone():
    classifier, neighbours = torch.tensor([[0.6, 0.2]]), torch.tensor([[0.8, 0.0]])
    confidence = debiased_confidence(classifier, neighbours, 0.0)
    assert confidence.tolist() == [0.0]
    assert torch.equal(combine(classifier, neighbours, confidence), classifier)


@given(score_pairs())
def test_a_larger_gamma_never_lowers_the_confidence(pair):
    steps = torch.stack([debiased_confidence(*pair, gamma) for gamma in (0.0, 0.25, 0.5, 0.75, 1.0)])
    assert (steps.diff(dim=0) >= 0).all()


@given(score_pairs(), gammas, st.randoms(use_true_random=False))
def test_confidence_and_combination_follow_permutations(pair, gamma, random):
    classifier, neighbours = pair
    texts, columns = (random.sample(range(size), size) for size in classifier.shape)
    moved = [part[texts][:, columns] for part in pair]
    confidence = debiased_confidence(classifier, neighbours, gamma)
    assert torch.equal(debiased_confidence(*moved, gamma), confidence[texts])
    assert torch.equal(
        combine(*moved, confidence[texts]), combine(classifier, neighbours, confidence)[texts][:, columns]
    )


@given(score_pairs(), st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4))
def test_combination_is_the_weighted_mean_and_stays_between_its_inputs(pair, confidences):
    classifier, neighbours = pair
    confidence = torch.tensor(confidences[: len(classifier)], dtype=torch.float32)
    final = combine(classifier, neighbours, confidence)
    assert (final >= torch.minimum(classifier, neighbours)).all()
    assert (final <= torch.maximum(classifier, neighbours)).all()
    for text, weight in enumerate(confidence.tolist()):
        for label in range(classifier.shape[1]):
            expected = weight * float(neighbours[text, label]) + (1 - weight) * float(classifier[text, label])
            assert float(final[text, label]) == pytest.approx(expected, abs=1e-6)


confidences = st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4).map(torch.tensor)


@given(score_pairs(), confidences)
def test_a_classifier_that_knows_all_labels_is_combined_by_equation_13(pair, confidence):
    confidence = confidence[: len(pair[0])]
    assert torch.equal(combine_known(*pair, confidence), combine(*pair, confidence))


@given(score_pairs(), confidences, st.integers(0, 5))
def test_a_label_without_a_classifier_score_gets_its_vote_whatever_the_confidence(pair, confidence, known):
    classifier, neighbours = pair
    confidence = confidence[: len(classifier)]
    final = combine_known(classifier[:, :known], neighbours, confidence)
    assert torch.equal(final[:, :known], combine(classifier[:, :known], neighbours[:, :known], confidence))
    assert torch.equal(final[:, known:], neighbours[:, known:])
    # Equation 13 gives the same if the missing score is replaced by the vote.
    replaced = torch.cat([classifier[:, :known], neighbours[:, known:]], dim=1)
    assert torch.equal(final, combine(replaced, neighbours, confidence))


@given(neighbourhoods(torch.float64), temperatures, gammas)
def test_a_new_label_gets_0_without_a_neighbour_and_1_where_all_carry_it(found, temperature, gamma):
    similarity, labels = found
    n, k, known = labels.shape
    everyone, nobody = torch.ones(n, k, 1, dtype=torch.bool), torch.zeros(n, k, 1, dtype=torch.bool)
    votes = vote(similarity, torch.cat([labels, everyone, nobody], dim=2), temperature)
    classifier = torch.full((n, known), 0.6, dtype=torch.float64)
    confidence = debiased_confidence(classifier, votes[:, :known], gamma)
    final = combine_known(classifier, votes, confidence)
    some_found = (similarity > -math.inf).any(1).double()
    torch.testing.assert_close(final[:, known], some_found)
    assert torch.equal(final[:, known + 1], torch.zeros(n, dtype=torch.float64))


def scores_of(queries, keys, labels, classifier, k, temperature, gamma):
    """Return the k nearest, λ and the final scores; sums of whole numbers, so that nothing is rounded."""
    similarity = (queries @ keys.T).double() / 256
    nearest = similarity.argsort(dim=1, descending=True, stable=True)[:, :k]
    votes = vote_sparse(similarity.gather(1, nearest), *sparse(labels[nearest]), labels.shape[1], temperature)
    confidence = debiased_confidence(classifier, votes[:, : classifier.shape[1]], gamma)
    return nearest, confidence, combine_known(classifier, votes, confidence)


@given(st.integers(0, 2**32 - 1), st.integers(1, 8), temperatures, gammas)
def test_twenty_documents_of_a_new_label_change_nothing_where_none_of_them_is_near(seed, k, temperature, gamma):
    chance = torch.Generator().manual_seed(seed)
    queries, keys, new = (torch.randint(-4, 5, (count, 6), generator=chance) for count in (8, 40, 20))
    new[:, 0] += 4  # on one side, so that some queries are far from them
    labels = torch.rand(40, 5, generator=chance) < 0.3
    with_new = torch.cat([torch.nn.functional.pad(labels, (0, 1)), torch.rand(20, 6, generator=chance) < 0.3])
    with_new[40:, 5] = True
    classifier = torch.rand(8, 5, generator=chance, dtype=torch.float64)
    _, trusted, before = scores_of(queries, keys, labels, classifier, k, temperature, gamma)
    nearest, confidence, after = scores_of(queries, torch.cat([keys, new]), with_new, classifier, k, temperature, gamma)
    far = (nearest < 40).all(1)
    assert torch.equal(after[far, :5], before[far]) and torch.equal(confidence[far], trusted[far])
    assert (after[far, 5] == 0).all() and (after[~far, 5] > 0).all()


def test_new_documents_that_are_near_change_scores():
    """The premise of the test above can fail: a displaced neighbour takes its vote with it."""
    queries, keys = torch.tensor([[4, 0]]), torch.tensor([[3, 0], [2, 0]])
    classifier, labels = torch.tensor([[0.9]], dtype=torch.float64), torch.tensor([[True], [True]])
    _, _, before = scores_of(queries, keys, labels, classifier, 2, 0.05, 0.7)
    with_new = torch.tensor([[True, False], [True, False], [False, True]])
    _, confidence, after = scores_of(
        queries, torch.cat([keys, torch.tensor([[4, 0]])]), with_new, classifier, 2, 0.05, 0.7
    )
    assert float(before) == 1 and float(after[0, 0]) < 0.9 and float(confidence) < 1 and float(after[0, 1]) > 0.5


def test_a_rejection_counts_as_more_neighbours_without_the_label():
    """Three neighbours of equal weight: one has the label, one lacks it, one rejects it and counts as four."""
    similarity, has = torch.zeros(1, 3), torch.tensor([[[1.0], [0.0], [0.0]]])
    rejects = torch.tensor([[[0.0], [0.0], [1.0]]])
    votes, against = vote(similarity, has, 0.1), vote(similarity, rejects, 0.1)
    torch.testing.assert_close(less_rejected(votes, against, 3.0), torch.tensor([[1 / 6]]))
    torch.testing.assert_close(less_rejected(votes, torch.zeros_like(votes), 3.0), votes)

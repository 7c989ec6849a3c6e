"""The stratified split: complete, exact in size, close to the share for every label, repeatable, fast."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denn.data.split import stratified_split
from denn.errors import DataError

label_lists = st.lists(st.lists(st.integers(0, 8), unique=True, max_size=4), max_size=60)


def zipf_corpus(n, labels, seed=0):
    draw = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(labels)]
    return [sorted(set(draw.choices(range(labels), weights, k=draw.randint(0, 6)))) for _ in range(n)]


def count(rows, lists, labels):
    counts = [0] * labels
    for row in rows:
        for label in lists[row]:
            counts[label] += 1
    return counts


@given(label_lists, st.floats(0.01, 0.99), st.integers(0, 5))
def test_every_row_is_in_one_part_and_the_size_is_exact(lists, share, seed):
    first, second = stratified_split(lists, share, seed)
    assert sorted(first + second) == list(range(len(lists)))
    assert first == sorted(first) and second == sorted(second)
    if len(lists) >= 2:
        assert len(second) == min(max(round(share * len(lists)), 1), len(lists) - 1)
    else:
        assert second == []


@given(label_lists, st.integers(0, 5))
def test_the_same_seed_gives_the_same_split(lists, seed):
    assert stratified_split(lists, 0.3, seed) == stratified_split([tuple(row) for row in lists], 0.3, seed)


def test_another_seed_gives_another_split():
    lists = zipf_corpus(500, 10)
    assert stratified_split(lists, 0.2, 0) != stratified_split(lists, 0.2, 1)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5, 0.8])
def test_each_label_has_its_share(share):
    lists = zipf_corpus(5000, 40)
    _, second = stratified_split(lists, share, seed=3)
    for total, got in zip(count(range(5000), lists, 40), count(second, lists, 40), strict=True):
        assert abs(got - share * total) <= max(1.5, 0.1 * share * total)


def test_the_labels_are_far_closer_to_their_share_than_in_a_random_split():
    lists = zipf_corpus(5000, 40)
    totals = count(range(5000), lists, 40)

    def deviation(rows):
        return sum(abs(got - 0.1 * total) for got, total in zip(count(rows, lists, 40), totals, strict=True))

    _, second = stratified_split(lists, 0.1, seed=0)
    by_chance = [deviation(random.Random(seed).sample(range(5000), 500)) for seed in range(5)]
    assert deviation(second) < 0.3 * min(by_chance)


def test_a_label_that_occurs_once_stays_in_the_first_part():
    lists = [[0], [0], [0], [0], [0, 1], [0, 2]] * 1 + [[0]] * 30
    for seed in range(20):
        first, _ = stratified_split(lists, 0.4, seed)
        assert {4, 5} <= set(first)


def test_the_size_is_exact_even_where_every_label_occurs_once():
    first, second = stratified_split([[label] for label in range(10)], 0.3, 0)
    assert (len(first), len(second)) == (7, 3)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_leaves_a_part_empty_is_refused(share):
    with pytest.raises(DataError, match="it must be more than 0 and less than 1"):
        stratified_split([[0], [0]], share, 0)


@pytest.mark.slow
def test_a_hundred_thousand_rows_take_seconds():
    lists = zipf_corpus(100_000, 103)
    start = time.perf_counter()
    stratified_split(lists, 0.1, 0)
    assert time.perf_counter() - start < 5

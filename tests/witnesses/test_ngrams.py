"""Words, their beginnings and endings and pairs of words as rows: against the formula, in parts, and what is read."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denn.witnesses import ngrams as module
from denn.witnesses.ngrams import WORD, Ngrams, WordTokens, affixes

TEXTS = ["Goal goals match", "goal match, match", "the goals!", "", "電車 x"]
EVERYTHING = {"least": 1, "most_words": 99, "most_endings": 99, "most_pairs": 99}


def made(texts, **options):
    tokens = WordTokens.of(texts)
    ngrams = Ngrams.of(tokens, **EVERYTHING | options)
    return ngrams, ngrams.learn(tokens)


def terms_of(text):
    words = WORD.findall(text.lower())
    pairs = [f"{left} {right}" for left, right in pairwise(words)]
    return Counter([*words, *pairs]), Counter(affix for word in words for affix in affixes(word))


def test_a_row_is_the_formula_written_out():
    ngrams, rows = made(TEXTS)
    names = [*ngrams.words, *ngrams.endings]
    names += [ngrams.pair(column) for column in range(len(names), ngrams.terms)]
    counted = [terms_of(text) for text in TEXTS]
    having = Counter(term for parts in counted for part in parts for term in part)
    assert sorted(names) == sorted(having)
    for row, parts in enumerate(counted):
        wanted = dict.fromkeys(names, 0.0)
        for part in parts:
            weights = {t: (1 + math.log(c)) * (1 + math.log(6 / (1 + having[t]))) for t, c in part.items()}
            length = math.sqrt(sum(weight**2 for weight in weights.values()))
            wanted |= {term: weight / length for term, weight in weights.items()}
        assert rows[row].toarray()[0].tolist() == pytest.approx(list(wanted.values()), abs=1e-6)


def test_words_are_lower_case_and_every_ideograph_is_one():
    tokens = WordTokens.of(["Das C-Team, 電車a"])
    assert tokens.words == ["das", "c", "team", "電", "車", "a"]
    assert affixes("goals") == ["goa-", "goal-", "-als", "-oals"]
    assert affixes("cat") == []


def test_rare_terms_and_those_beyond_the_most_are_left_out():
    ngrams, _ = made(TEXTS, least=2, most_endings=1, most_pairs=0)
    assert ngrams.words == ["goal", "goals", "match"]
    assert len(ngrams.endings) == 1 and not len(ngrams.pairs)


@given(st.lists(st.text(alphabet="abcdé電 -", max_size=40), max_size=6), st.integers(1, 3))
def test_rows_do_not_depend_on_the_texts_beside_them(texts, chunk):
    ngrams, _ = made(["abc abcd bcd", "abcd dcba abcd", "電 é"])
    alone = [ngrams.rows(WordTokens.of([text])).toarray()[0] for text in texts]
    before, module.CHUNK = module.CHUNK, chunk
    try:
        together = ngrams.rows(WordTokens.of(texts)).toarray()
    finally:
        module.CHUNK = before
    assert together.shape == (len(texts), ngrams.terms)
    assert np.array_equal(together, np.array(alone).reshape(together.shape))
    lengths = np.round(np.square(together).sum(1), 5)
    assert set(lengths.tolist()) <= {0.0, 1.0, 2.0}  # words and pairs are one part, beginnings and endings another


def test_no_pair_crosses_texts():
    ngrams, _ = made(["one two", "one two"])
    assert ngrams.rows(WordTokens.of(["", "one", "", "two"])).indices.max() < len(ngrams.words)
    assert ngrams.rows(WordTokens.of(["one two"])).indices.max() == ngrams.terms - 1


def test_the_memory_of_words_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "CACHED", 3)
    ngrams, _ = made(TEXTS)
    wanted = ngrams.rows(WordTokens.of(TEXTS)).toarray()
    for number in range(20):
        ngrams.rows(WordTokens.of([f"word{number}"]))
        assert len(ngrams._known) <= 4
    assert np.array_equal(ngrams.rows(WordTokens.of(TEXTS)).toarray(), wanted)

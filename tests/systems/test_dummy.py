"""The baseline scores every text by label frequency, and can be saved and loaded."""

import pytest

import denn
from denn.progress import Silent
from denn_bench.systems.dummy import Dummy, DummyParameters


def test_scores_are_frequencies(tmp_path):
    documents = [
        denn.Document("x", ("a", "b")),
        denn.Document("y", ("a",)),
        denn.Document("z"),
        denn.Document("", ("a",)),
    ]
    corpus = denn.Corpus(documents)
    method = Dummy(DummyParameters())
    method.fit(corpus, tmp_path, Silent())
    method.save(tmp_path)
    for each in (method, Dummy.load(tmp_path, DummyParameters(), corpus.labels)):
        scores = each.scores(["one", "two"])
        assert scores.names == ("a", "b")
        assert scores.final.tolist() == [[pytest.approx(0.75), pytest.approx(0.25)]] * 2
        assert (scores.parts, scores.confidence, scores.neighbours) == ({}, None, None)

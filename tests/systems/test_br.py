"""One support vector machine for each label: against scikit-learn, its scores, pruning and cost."""

import json

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

import denn
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.progress import Silent
from denn.types import LabelSpace
from denn_bench.systems.br import BR, BrParameters


def texts_of(documents):
    return [document.text for document in documents]


def fitted(corpus, tmp_path, **parameters):
    method = BR(BrParameters(jobs=1, **parameters))
    return method, method.fit(corpus, tmp_path, Silent()).facts


def test_decision_scores_agree_with_scikit_learn_one_vs_rest(tiny_corpus):
    texts = texts_of(tiny_corpus.test)
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2)
    known = vectorizer.fit_transform(texts_of(tiny_corpus.train))
    oracle = OneVsRestClassifier(LinearSVC(tol=1e-8, max_iter=100_000, random_state=0))
    oracle.fit(known, tiny_corpus.labels.matrix(tiny_corpus.train).numpy().astype(int))
    expected = oracle.decision_function(vectorizer.transform(texts))
    found = BR.decision_scores(tiny_corpus.train, texts, tiny_corpus.labels, jobs=1)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-3)
    assert torch.equal(found, BR.decision_scores(tiny_corpus.train, texts, tiny_corpus.labels, jobs=2))


def test_labels_that_all_or_none_carry_are_decided_without_a_machine():
    train = [denn.Document(f"some word{number % 3} and more", ("all", "odd")[: 1 + number % 2]) for number in range(12)]
    found = BR.decision_scores(train, ["some word1", "nothing known"], LabelSpace(("all", "none", "odd")))
    assert found[:, 0].tolist() == [1.0, 1.0]
    assert found[:, 1].tolist() == [-1.0, -1.0]
    assert found[:, 2].abs().max() < 1


def test_the_tuned_decision_value_is_the_best_of_the_grid():
    generator = torch.Generator().manual_seed(0)
    gold = torch.rand(40, 5, generator=generator) < 0.3
    scores = torch.randn(40, 5, generator=generator) * 0.3 + 0.4 * gold - 0.5
    best = max(multilabel_scores(scores > step / 50, gold)["micro_f1"] for step in range(-50, 51))
    assert multilabel_scores(scores > BR.tune_decision(scores, gold), gold)["micro_f1"] == best
    assert best > multilabel_scores(scores > 0, gold)["micro_f1"]


def test_scores_are_sigmoids_of_decision_values(tiny_corpus, tmp_path):
    method, facts = fitted(tiny_corpus, tmp_path, prune=0.0)
    texts = texts_of(tiny_corpus.test)
    decisions = BR.decision_scores(tiny_corpus.train, texts, tiny_corpus.labels)
    scores = method.scores(texts)
    assert scores.names == tiny_corpus.labels.names
    torch.testing.assert_close(scores.final, 1 / (1 + torch.exp(-decisions)))
    assert torch.equal(scores.final > 0.5, decisions > 0)
    assert facts["weights"] == np.count_nonzero(method.weights.toarray())


def test_pruning_drops_small_weights_and_no_others(tiny_corpus, tmp_path):
    whole, _ = fitted(tiny_corpus, tmp_path, prune=0.0)
    pruned, facts = fitted(tiny_corpus, tmp_path, prune=0.1)
    before, after = whole.weights.toarray(), pruned.weights.toarray()
    small = np.abs(before) < 0.1
    assert 0 < facts["weights"] == pruned.weights.nnz == (~small).sum() < before.size
    np.testing.assert_array_equal(after, np.where(small, 0, before))
    np.testing.assert_array_equal(pruned.bias, whole.bias)


def test_the_tuned_cost_is_the_one_with_the_best_validation(tiny_corpus, tmp_path):
    corpus = denn.Corpus(tiny_corpus.train[:25], tiny_corpus.valid, labels=tiny_corpus.labels)
    tuned, facts = fitted(corpus, tmp_path, tune_cost=True, min_df=1)
    texts, gold = texts_of(corpus.valid), corpus.labels.matrix(corpus.valid)
    reached, scores = {}, {}
    for cost in (0.1, 1.0, 10.0):
        scores[cost] = fitted(corpus, tmp_path, cost=cost, min_df=1)[0].scores(texts).final
        chosen = decide(scores[cost], tune_global(scores[cost], gold))
        reached[cost] = multilabel_scores(chosen, gold)["micro_f1"]
    assert facts["valid_micro_f1"] == pytest.approx({f"{cost:g}": value for cost, value in reached.items()})
    assert len(set(reached.values())) > 1  # else any would do
    assert facts["cost"] == max(reached, key=reached.__getitem__)
    assert torch.equal(tuned.scores(texts).final, scores[facts["cost"]])
    json.dumps(facts)


def test_without_validation_the_cost_stays(tiny_corpus, tmp_path):
    notes = []

    class Heard(Silent):
        def note(self, message: str) -> None:
            notes.append(message)

    method = BR(BrParameters(jobs=1, tune_cost=True, cost=0.5))
    facts = method.fit(denn.Corpus(tiny_corpus.train), tmp_path, Heard()).facts
    assert facts["cost"] == 0.5
    assert notes == ["there is no validation split to tune the cost on, so it stays at 0.5"]


def test_labels_are_the_units_of_progress(tiny_corpus, tmp_path):
    said: list[object] = []

    class Heard(Silent):
        def start(self, stage) -> None:
            said.append((stage.what, stage.total))

        def advance(self, done: int, **values: object) -> None:
            said.append(done)

    BR(BrParameters(jobs=2)).fit(tiny_corpus, tmp_path, Heard())
    assert said == [("reading words", None), ("learning labels at cost 1", 6), 1, 2, 3, 4, 5, 6]

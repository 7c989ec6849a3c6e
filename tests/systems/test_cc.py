"""Classifier chains against chains that are written out with scikit-learn; orders, bagging, votes, refusals."""

import numpy as np
import pytest
import torch
from scipy.sparse import hstack
from sklearn.svm import LinearSVC

import denn
from denn.errors import ConfigError
from denn.progress import Silent
from denn.types import LabelSpace
from denn_bench.systems.cc import CC, CcParameters, learn_chain
from denn_bench.systems.tfidf import Tfidf


def texts_of(documents):
    return [document.text for document in documents]


def fitted(corpus, tmp_path, **parameters):
    method = CC(CcParameters(jobs=1, prune=0.0, **parameters))
    method.fit(corpus, tmp_path, Silent())
    return method


def written_out(known, gold, unseen, order, weight):
    """Decide label by label: machines learn from true labels and are asked with those that others gave before."""
    decisions, decided = np.zeros((unseen.shape[0], gold.shape[1])), np.zeros((unseen.shape[0], gold.shape[1]))
    for place, column in enumerate(order):
        before = list(order[:place])
        machine = LinearSVC(dual=False).fit(hstack([known, weight * gold[:, before]]).tocsr(), gold[:, column])
        values = machine.decision_function(hstack([unseen, weight * decided[:, before]]).tocsr())
        decisions[:, column], decided[:, column] = values, values > 0
    return decisions


@pytest.mark.parametrize(("order", "weight"), [([0, 1, 2, 3, 4, 5], 0.3), ([5, 3, 1, 0, 2, 4], 2.0)])
def test_a_chain_learns_from_true_labels_and_is_asked_with_decided_ones(tiny_corpus, order, weight):
    features, known = Tfidf.of(texts_of(tiny_corpus.train), CcParameters())
    gold = tiny_corpus.labels.matrix(tiny_corpus.train).numpy()
    unseen = features(texts_of(tiny_corpus.test))
    expected = written_out(known, gold.astype(float), unseen, order, weight)
    chain = learn_chain(known, gold, np.array(order), CcParameters(label_weight=weight, prune=0.0, jobs=1))
    found = chain.decisions(unseen).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    alone = (unseen @ chain.weights).toarray() + chain.bias
    assert not np.allclose(found, alone, atol=1e-2)  # the labels before do speak
    for place, column in enumerate(order):
        assert (chain.links[order[place:], column] == 0).all()


def test_the_first_of_a_chain_is_a_machine_of_its_own(tiny_corpus):
    _, known = Tfidf.of(texts_of(tiny_corpus.train), CcParameters())
    gold = tiny_corpus.labels.matrix(tiny_corpus.train).numpy()
    chain = learn_chain(known, gold, np.array([4, 0, 1, 2, 3, 5]), CcParameters(prune=0.0, jobs=1))
    machine = LinearSVC(dual=False).fit(known, gold[:, 4])
    np.testing.assert_allclose(chain.weights.toarray()[:, 4], machine.coef_[0], atol=1e-6)
    assert chain.bias[4] == pytest.approx(machine.intercept_[0])


def test_pruning_leaves_the_links_alone(tiny_corpus):
    _, known = Tfidf.of(texts_of(tiny_corpus.train), CcParameters())
    gold = tiny_corpus.labels.matrix(tiny_corpus.train).numpy()
    whole, pruned = (learn_chain(known, gold, np.arange(6), CcParameters(prune=prune, jobs=1)) for prune in (0.0, 0.2))
    np.testing.assert_array_equal(whole.links, pruned.links)
    assert 0 < pruned.weights.nnz < whole.weights.nnz


def test_a_single_chain_begins_with_frequent_labels_or_as_the_seed_says(tiny_corpus, tmp_path):
    (given,) = fitted(tiny_corpus, tmp_path).chains
    assert given.order.tolist() == [0, 1, 2, 3, 4, 5]  # columns go by frequency
    backwards = denn.Corpus(tiny_corpus.train, labels=LabelSpace(tiny_corpus.labels.names[::-1]))
    (given,) = fitted(backwards, tmp_path).chains
    counts = backwards.labels.matrix(backwards.train).sum(0)[given.order].tolist()
    assert counts == sorted(counts, reverse=True)
    assert given.order[-1] == 0  # the rare label
    drawn = [fitted(tiny_corpus, tmp_path, order="random", seed=seed).chains[0].order.tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(drawn[0]) == [0, 1, 2, 3, 4, 5]


def test_an_ensemble_draws_orders_and_documents_and_averages(tiny_corpus, tmp_path):
    method = fitted(tiny_corpus, tmp_path, chains=4, seed=7)
    texts, gold = texts_of(tiny_corpus.test), tiny_corpus.labels.matrix(tiny_corpus.train).numpy()
    features, known = Tfidf.of(texts_of(tiny_corpus.train), CcParameters())
    chance, sums, votes = np.random.default_rng(7), np.zeros((20, 6)), np.zeros((20, 6))
    for chain in method.chains:
        order, rows = chance.permutation(6), chance.integers(60, size=60)
        assert chain.order.tolist() == order.tolist()
        assert len(set(rows.tolist())) < 60
        again = learn_chain(known[rows], gold[rows], order, CcParameters(prune=0.0, jobs=1))
        decisions = again.decisions(features(texts)).numpy()
        sums += 1 / (1 + np.exp(-decisions))
        votes += decisions > 0
    scores = method.scores(texts)
    np.testing.assert_allclose(scores.final.numpy(), sums / 4, atol=1e-6)
    np.testing.assert_allclose(scores.parts["votes"].numpy(), votes / 4)
    assert len({tuple(chain.order.tolist()) for chain in method.chains}) > 1


def test_a_single_chain_has_no_votes(tiny_corpus, tmp_path):
    method = fitted(tiny_corpus, tmp_path)
    texts = texts_of(tiny_corpus.test)
    scores = method.scores(texts)
    assert scores.parts == {}
    decisions = method.chains[0].decisions(method.features(texts))
    assert torch.equal(scores.final, torch.sigmoid(decisions).float())


def test_too_many_labels_are_refused_before_any_work(tmp_path):
    documents = [denn.Document("goal match", (f"label {number}",), str(number)) for number in range(12)]
    method = CC(CcParameters(max_labels=11))
    with pytest.raises(ConfigError, match=r"Got 12 labels, expected at most max_labels = 11 .* max_labels=12"):
        method.fit(denn.Corpus(documents), tmp_path, Silent())
    assert not hasattr(method, "features")

"""The contract of every method: learn, save and load, be reproducible, and accept every valid corpus and text."""

import shutil
from contextlib import contextmanager
from dataclasses import fields

import pytest
import torch

import denn
from denn.registry import METHODS, lookup

from .small import BY_HEART, FORGETFUL, SMALL, WITHOUT_CHANCE

pytestmark = pytest.mark.slow  # trains every method for most tests

DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


@pytest.fixture(scope="module", params=METHODS)
def method(request) -> str:
    """The name of each registered method."""
    return request.param


@pytest.fixture(scope="module", params=DEVICES)
def device(request) -> str:
    return request.param


@contextmanager
def learning(method, device, tiny_settings, folder):
    """Make a function that trains a method on a corpus, in a new folder each time, with as many settings as it has."""
    models = []
    known = {field.name for field in fields(lookup(METHODS, method, "method").Parameters)}

    def train(corpus, **extra):
        wanted = {**tiny_settings, "device": device, **SMALL[method], **extra}
        settings = {name: value for name, value in wanted.items() if name in known}
        out = folder / f"model-{len(models)}"
        models.append(denn.train(corpus, method=method, out=out, allow_poor=True, **settings))
        return models[-1]

    yield train
    for model in models:
        model.close()


@pytest.fixture
def learn(method, device, tiny_settings, tmp_path):
    """A function that trains the method; see `learning`."""
    with learning(method, device, tiny_settings, tmp_path) as train:
        yield train


@pytest.fixture(scope="module")
def briefly_trained(method, device, tiny_settings, tiny_corpus, tmp_path_factory):
    """A model of the tiny corpus after one epoch; several tests ask it, none changes it."""
    with learning(method, device, tiny_settings, tmp_path_factory.mktemp("brief")) as train:
        yield train(tiny_corpus, epochs=1)


def texts_of(documents) -> list[str]:
    return [document.text for document in documents]


def test_learns_a_dozen_documents_by_heart(method, learn, tiny_corpus):
    if method in FORGETFUL:
        pytest.skip(FORGETFUL[method])
    dozen = tiny_corpus.train[:12]
    settings = {"epochs": 40, "batch_size": 12, "evaluate_every": 20, **BY_HEART.get(method, {})}
    model = learn(denn.Corpus(train=dozen, valid=dozen), **settings)
    found = model.predict(texts_of(dozen))
    assert [set(prediction.labels) for prediction in found] == [set(document.labels) for document in dozen]


def test_survives_disk(method, learn, tiny_corpus, tmp_path):
    model = learn(tiny_corpus, epochs=1)
    texts = texts_of(tiny_corpus.test)
    expected = model.scores(texts)
    model.close()
    copy = tmp_path / "elsewhere"
    shutil.move(tmp_path / "model-0", copy)
    with denn.load(copy) as again:
        found = again.scores(texts)
        assert found.names == expected.names
        assert torch.equal(found.final, expected.final)
        assert found.parts.keys() == expected.parts.keys()


def test_the_same_seed_gives_the_same_scores(method, learn, tiny_corpus):
    texts = texts_of(tiny_corpus.test)
    scores = [learn(tiny_corpus, seed=seed, epochs=1).scores(texts) for seed in (3, 3, 4)]
    # After one epoch, the final scores of seqtag, which are 0 or 1, are all 0.
    first, second, other = (torch.stack([one.final, *one.parts.values()]) for one in scores)
    assert torch.equal(first, second)
    assert method in WITHOUT_CHANCE or not torch.equal(first, other)


def test_every_text_and_every_batch(briefly_trained, tiny_corpus):
    model = briefly_trained
    texts = ["", " \n\t", "goal", "\0", "🦉 zażółć gęślą jaźń", "word " * 5000, *texts_of(tiny_corpus.test)]
    together = model.scores(texts)
    assert together.final.shape == (len(texts), len(together.names))
    for row, text in enumerate(texts):
        alone = model.scores([text])
        assert torch.allclose(alone.final[0], together.final[row], atol=1e-4), text
    assert len(model.predict(texts)) == len(texts)
    assert model.predict([]) == []


def test_scores_lie_between_0_and_1_and_decide_the_labels(briefly_trained, tiny_corpus):
    model = briefly_trained
    texts = texts_of(tiny_corpus.test)
    scores = model.scores(texts)
    for values in (scores.final, *scores.parts.values()):
        assert values.shape == scores.final.shape
        assert bool(((values >= 0) & (values <= 1)).all())
    threshold = model.card.thresholds["final"].overall
    for row, prediction in enumerate(model.predict(texts)):
        expected = {
            name for name, score in zip(scores.names, scores.final[row].tolist(), strict=True) if score > threshold
        }
        assert set(prediction.labels) == expected
        assert list(prediction.scores.values()) == sorted(prediction.scores.values(), reverse=True)
        for name, score in prediction.scores.items():
            assert score == pytest.approx(float(scores.final[row, scores.names.index(name)]), abs=1e-6)
    if scores.confidence is not None:
        assert bool(((scores.confidence >= 0) & (scores.confidence <= 1)).all())


def test_documents_without_labels_and_labels_with_odd_names(method, learn):
    names = ("two words", " 日本 ", "naïve/ß", 'quo"te', "a,b;c|d", "📚")
    documents = [denn.Document(f"goal text {i}", (names[i % 6],) if i % 3 else (), str(i)) for i in range(12)]
    model = learn(denn.Corpus(train=documents, valid=documents[:4]), epochs=1)
    assert set(model.labels.names) == {names[i % 6] for i in range(12) if i % 3}
    found = model.predict(["goal text 1"], threshold=0.0, min_labels=1)
    assert found[0].labels and set(found[0].labels) <= set(model.labels.names)


def test_labels_that_only_validation_has(method, learn, tiny_corpus):
    news = [denn.Document("violin goal", ("only in validation", "music"), "v")]
    model = learn(denn.Corpus(train=tiny_corpus.train, valid=news), epochs=1)
    assert "only in validation" in model.labels
    unknown = model.evaluate([denn.Document("violin", ("never seen", "music"), "t")])
    assert unknown.unknown_labels == 1


def test_a_corpus_of_train_alone(method, learn, tiny_corpus):
    model = learn(denn.Corpus(train=tiny_corpus.train), epochs=1)
    assert model.card.thresholds["final"].overall == 0.5
    assert model.card.metrics == {}
    assert model.predict(["goal"])


def test_one_document_and_one_label(method, learn):
    only = [denn.Document("goal", ("sport",), "0")]
    model = learn(denn.Corpus(train=only, valid=only), epochs=1)
    assert model.scores(["goal", "match"]).final.shape == (2, 1)

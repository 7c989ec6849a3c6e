"""Su's kNN: its loss and its vote in loops over the vectors, and the datastore beside it."""

import math
import shutil
from dataclasses import replace

import pytest
import torch

import denn
from denn.config import make_recipe
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.prediction_types import Neighbours
from denn.progress import Silent
from denn.report.gather import gather
from denn.report.page import render
from denn.training.session import Training
from denn_bench.map import embedding_map
from denn_bench.run import Run, digest, perform
from denn_bench.systems.knn import KNN, KnnNetwork

TEXTS = ["goal match coach of the team", "violin and the oven", "", "kyoto 電車 comet", "barometer drizzle referee"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_corpus, tiny_settings):
    """The folder of a model of the tiny corpus; copy it before changing it."""
    folder = tmp_path_factory.mktemp("knn") / "tiny"
    settings = {name: value for name, value in tiny_settings.items() if name != "gamma"} | {"epochs": 6}
    denn.train(tiny_corpus, method="knn", out=folder, **settings).close()
    return folder


@pytest.fixture
def model(trained, tmp_path):
    """A copy of the model that may be changed."""
    shutil.copytree(trained, tmp_path / "model")
    with denn.load(tmp_path / "model") as loaded:
        yield loaded


def distance(a, b, length):
    """Return the Euclidean distance of two vectors brought to one length."""
    a, b = ([length * x / math.sqrt(sum(y * y for y in v)) for x in v] for v in (a.tolist(), b.tolist()))
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def test_the_loss_is_cross_entropy_and_the_contrast_of_dynamic_coefficients(tiny_corpus, tiny_settings):
    settings = {name: value for name, value in tiny_settings.items() if name != "gamma"}
    extra = {"alpha": 0.4, "temperature": 3.0, "embedding_norm": 4.0}
    parameters = make_recipe("knn", {**settings, **extra}).parameters
    torch.manual_seed(0)
    encoder = TransformerEncoder.load(parameters.encoder, precision="float32")
    made = Training(KnnNetwork(encoder, len(tiny_corpus.labels), parameters).eval(), tiny_corpus, parameters)
    made.network.scale.fill_(0.5)
    rows = torch.tensor([7, 1, 22, 2, 11, 0, 9])
    h = 0.5 * made.network.encode(made.train_tokens)[rows]
    labels = [set(tiny_corpus.train[row].labels) for row in rows.tolist()]
    total = 0.0
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i]
        common = sum(len(labels[i] & labels[k]) for k in others)
        below = sum(math.exp(-math.dist(h[i].tolist(), h[k].tolist()) / 3.0) for k in others)
        for j in others:
            if common:
                share = math.exp(-math.dist(h[i].tolist(), h[j].tolist()) / 3.0) / below
                total -= len(labels[i] & labels[j]) / common * math.log(share)
    assert set() in labels
    with torch.no_grad():
        logits = made.network.head(h)
        bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, made.labels[rows].float())
    expected = float(bce) + 0.4 * total / len(rows)
    assert float(made.compute(*made.prepare(rows)).detach()) == pytest.approx(expected, rel=1e-4)


def found_of(similarity, labels):
    """Return neighbours with these (n,k) similarities and label columns for each."""
    sizes = [len(columns) for columns in labels]
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    columns = torch.tensor([column for some in labels for column in some], dtype=torch.int64)
    ids = tuple(tuple(f"{row}-{place}" for place in range(len(values))) for row, values in enumerate(similarity))
    return Neighbours(ids, torch.tensor(similarity), offsets, columns, ("a", "b", "new"))


def test_the_vote_is_the_softmax_of_negative_distances():
    parameters = make_recipe("knn", {"embedding_norm": 2.0, "vote_temperature": 0.7, "vote_share": 0.3}).parameters
    gone = float("-inf")
    found = found_of([[0.9, 0.5, gone], [gone, gone, gone]], [[0, 2], [1], [0], [0], [], [1]])
    known = torch.tensor([[0.2, 0.6], [0.7, 0.1]])
    method = KNN(parameters)
    method.names = ("a", "b")
    parts = {"classifier": torch.nn.functional.pad(known, (0, 1), value=gone), "neighbours": method.votes(found, 3)}
    scores = method.combine(parts, found)
    near, far = (math.exp(-2 * math.sqrt(2 - 2 * cosine) / 0.7) for cosine in (0.9, 0.5))
    first, second = near / (near + far), far / (near + far)
    expected = [[0.3 * first + 0.7 * 0.2, 0.3 * second + 0.7 * 0.6, first], [0.7, 0.1, 0.0]]
    torch.testing.assert_close(scores.final, torch.tensor(expected))
    torch.testing.assert_close(scores.parts["neighbours"], torch.tensor([[first, second, first], [0.0, 0.0, 0.0]]))
    assert scores.confidence is None


def test_the_length_cannot_be_left_open():
    with pytest.raises(ConfigError, match="embedding_norm"):
        make_recipe("knn", {"embedding_norm": None})


@pytest.mark.slow
def test_scores_are_halves_of_classifier_and_vote(model, tiny_corpus):
    model.method.parameters = replace(model.method.parameters, vote_temperature=1.5, k=7)
    scores = model.scores(TEXTS)
    keys = {document.id: model.method.embed([document.text])[0] for document in tiny_corpus.train}
    for row, text in enumerate(TEXTS):
        query = model.method.embed([text])[0]
        nearest = sorted(tiny_corpus.train, key=lambda document: distance(query, keys[document.id], 15.0))[:7]
        worth = [math.exp(-distance(query, keys[document.id], 15.0) / 1.5) for document in nearest]
        known = torch.sigmoid(model.method.network.head(model.method.network.scale * query))
        for column, name in enumerate(scores.names):
            vote = sum(w for w, document in zip(worth, nearest, strict=True) if name in document.labels) / sum(worth)
            assert float(scores.parts["neighbours"][row, column]) == pytest.approx(vote, abs=1e-4)
            half = 0.5 * vote + 0.5 * float(known[column].detach())
            assert float(scores.final[row, column]) == pytest.approx(half, abs=1e-4)


@pytest.mark.slow
def test_new_documents_and_labels_speak_at_once(model):
    model.add([denn.Document(TEXTS[0], ("brand new", "sport"), "new")])
    scores = model.scores(TEXTS)
    assert scores.names == (*model.labels.names, "brand new")
    assert torch.equal(scores.final[:, -1], scores.parts["neighbours"][:, -1])
    assert float(scores.final[0, -1]) > 0.1
    prediction = model.predict(TEXTS[:1])[0]
    assert prediction.neighbours[0].id == "new" and prediction.confidence is None
    assert model.remove(["new"]) == 1
    assert all(neighbour.id != "new" for neighbour in model.predict(TEXTS[:1])[0].neighbours)


@pytest.mark.slow
def test_a_text_is_no_evidence_for_itself(model, tiny_corpus):
    document = tiny_corpus.train[2]  # the only one of its rare label
    apart = model.scores([document.text, document.text], [document.id, None])
    model.remove([document.id])
    without = model.scores([document.text])
    torch.testing.assert_close(apart.final[0], without.final[0], rtol=0, atol=1e-5)
    assert not torch.equal(apart.final[0], apart.final[1])


@pytest.mark.slow
def test_without_neighbours_the_classifier_speaks_alone(model):
    model.remove(model.method.store.ids())
    scores = model.scores(TEXTS)
    assert torch.equal(scores.final, scores.parts["classifier"])


@pytest.mark.slow
def test_a_report_shows_the_neighbourhood_without_a_confidence(model, tiny_corpus):
    findings = gather(model, tiny_corpus.test, tiny_corpus.valid, Silent())
    assert findings.neighbourhood is not None and findings.confidence is None
    assert findings.neighbourhood.sweep["k"] and not findings.neighbourhood.sweep["gamma"]
    assert set(findings.curves) == {"final", "classifier", "neighbours"}
    page = render(findings, model.card, "tiny")
    assert "Datastore size" in page and "γ" not in page.split("Settings:")[0]


@pytest.mark.slow
def test_a_run_of_the_benchmark_has_a_datastore_and_no_sweeps(tiny_corpus, tiny_settings, tmp_path):
    settings = {name: value for name, value in tiny_settings.items() if name != "gamma"} | {"epochs": 1}
    run = Run("tiny", "knn", 0, make_recipe("knn", settings))
    folders = (tmp_path / "results", tmp_path / "work")
    data = perform(run, tiny_corpus, digest(tiny_corpus), *folders, Silent(), sweeps=True, keep_model=True).data
    assert "sweeps" not in data
    assert data["cost"]["store_bytes"] == 60 * 32 * 4 and data["cost"]["parameters"]["extra"] == 0
    assert data["cost"]["inference_ms_per_text_without_neighbours"] > 0
    assert set(data["test"]["systems"]) == {"final", "classifier", "neighbours"}
    assert data["test"]["empty_gamma"] is None and data["test"]["mean_confidence"] is None
    with denn.load(tmp_path / "work" / run.name) as model:
        assert len(embedding_map(model.method, tiny_corpus, test=2, train=40)["train"]["x"]) == 40

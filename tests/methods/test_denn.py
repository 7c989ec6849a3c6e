"""DENN itself: Eq. 7 and Eq. 9-13 written out in loops over what the network and the datastore hold."""

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
from safetensors.torch import load_file

import denn
from denn.clock import Clock
from denn.combiners.average import Average
from denn.config import make_recipe
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.methods.contrastive import CONTRASTS, VIEWS, DennNetwork, DennParameters, DennTraining, disagreement
from denn.methods.denn import DENN, MATRICES
from denn.prediction_types import Scores
from denn.progress import Silent
from denn.registry import COMBINERS, lookup
from denn.training.batches import as_in
from denn.training.neural import device_of
from denn.training.session import spread

pytestmark = pytest.mark.slow  # trains, or loads a trained model

TEXTS = ["goal match coach of the team", "violin and the oven", "", "kyoto 電車 comet", "barometer drizzle referee"]


@pytest.fixture
def model(tmp_path):
    """A copy of the paper's system, classifier and neighbours combined by λ, that may be changed."""
    shutil.copytree(Path(__file__).parent / "earlier" / "model", tmp_path / "model")
    with denn.load(tmp_path / "model") as loaded:
        yield loaded


@pytest.fixture
def training(tiny_corpus, tiny_settings):
    """A function that makes the training of a tiny network, not yet begun."""

    def make(corpus=tiny_corpus, **extra) -> DennTraining:
        parameters = make_recipe("denn", {**tiny_settings, **extra}).parameters
        torch.manual_seed(0)
        encoder = TransformerEncoder.load(parameters.encoder, precision="float32")
        return DennTraining(DennNetwork(encoder, len(corpus.labels), parameters), corpus, parameters)

    return make


def by_loops(model: denn.Model, folder: Path, text: str, k: int, own_id: str | None = None):
    """Return classifier, neighbours, λ and final scores of a text by Eq. 2 and 9-13, one number at a time."""
    parameters, store = model.method.parameters, model.method.store
    head = {name: tensor.double() for name, tensor in load_file(folder / "head.safetensors").items()}
    h = model.method.embed([text])[0].double()
    classifier = {}
    for column, name in enumerate(model.labels.names):
        logit = sum(head["scale"] * h[i] * head["head.weight"][column, i] for i in range(len(h)))
        logit += head["head.bias"][column]
        classifier[name] = 1 / (1 + math.exp(-float(logit)))
    found = []
    for document in store.get(store.ids()):
        if document.id != own_id:
            key = model.method.embed([document.text])[0].double()
            found.append((float(h @ key / (h.norm() * key.norm())), document))
    nearest = sorted(found, key=lambda pair: -pair[0])[:k]
    total = sum(math.exp(similarity / parameters.vote_temperature) for similarity, _ in nearest)
    votes = dict.fromkeys(store.labels, 0.0)
    for similarity, document in nearest:
        for label in document.labels:
            votes[label] += math.exp(similarity / parameters.vote_temperature) / total
    sure = [votes[name] for name, score in classifier.items() if score >= parameters.gamma]
    confidence = min(sure) if sure else 1.0
    if not nearest:
        confidence = 0.0
    final = {name: confidence * votes[name] + (1 - confidence) * classifier.get(name, 0.0) for name in votes}
    final |= {name: votes[name] for name in votes if name not in classifier}
    return classifier, votes, confidence, final


def assert_scores(scores: Scores, row: int, expected) -> None:
    classifier, votes, confidence, final = expected
    named = {
        name: dict(zip(scores.names, values[row].nan_to_num(0.0).tolist(), strict=True))
        for name, values in {**scores.parts, **scores.alternatives}.items()
    }
    padded = {name: classifier.get(name, 0.0) for name in votes}
    average = {name: (padded[name] + votes[name]) / 2 if name in classifier else votes[name] for name in votes}
    assert named["classifier"] == pytest.approx(padded, abs=1e-4)
    assert named["neighbours"] == pytest.approx(votes, abs=1e-4)
    assert named["average"] == pytest.approx(average, abs=1e-4)
    assert float(scores.confidence[row]) == pytest.approx(confidence, abs=1e-4)
    assert dict(zip(scores.names, scores.final[row].tolist(), strict=True)) == pytest.approx(final, abs=1e-4)


@pytest.mark.parametrize("gamma", [0.1, 0.2, 1.0])
def test_scores_are_equations_9_to_13(model, tmp_path, gamma):
    model.method.parameters = replace(model.method.parameters, gamma=gamma, vote_temperature=0.5, k=12)
    scores = model.scores(TEXTS)
    for row, text in enumerate(TEXTS):
        assert_scores(scores, row, by_loops(model, tmp_path / "model", text, k=12))
    doubts = [confidence for confidence in scores.confidence.tolist() if confidence < 0.99]
    assert len(set(doubts)) > 1 if gamma < 1 else not doubts


def test_labels_that_only_the_store_knows_are_for_the_neighbours_alone(model, tmp_path):
    model.add([denn.Document(TEXTS[0], ("brand new", "sport"), "new")])
    scores = model.scores(TEXTS)
    assert scores.names == (*model.labels.names, "brand new")
    for row, text in enumerate(TEXTS):
        assert_scores(scores, row, by_loops(model, tmp_path / "model", text, k=5))
    assert float(scores.final[0, -1]) > 0.1
    assert scores.parts["classifier"][0, -1].isnan()


def test_without_neighbours_the_classifier_speaks_alone(model):
    model.remove(model.method.store.ids())
    scores = model.scores(TEXTS)
    assert torch.equal(scores.final, scores.parts["classifier"])
    assert scores.confidence.tolist() == [0.0] * len(TEXTS)
    assert all(prediction.neighbours == () for prediction in model.predict(TEXTS))


def test_a_text_is_no_evidence_for_itself(model, tmp_path, tiny_corpus):
    stored = list(tiny_corpus.train[:4])
    scores = model.scores(
        [document.text for document in stored] + ["goal", "goal"],
        [document.id for document in stored] + [None, "an id that is not stored"],
    )
    for row, document in enumerate(stored):
        assert_scores(scores, row, by_loops(model, tmp_path / "model", document.text, k=5, own_id=document.id))
    for row in (4, 5):  # these also have exactly k neighbours
        assert_scores(scores, row, by_loops(model, tmp_path / "model", "goal", k=5))


def test_the_only_stored_document_is_no_evidence_for_itself(model):
    model.remove(model.method.store.ids()[1:])
    (own_id,) = model.method.store.ids()
    scores = model.scores(["goal", "goal"], [own_id, None])
    assert scores.confidence.tolist()[0] == 0
    assert torch.equal(scores.final[0], scores.parts["classifier"][0])
    assert float(scores.parts["neighbours"][1].sum()) > 0


def contrast_by_loops(views: torch.Tensor, labels: torch.Tensor, temperature: float) -> float:
    """Average Eq. 4-6 over the 2N anchors, one number at a time."""
    count = len(labels)
    losses = []
    for i in range(2 * count):
        terms = {}
        for j in set(range(2 * count)) - {i}:
            a, b = labels[i % count].bool(), labels[j % count].bool()
            larger = max(int(a.sum()), int(b.sum()))
            overlap = int((a & b).sum()) / larger if larger else 1.0
            cosine = float(views[i] @ views[j] / (views[i].norm() * views[j].norm()))
            terms[j] = (2 - overlap) * math.exp(cosine / temperature)
        losses.append(-math.log(terms[(i + count) % (2 * count)] / sum(terms.values())))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_the_loss_is_cross_entropy_and_contrast(training, scale):
    made = training(alpha=0.4, temperature=0.2)
    made.network.eval()  # no dropout: both views are the same
    made.network.scale.fill_(scale)
    rows = torch.tensor([7, 1, 30, 2, 11])
    h = scale * made.network.encode(made.train_tokens)[rows].double()
    weight, bias = (p.detach().double() for p in (made.network.head.weight, made.network.head.bias))
    labels = made.labels[rows]
    bce = 0.0
    for n in range(len(rows)):
        for column in range(len(bias)):
            p = 1 / (1 + math.exp(-float(weight[column] @ h[n] + bias[column])))
            bce -= math.log(p if labels[n, column] else 1 - p) / labels.numel()
    expected = bce + 0.4 * contrast_by_loops(torch.cat([h, h]), labels, 0.2)
    assert float(made.compute(*made.prepare(rows)).detach()) == pytest.approx(expected, rel=1e-4)


def test_filling_a_pass_up_changes_neither_loss_nor_gradients(training):
    """Recorded steps need few shapes; the padding document must not count."""
    found = []
    for multiple in (1, 64):
        made = training(alpha=0.4, temperature=0.2)
        made.network.eval()
        made.multiple = multiple
        ids, starts, labels, seeds = made.prepare(torch.tensor([7, 1, 30, 2, 11]))
        assert len(ids) % multiple == 0 and int(starts[-1]) == len(ids) and len(starts) == 11 + (multiple > 1)
        loss = made.compute(ids, starts, labels, seeds)
        weights = [w for w in made.network.parameters() if w.requires_grad]
        found.append((loss, *torch.autograd.grad(loss, weights)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_average_can_be_the_final_score(model, monkeypatch):
    by_confidence = model.scores(TEXTS)
    monkeypatch.setattr(model.method, "parameters", replace(model.method.parameters, combination="average"))
    monkeypatch.setattr(model.method, "combiner", Average())
    half = model.scores(TEXTS)
    assert torch.equal(half.final, by_confidence.alternatives["average"])
    assert torch.equal(half.alternatives["confidence"], by_confidence.final)
    assert torch.equal(half.confidence, by_confidence.confidence)


def test_label_sets_are_drawn_as_often_as_validation_has_them(training, tmp_path):
    train = [denn.Document("t", ("a", "b"))] * 30 + [denn.Document("t", ("c",))] * 10
    valid = (
        [denn.Document("t", ("b", "a"))] * 10 + [denn.Document("t", ("c",))] * 30 + [denn.Document("t", ("d",))] * 40
    )
    weights = as_in(train, valid)  # 60 and 20 of 80 are expected
    assert weights[:30].tolist() == pytest.approx([(10 + 10) / (60 + 10)] * 30)
    assert weights[30:].tolist() == pytest.approx([(30 + 10) / (20 + 10)] * 10)
    drawn = {}
    for draw in ("evenly", "as_valid"):
        made, seen = training(draw=draw, epochs=1, alpha=0.0), []
        prepare = made.prepare
        made.prepare = lambda rows, seen=seen, prepare=prepare: seen.extend(rows.tolist()) or prepare(rows)
        (tmp_path / draw).mkdir()
        made.run(tmp_path / draw, Silent(), Clock())
        drawn[draw] = seen
    assert len(drawn["evenly"]) == len(set(drawn["evenly"])) == len(drawn["as_valid"]) > len(set(drawn["as_valid"]))


def test_views_that_score_apart_cost_what_they_differ_by(training):
    first, second = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, -1.0]])
    p, q = (1 / (1 + math.exp(-logit)) for logit in (2.0, -1.0))
    forth = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    back = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    assert float(disagreement(first, second)) == pytest.approx((forth + back) / 2 / 2)  # two labels, one the same
    made, rows = training(alpha=1e-9), torch.arange(8)
    made.network.train()
    losses = []
    for weight in (0.0, 3.0):
        made.network.settings = replace(made.parameters, consistency=weight)
        torch.manual_seed(0)
        losses.append(float(made.compute(*made.prepare(rows)).detach()))
    assert losses[1] > losses[0]


def test_each_contrast_is_used_by_its_name(training):
    rows, found = torch.arange(16), {}
    made = training(alpha=0.0)
    made.network.eval()
    cross_entropy = float(made.compute(*made.prepare(rows)).detach())
    for name, contrast in CONTRASTS.items():
        made = training(alpha=1.0, temperature=0.2, loss=name)
        made.network.eval()
        h = torch.nn.functional.normalize(made.network.encode(made.train_tokens)[rows], dim=1).repeat(2, 1)
        found[name] = float(made.compute(*made.prepare(rows)).detach()) - cross_entropy
        expected = float(contrast(h @ h.T, made.labels[rows], 0.2).mean())
        assert found[name] == pytest.approx(expected, rel=1e-3)
    assert len({round(value, 2) for value in found.values()}) == len(CONTRASTS) == 4


@pytest.fixture(scope="session")
def masking_encoder(tiny_encoder, tmp_path_factory) -> Path:
    """The random BERT with a mask token in the place of one that it does not use."""
    folder = shutil.copytree(tiny_encoder, tmp_path_factory.mktemp("masking") / "bert")
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"<pad>"', '"[MASK]"'))
    return folder


def test_each_view_is_used_by_its_name(training, masking_encoder):
    changed, masked = {}, {}
    for view in VIEWS:
        made = training(view=view, encoder=str(masking_encoder))
        seen = []
        made.network.encoder.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.extend(inputs))
        torch.manual_seed(3)
        made.compute(*made.prepare(torch.arange(12))).backward()
        ids, layout = seen[0].split(list(seen[1].lengths)), seen[1]
        assert layout.lengths[0::2] == layout.lengths[1::2]
        changed[view] = sum(int((a != b).sum()) for a, b in zip(ids[0::2], ids[1::2], strict=True))
        masked[view] = sum(int((b == 1).sum()) for b in ids[1::2])
        assert all(1 not in a for a in ids[0::2])
    assert changed["dropout"] == masked["dropout"] == masked["shuffle"] == 0
    assert changed["masking"] == masked["masking"] > 0
    assert changed["span"] == masked["span"] >= 12
    assert changed["shuffle"] > changed["span"]


def test_an_encoder_without_a_mask_token_is_refused_before_any_work(training):
    with pytest.raises(ConfigError, match="has no mask token"):
        training(view="span")


def test_every_contrast_and_view_can_be_asked_for():
    hints = get_type_hints(DennParameters)
    assert set(get_args(hints["loss"])) == set(CONTRASTS)
    assert set(get_args(hints["view"])) == set(VIEWS)


@pytest.mark.parametrize(("alpha", "views"), [(0.0, 1), (0.1, 2)])
def test_without_contrast_there_is_one_view(training, alpha, views):
    made = training(alpha=alpha)
    seen = []
    made.network.head.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    made.network.train()
    made.compute(*made.prepare(torch.arange(8))).backward()
    assert seen == [8 * views]
    assert all(parameter.grad is not None for parameter in made.network.parameters())


def test_the_two_views_differ_by_dropout(training):
    made = training()
    made.network.train()
    seen = []
    made.network.encoder.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    made.compute(*made.prepare(torch.arange(4)))
    first, second = seen[0][0::2], seen[0][1::2]
    cosine = torch.cosine_similarity(first[:, None], second[None], dim=2)
    assert not torch.allclose(first, second, atol=1e-3)
    assert cosine.argmax(1).tolist() == [0, 1, 2, 3], "each view is nearest to the other of its text"


@pytest.mark.parametrize("select", ["classifier", "combined"])
def test_which_validation_score_selects_the_weights(training, select):
    made = training(select=select)
    scores = made.validate()
    assert scores["score"] == scores["combined_micro_f1" if select == "combined" else "micro_f1"]
    assert ("combined_micro_f1" in scores) == (select == "combined")


@pytest.mark.parametrize("combination", ["confidence", "average"])
def test_the_combined_validation_score_is_that_of_the_model(model, training, tiny_corpus, combination, monkeypatch):
    made = training(select="combined", combination=combination)
    monkeypatch.setattr(model.method, "parameters", replace(model.method.parameters, combination=combination))
    monkeypatch.setattr(model.method, "combiner", lookup(COMBINERS, combination, "combination")())
    made.network = model.method.network
    embeddings = made.network.encode(made.valid_tokens)
    stored = made.network.encode(made.train_tokens)
    found = made.combined(embeddings, made.network.probabilities(embeddings), stored)
    expected = model.scores([document.text for document in tiny_corpus.valid]).final
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_no_validation_part_keeps_the_last_weights(training, tiny_corpus):
    assert training(corpus=denn.Corpus(train=tiny_corpus.train)).validate() == {}


def test_the_head_start_and_the_scale(training):
    rows, losses = torch.arange(60), []
    for epochs in (0, 40):
        made = training(alpha=0.0, head_start=epochs, embedding_norm=2.5)
        made.network.start(made.train_tokens, made.labels, made.parameters, Silent(), 512)
        losses.append(float(made.network.eval() and made.compute(*made.prepare(rows)).detach()))
        norms = (made.network.scale * made.network.encode(made.train_tokens)).norm(dim=1)
        assert float(norms.mean()) == pytest.approx(2.5, rel=1e-4)
    assert losses[1] < 0.9 * losses[0]


def test_documents_that_are_cut_are_counted(tiny_corpus, tiny_settings, tmp_path):
    notes = []

    class Heard(Silent):
        def note(self, message: str) -> None:
            notes.append(message)

    settings = {**tiny_settings, "max_length": 8, "epochs": 1, "allow_poor": True}
    with denn.train(tiny_corpus, out=tmp_path / "m", progress=Heard(), **settings) as model:
        long = sum(len(document.text.split()) > 6 for document in tiny_corpus.train)
        assert model.card.training["documents_cut"] == long > 0
        assert f"cutting {long} of 60 documents to 8 tokens" in notes


def test_devices():
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("quantum", "", "cpu:0", "cpu:x", "cuda:", "cuda:x", "cuda:-1", "cuda:99999"):
        with pytest.raises(ConfigError, match=f"Unknown device '{name}', expected auto, cpu, cuda or cuda:0"):
            device_of(name)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device found"):
            device_of("cuda")


def test_a_gpu_that_this_machine_does_not_have(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert [device_of(name) for name in ("cuda", "cuda:1")] == [torch.device("cuda"), torch.device("cuda", 1)]
    assert chosen == [torch.device("cuda", 1)]
    for index in (2, 300):  # torch.device reads cuda:300 as cuda:44
        with pytest.raises(ConfigError, match=f"got index {index}, expected at most 1, because .* has 2 CUDA devices"):
            device_of(f"cuda:{index}")


def test_saving_follows_training(tiny_settings, tmp_path):
    with pytest.raises(TypeError, match=r"call fit\(\) before save"):
        DENN(make_recipe("denn", tiny_settings).parameters).save(tmp_path)


def test_lower_layers_learn_more_slowly(training):
    made = training(learning_rate=1e-3, head_learning_rate=None, layer_decay=0.5)
    rates = {id(weight): group["lr"] for group in made.network.groups(made.parameters) for weight in group["params"]}
    layers = {}
    for name, weight in made.network.named_parameters():
        found = re.search(r"layer\.(\d+)\.", name)
        layers.setdefault(int(found[1]) if found else name.partition(".")[0], set()).add(rates[id(weight)])
    top = max(key for key in layers if isinstance(key, int))
    assert layers.pop("head") == {1e-3}
    assert layers.pop("encoder") == {1e-3 * 0.5 ** (top + 1)}  # the embeddings
    assert layers == {layer: {1e-3 * 0.5 ** (top - layer)} for layer in range(top + 1)}


@pytest.mark.parametrize(("scores", "expected"), [([[0.2, 0.9]] * 3, 0.0), ([[1.0, 0.0], [0.0, 1.0]], 0.5**0.5)])
def test_the_spread_says_how_much_the_scores_of_texts_differ(scores, expected):
    assert spread(torch.tensor(scores)) == pytest.approx(expected, abs=1e-3)


@pytest.fixture
def heard(tiny_model, tmp_path):
    """A copy of the tiny model with three witnesses that may be changed."""
    shutil.copytree(tiny_model, tmp_path / "heard")
    with denn.load(tmp_path / "heard") as loaded:
        yield loaded


def test_the_combination_is_learnt_by_the_recipes_seed(heard, tiny_corpus, tmp_path):
    finals = []
    for seed in (0, 5):
        heard.method.parameters = replace(heard.method.parameters, seed=seed)
        finals.append(heard.method.calibrate(tiny_corpus.valid, tmp_path, Silent()).scores.final)
    assert not torch.equal(*finals), "other folds give other held-out scores"


def test_validation_documents_whose_scores_do_not_fit_into_memory_are_drawn(
    heard, tiny_corpus, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(denn.methods.denn, "CALIBRATION_BYTES", 4 * MATRICES * len(heard.labels) * 30)
    with caplog.at_level("INFO", "denn"):
        drawn = heard.method.calibrate(tiny_corpus.valid, tmp_path, Silent())
    again = heard.method.calibrate(tiny_corpus.valid, tmp_path, Silent())
    assert len(drawn.documents) == drawn.facts["validation_documents_used"] == len(drawn.scores.final) == 30
    assert drawn.documents == again.documents == sorted(drawn.documents, key=tiny_corpus.valid.index)
    assert drawn.documents != tiny_corpus.valid[:30]
    assert "using a random sample of 30 documents" in caplog.text
    texts = [document.text for document in drawn.documents]
    torch.testing.assert_close(drawn.scores.parts["words"], heard.scores(texts).parts["words"])


def test_a_model_is_trained_on_drawn_validation_documents(tiny_corpus, tiny_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(denn.methods.denn, "CALIBRATION_BYTES", 4 * MATRICES * len(tiny_corpus.labels) * 30)
    with denn.train(tiny_corpus, out=tmp_path / "model", **tiny_settings) as model:
        assert model.card.training["combination"]["documents"] == 30
        assert model.card.training["validation_documents_used"] == 30


def test_the_confidence_asks_for_the_two_witnesses_that_it_weighs(tiny_settings):
    with pytest.raises(ConfigError, match="classifier and neighbours by λ and needs both"):
        make_recipe("denn", {**tiny_settings, "combination": "confidence", "witnesses": ["classifier", "words"]})


def test_an_unknown_combination_is_an_error_before_any_training(tiny_settings):
    with pytest.raises(ConfigError, match="Did you mean 'average'"):
        make_recipe("denn", {**tiny_settings, "combination": "averag"})

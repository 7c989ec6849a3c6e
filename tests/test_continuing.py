"""Continuing from a model: weights, labels and settings carry over, and stored documents on request."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import denn
from denn.errors import ConfigError
from denn.progress import Silent
from denn.training.head import start_head


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, message):
        self.notes.append(message)


@pytest.fixture
def more(tiny_corpus) -> denn.Corpus:
    """Twenty documents that the tiny model does not store, half of them with a new label."""
    train = [
        denn.Document(
            f"{one.text} telescope", (*one.labels, "astronomy") if number % 2 else one.labels, f"more-{number}"
        )
        for number, one in enumerate(tiny_corpus.test)
    ]
    return denn.Corpus(train=train, valid=tiny_corpus.valid, name="more")


def head(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "head.safetensors")


def test_a_carried_head_keeps_its_rows_and_starts_the_others():
    linear, labels = nn.Linear(4, 3), torch.tensor([[True, False, False], [True, True, False]] * 4)
    with torch.no_grad():
        linear.bias.fill_(7.0)
    start_head(linear, torch.randn(8, 4), labels, 0, 0, carried=2)
    assert linear.bias[:2].tolist() == [7.0, 7.0]
    assert float(linear.bias[2].detach()) == pytest.approx(float(torch.logit(torch.tensor(0.5 / 8))))


def test_weights_labels_and_settings_carry_over(tiny_model, tiny_corpus, more, tmp_path):
    heard = Notes()
    arguments = {"continue_from": tiny_model, "progress": heard, "allow_poor": True}
    with denn.train(more, out=tmp_path / "new", epochs=0, **arguments) as model:
        names = model.labels.names
        assert names[:-1] == tiny_corpus.labels.names and names[-1] == "astronomy"
        assert model.card.parameters["k"] == 5 and model.card.parameters["device"] == "auto"
        assert model.card.training["continued_from"]["corpus"] == "tiny"
        assert set(model.store.ids()) == {one.id for one in more.train}
    old, new = head(tiny_model), head(tmp_path / "new")
    assert torch.equal(new["scale"], old["scale"]) and torch.equal(new["head.weight"][:6], old["head.weight"])
    assert torch.equal(new["head.bias"][:6], old["head.bias"]) and len(new["head.bias"]) == 7
    assert float(new["head.bias"][6]) == pytest.approx(0.0, abs=1e-6), "half of the documents have it"
    files = (folder / "encoder" / "model.safetensors" for folder in (tiny_model, tmp_path / "new"))
    before, after = (load_file(file) for file in files)
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())
    assert (
        "the original model's datastore has 60 documents not in the corpus; --with-store trains on the datastore, too"
        in (heard.notes)
    )
    assert "1 new label" in heard.notes


def test_quick_learns_a_new_label_on_the_old_encoder_and_the_stored_documents(tiny_model, tiny_corpus, more, tmp_path):
    folder, heard = Path(shutil.copytree(tiny_model, tmp_path / "old")), Notes()
    with denn.load(folder) as model:
        model.add([denn.Document("the violin of the chef", ("music", "taught"), "mine")])
    arguments = {"continue_from": folder, "effort": "quick", "progress": heard, "device": "cpu"}
    with denn.train(more, out=tmp_path / "new", with_store=True, **arguments) as model:
        assert len(model.store) == len(tiny_corpus.train) + 1 + len(more.train)
        assert model.labels.names[6:] == ("astronomy", "taught")
        assert model.store.get(["mine"])[0].labels == ("music", "taught")
        assert model.card.training["frozen"] and model.card.metrics["micro_f1"] > 0.8
        assert "astronomy" in model.predict([more.train[1].text])[0].scores
    assert heard.notes[:2] == ["also training on 61 stored documents of the original model", "2 new labels"]
    encoders = (path / "encoder" / "model.safetensors" for path in (folder, tmp_path / "new"))
    before, after = (load_file(file) for file in encoders)
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


def test_documents_that_the_corpus_has_are_not_taken_from_the_store(tiny_model, tiny_corpus, more, tmp_path):
    heard = Notes()
    train = [*more.train, *tiny_corpus.train[:10], denn.Document("rewritten", ("sport",), tiny_corpus.train[10].id)]
    corpus = denn.Corpus(train=train, valid=[*more.valid, tiny_corpus.train[11]])
    arguments = {"continue_from": tiny_model, "effort": "quick", "progress": heard}
    with denn.train(corpus, out=tmp_path / "new", with_store=True, **arguments) as model:
        assert len(model.store) == len(train) + 60 - 11
        assert model.store.get([tiny_corpus.train[10].id])[0].text == "rewritten"
        (older,) = model.store.get(model.store.select(denn.Where(text=tiny_corpus.train[10].text)))
        assert older.labels == tiny_corpus.train[10].labels and older.id.startswith("doc-")
    assert heard.notes[0].startswith("1 of 61 validation documents may have been used to train the original model")
    assert "also training on 49 stored documents of the original model" in heard.notes
    assert "new ids for 1 stored document: the corpus has other texts with these ids" in heard.notes


def test_a_stored_document_is_replaced_by_one_with_its_own_id(tiny_model, tiny_corpus, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "old"))
    with denn.load(folder) as model:
        model.add([denn.Document("an old text", ("sport",), "mine")])
    corpus = denn.Corpus([denn.Document("a new text", ("sport",), "mine")], tiny_corpus.valid)
    arguments = {"continue_from": folder, "effort": "quick", "allow_poor": True, "with_store": True}
    with denn.train(corpus, out=tmp_path / "new", **arguments) as model:
        assert len(model.store) == 61 and model.store.get(["mine"])[0].text == "a new text"


def test_the_labels_of_a_model_are_known_after_one_of_them_is_renamed(tiny_model, tiny_corpus, tmp_path, caplog):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "old"))
    with denn.load(folder) as model:
        model.rename_label("sport", "Sports")
    train = [denn.Document("a chord", ("music", "brand new")), denn.Document("a goal", ("Sports", "music"))]
    for number, corpus in enumerate((denn.Corpus(train[:1]), denn.Corpus(train, tiny_corpus.valid))):
        arguments = {"continue_from": folder, "effort": "quick", "allow_poor": True, "with_store": True}
        with denn.train(corpus, out=tmp_path / str(number), **arguments) as model:
            assert model.labels.names == (*tiny_corpus.labels.names, "brand new")
            assert model.vocabulary.names(["sport", "music"]) == {"sport": "Sports"}
    assert "vocabulary" not in caplog.text


def test_a_label_without_documents_is_said_to_fade(tiny_model, tiny_corpus, tmp_path):
    corpus = denn.Corpus(train=[denn.Document("goal match", ("sport",)), denn.Document("of the", ("new",))])
    heard = Notes()
    with denn.train(corpus, out=tmp_path / "n", continue_from=tiny_model, effort="quick", progress=heard) as model:
        assert len(model.labels) == 7
    assert "the model may lose 5 labels for lack of training documents" in heard.notes


def test_a_resumed_training_continues_from_the_same_model_only(tiny_model, more, tmp_path):
    class Ending(Notes):
        def start(self, stage):
            if stage.what == "writing the model":
                raise KeyboardInterrupt

    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    card = json.loads((other / "bundle.json").read_text())
    (other / "bundle.json").write_text(json.dumps({**card, "created": "2020-01-01T00:00:00+00:00"}))
    arguments = {"epochs": 1, "allow_poor": True}
    with pytest.raises(KeyboardInterrupt):
        denn.train(more, out=tmp_path / "new", continue_from=tiny_model, progress=Ending(), **arguments)
    with pytest.raises(denn.DennError, match="unfinished training run with other data or settings"):
        denn.train(more, out=tmp_path / "new", continue_from=other, **arguments)
    denn.train(more, out=tmp_path / "new", continue_from=tiny_model, **arguments).close()


def test_what_cannot_be_continued_is_refused(tiny_model, tiny_corpus, more, tmp_path):
    with pytest.raises(ConfigError, match="Got encoder = 'mpnet' with a model to continue from"):
        denn.train(more, out=tmp_path / "new", continue_from=tiny_model, encoder="mpnet")
    with pytest.raises(ConfigError, match="with_store needs a model to continue from"):
        denn.train(more, out=tmp_path / "new", with_store=True)
    denn.train(tiny_corpus, out=tmp_path / "dummy", method="dummy").close()
    with pytest.raises(ConfigError, match="was trained with the method 'dummy'; only a model of the method 'denn'"):
        denn.train(more, out=tmp_path / "new", continue_from=tmp_path / "dummy")
    with pytest.raises(denn.DennError, match="no such folder"):
        denn.train(more, out=tmp_path / "new", continue_from=tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["dummy"]


def test_a_refitted_model_is_continued_with_a_new_head(tiny_model, tiny_corpus, tmp_path):
    refitted = shutil.copytree(tiny_model, tmp_path / "refitted")
    denn.refit(refitted, force=True).close()
    with denn.train(tiny_corpus, out=tmp_path / "new", continue_from=refitted, effort="quick") as model:
        assert model.labels.names == tiny_corpus.labels.names
        assert model.evaluate(tiny_corpus.test).headline["micro_f1"] > 0.6

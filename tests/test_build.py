"""From a corpus to a bundle: what is rejected, resumed and replaced, and nothing else."""

import json
import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import denn
from denn import bundle
from denn.build import _fingerprint
from denn.config import make_recipe
from denn.errors import ConfigError, ConflictError, DataError, DennError, TrainingError
from denn.prediction_types import Scores
from denn.progress import Silent
from denn.protocols import Method
from denn.refusals import existing_model
from denn.registry import METHODS
from denn.types import Fitted, LabelSpace
from denn.validation import changing
from denn.vocabulary import Vocabulary, VocabularyEntry

pytestmark = pytest.mark.slow  # most tests here train


@pytest.fixture
def brief(tiny_settings) -> dict[str, object]:
    """Arguments for training one epoch, even if the model is poor."""
    return {**tiny_settings, "epochs": 1, "allow_poor": True}


@pytest.fixture
def puzzle() -> denn.Corpus:
    """A corpus whose texts are unrelated to its labels: of ten documents six have a, three b, one c."""
    documents = [denn.Document("always the same", (label,)) for label in "aaaaaabbbc"]
    return denn.Corpus(train=documents * 2, valid=documents)


class Interrupting:
    """Progress that ends the run when a stage begins."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def start(self, stage) -> None:
        if stage.what == self.stage:
            raise KeyboardInterrupt

    def advance(self, done: int, **values: object) -> None:
        pass

    def note(self, message: str) -> None:
        pass


class Heard(Silent):
    """Progress that records its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def interrupt(corpus, out, stage="writing the model", **settings) -> None:
    with pytest.raises(KeyboardInterrupt):
        denn.train(corpus, out=out, progress=Interrupting(stage), **settings)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_training_leaves_the_bundle_and_nothing_else(tiny_corpus, brief, tmp_path):
    with denn.train(tiny_corpus, out=tmp_path / "deep" / "model", **brief) as model:
        assert model.card.training["steps"] == 4
    assert names(tmp_path / "deep") == {"model"}


def test_a_folder_with_other_content_is_refused_and_untouched(tiny_corpus, brief, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(TrainingError, match="exists and is not a model; expected a new folder"):
        denn.train(tiny_corpus, out=tmp_path, **brief)
    file = tmp_path / "thesis.txt"
    with pytest.raises(TrainingError, match="exists and is not a model"):
        denn.train(tiny_corpus, out=file, **brief)
    assert names(tmp_path) == {"thesis.txt"}
    assert file.read_text() == "precious"


@pytest.mark.parametrize("restart", [False, True])
def test_a_folder_that_has_the_name_of_our_workdir_is_refused_and_untouched(tiny_corpus, brief, tmp_path, restart):
    mine = tmp_path / "model.training"
    mine.mkdir()
    (mine / "notes.txt").write_text("precious")
    with pytest.raises(TrainingError, match="exists and is not an unfinished training run"):
        denn.train(tiny_corpus, out=tmp_path / "model", restart=restart, **brief)
    assert (mine / "notes.txt").read_text() == "precious"


def test_an_older_model_stays_until_the_new_one_is_done(tiny_corpus, tiny_model, brief, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    before = (folder / "bundle.json").read_text()
    interrupt(tiny_corpus, folder, replace=True, **brief)
    assert (folder / "bundle.json").read_text() == before
    denn.load(folder).close()
    denn.train(tiny_corpus, out=folder, replace=True, **brief).close()
    assert json.loads((folder / "bundle.json").read_text())["parameters"]["epochs"] == 1
    assert names(tmp_path) == {"model"}


def test_an_interrupted_training_is_taken_up(tiny_corpus, brief, tmp_path):
    with denn.train(tiny_corpus, out=tmp_path / "whole", **brief) as whole:
        expected = whole.card
    interrupt(tiny_corpus, tmp_path / "model", **brief)
    assert names(tmp_path) == {"whole", "model.training"}
    with denn.train(tiny_corpus, out=tmp_path / "model", **brief) as model:
        assert model.card.digests == expected.digests
        assert model.card.thresholds == expected.thresholds
        assert model.card.training["history"][0]["step"] == 4


def test_other_settings_do_not_take_up_an_unfinished_training(tiny_corpus, brief, tmp_path):
    out = tmp_path / "model"
    interrupt(tiny_corpus, out, **brief)
    fewer = denn.Corpus(train=tiny_corpus.train[:-1], valid=tiny_corpus.valid, labels=tiny_corpus.labels)
    for corpus, settings in ((tiny_corpus, {**brief, "seed": 7}), (fewer, brief)):
        with pytest.raises(TrainingError, match=r"unfinished training run with other data or settings.*--restart"):
            denn.train(corpus, out=out, **settings)
    with denn.train(tiny_corpus, out=out, restart=True, **{**brief, "seed": 7}) as model:
        assert model.card.parameters["seed"] == 7
    assert names(tmp_path) == {"model"}


def test_rejected_labels_and_names_of_labels_belong_to_a_run(tiny_corpus):
    recipe = make_recipe("denn", {})
    rejecting = replace(tiny_corpus.train[0], rejected=("never",))
    others = (
        replace(tiny_corpus, train=[rejecting, *tiny_corpus.train[1:]]),
        replace(tiny_corpus, vocabulary=Vocabulary((VocabularyEntry("sport", "Sports"),))),
        replace(tiny_corpus, vocabulary=Vocabulary((VocabularyEntry("sport", "Games"),))),
    )
    assert len({_fingerprint(corpus, recipe) for corpus in (tiny_corpus, *others)}) == 4


def test_more_epochs_go_on_with_an_unfinished_training(tiny_corpus, brief, tmp_path):
    interrupt(tiny_corpus, tmp_path / "model", **brief)
    with denn.train(tiny_corpus, out=tmp_path / "model", **{**brief, "epochs": 2}) as model:
        assert [entry["step"] for entry in model.card.training["history"]] == [4, 8]


def test_a_restart_begins_anew(tiny_corpus, brief, tmp_path):
    interrupt(tiny_corpus, tmp_path / "model", **brief)
    (tmp_path / "model.training" / "last.safetensors").write_bytes(b"damaged")
    with pytest.raises(TrainingError, match="--restart"):
        denn.train(tiny_corpus, out=tmp_path / "model", **brief)
    denn.train(tiny_corpus, out=tmp_path / "model", restart=True, **brief).close()
    assert names(tmp_path) == {"model"}


def test_a_training_that_was_killed_at_its_very_first_files(tiny_corpus, tmp_path):
    (tmp_path / "model.training").mkdir()
    (tmp_path / "model.training" / "run.json.part").write_text('{"fing')
    denn.train(tiny_corpus, out=tmp_path / "model", method="dummy").close()
    assert names(tmp_path) == {"model"}


def test_nothing_to_learn_is_refused_before_anything_is_written(brief, tmp_path):
    for documents in ([], [denn.Document("text")]):
        with pytest.raises(DataError, match=f"None of the {len(documents)} training documents has a label"):
            denn.train(denn.Corpus(train=documents), out=tmp_path / "model", **brief)
    assert names(tmp_path) == set()


@pytest.mark.parametrize("label", ["two\nlines", "end\n", "carriage\rreturn", ""])
def test_a_label_of_more_than_one_line_is_refused(brief, tmp_path, label):
    corpus = denn.Corpus(train=[denn.Document("text", ("good", label))])
    with pytest.raises(DataError, match="expected a name on one line"):
        denn.train(corpus, out=tmp_path / "model", **brief)
    assert names(tmp_path) == set()


def test_labels_that_cannot_be_stored_are_refused_before_training(brief, tmp_path):
    documents = [denn.Document("text", ("a", "b"))]
    twice = denn.Corpus(train=documents, labels=LabelSpace(("a", "b", "a")))
    with pytest.raises(DataError, match="Got the label 'a' twice, expected different names"):
        denn.train(twice, out=tmp_path / "model", **brief)
    for labels, rejected in (((" ",), ()), (("a",), (" ",))):
        corpus = denn.Corpus(train=[denn.Document("text", labels, rejected=rejected)])
        with pytest.raises(DennError, match="got the label ' ', expected a name with at least one visible character"):
            denn.train(corpus, out=tmp_path / "model", **brief)
    assert names(tmp_path) == set()


def test_a_method_may_have_a_parameter_named_like_one_of_the_reader(tiny_corpus, tmp_path):
    settings = {"word_width": 8, "max_length": 20, "epochs": 1, "device": "cpu"}
    with denn.train(tiny_corpus, out=tmp_path / "m", method="leam", vocabulary=50, allow_poor=True, **settings) as made:
        assert len(made.method.network.encoder.words) == 52  # with padding and the unknown word


def test_unknown_parameters_and_methods_are_refused_at_once(tiny_corpus, tmp_path):
    with pytest.raises(ConfigError, match=r"label_columns is a parameter of read_corpus\. Write denn\.train\("):
        denn.train(tiny_corpus, out=tmp_path / "model", label_columns="*")
    with pytest.raises(ConfigError, match=r"no parameter 'epoch'\. Did you mean 'epochs'\?"):
        denn.train(tiny_corpus, out=tmp_path / "model", epoch=3)
    with pytest.raises(ConfigError, match=r"Unknown method 'den'.*Did you mean 'denn'\?"):
        denn.train(tiny_corpus, out=tmp_path / "model", method="den")
    assert names(tmp_path) == set()


def test_without_validation_thresholds_stay_at_a_half(tiny_corpus, brief, tmp_path, caplog):
    with (
        caplog.at_level(logging.INFO, "denn"),
        denn.train(denn.Corpus(train=tiny_corpus.train), out=tmp_path / "model", **brief) as model,
    ):
        assert {thresholds.overall for thresholds in model.card.thresholds.values()} == {0.5}
        assert set(model.card.thresholds) == {"final", "classifier", "neighbours", "words", "average", "confidence"}
        assert model.evaluate(tiny_corpus.test).headline["threshold"] == 0.5
    assert "there are no validation documents: thresholds stay at 0.5, and the model's quality" in caplog.text
    assert "step 4: loss" in caplog.text, "notes go to the log where nobody watches"


def test_a_model_that_learnt_nothing_is_not_written(puzzle, tmp_path):
    settings = {"method": "br", "min_df": 1, "jobs": 1}
    with pytest.raises(TrainingError) as refused:
        denn.train(puzzle, out=tmp_path / "model", **settings)
    assert str(refused.value).startswith(
        "The model was not written: its micro-F1 is 60.0 on 10 held-out documents, and always predicting the most "
        "frequent label gets 60.0. Run the same command with more epochs or time"
    )
    assert "--allow-poor" in str(refused.value) and "\n" not in str(refused.value)
    assert names(tmp_path) == set(), "nothing to resume"
    with denn.train(puzzle, out=tmp_path / "model", allow_poor=True, **settings) as model:
        assert model.card.metrics["micro_f1"] == 0.6


@dataclass(frozen=True)
class Aim:
    """The metric that the thresholds of `Clumsy` are tuned for."""

    optimise: str = "micro_f1"


class Clumsy(Method):
    """Sure of the label a; with a threshold for each label it also predicts c and d for every text."""

    Parameters = Aim

    def __init__(self, parameters):
        self.parameters = parameters

    def fit(self, corpus, workdir, progress, clock=None):
        return Fitted({}, corpus)

    def scores(self, texts, own_ids=None):
        rows = [[0.9 if "a" in text else 0.5, 0.3 if "b" in text else 0.2, 0.3, 0.3] for text in texts]
        return Scores(torch.tensor(rows), ("a", "b", "c", "d"))

    def save(self, folder):
        """Nothing is learnt."""

    @classmethod
    def load(cls, folder, parameters, labels):
        return cls(parameters)


@pytest.mark.parametrize("optimise", ["micro_f1", "macro_f1"])
def test_a_model_for_macro_f1_is_not_poor_for_its_micro_f1(optimise, tmp_path, monkeypatch):
    monkeypatch.setitem(METHODS.own, "clumsy", f"{__name__}:Clumsy")
    texts = [*(["a"] * 5), "a b", "a c", "a d", "", ""]
    documents = [denn.Document(f"{text} {number}", tuple(text.split())) for number, text in enumerate(texts)]
    with denn.train(
        denn.Corpus(train=documents, valid=documents), out=tmp_path / "model", method="clumsy", optimise=optimise
    ) as model:
        constant = 2 * 8 / (10 + 11)  # of always predicting a
        assert (model.card.metrics["micro_f1"] > constant) == (optimise == "micro_f1")


def test_a_poor_model_leaves_the_older_one_and_its_own_checkpoint(puzzle, tiny_model, brief, tmp_path):
    out = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    before = (out / "bundle.json").read_bytes()
    settings = {**brief, "batch_size": 10, "checkpoint_seconds": 0, "replace": True}
    with pytest.raises(TrainingError, match=r"always predicting the most frequent label gets 60\.0"):
        denn.train(puzzle, out=out, **{**settings, "allow_poor": False})
    assert (out / "bundle.json").read_bytes() == before
    assert names(tmp_path) == {"model", "model.training"} and not (tmp_path / "model.training" / "bundle").exists()
    with denn.train(puzzle, out=out, progress=(heard := Heard()), **settings) as model:
        assert model.card.corpus["train"] == 20
    assert heard.notes == ["resuming at step 2 of 2"], "it is written without training again"
    assert names(tmp_path) == {"model"}


@pytest.mark.parametrize("method", ["denn", "bert"])
def test_a_training_that_diverged_says_so_and_writes_nothing(tiny_corpus, tiny_settings, tmp_path, method):
    settings = {name: value for name, value in tiny_settings.items() if method == "denn" or name not in ("k", "gamma")}
    settings |= {"epochs": 1, "batch_size": 60, "learning_rate": 1e6}  # after one step, no number is finite
    with pytest.raises(TrainingError, match=r"learning rate") as refused:
        denn.train(tiny_corpus, out=tmp_path / "model", method=method, allow_poor=True, **settings)
    assert "\n" not in str(refused.value) and not (tmp_path / "model").exists()
    assert not (tmp_path / "model.training" / "bundle").exists()


def test_nothing_is_compared_where_no_validation_document_has_a_label(puzzle, tmp_path):
    bare = denn.Corpus(train=puzzle.train, valid=[denn.Document("nothing")])
    with denn.train(bare, out=tmp_path / "model", method="br", min_df=1, jobs=1) as model:
        assert model.card.corpus["valid"] == 1 and model.card.metrics["micro_f1"] == 0


def test_the_model_that_train_returns_is_the_one_on_disk(tiny_corpus, brief, tmp_path):
    with denn.train(tiny_corpus, out=tmp_path / "model", **brief) as model:
        texts = [document.text for document in tiny_corpus.test]
        with denn.load(tmp_path / "model") as loaded:
            assert model.predict(texts) == loaded.predict(texts)


def test_rejected_labels_are_stored_and_not_learnt(tiny_corpus, brief, tmp_path):
    texts = [document.text for document in tiny_corpus.test]
    with denn.train(tiny_corpus, out=tmp_path / "plain", **brief) as model:
        plain, thresholds = model.predict(texts, evidence=0), model.card.thresholds
    rejecting = [replace(one, rejected=("nobody has this",)) for one in tiny_corpus.train]
    corpus = replace(tiny_corpus, train=rejecting)
    with denn.train(corpus, out=tmp_path / "rejecting", **brief) as model:
        assert model.labels == tiny_corpus.labels and model.store.labels == (*model.labels.names, "nobody has this")
        assert model.store.get([rejecting[0].id]) == rejecting[:1]
        found = model.predict(texts, evidence=1)
        compared = model.card.training["combination"]
        assert model.card.thresholds == thresholds and compared["documents"] == len(corpus.valid)
        assert "learnt" in compared["scores"]
    assert [one.labels for one in found] == [one.labels for one in plain]
    for one, other in zip(found, plain, strict=True):
        assert one.scores == pytest.approx(other.scores, abs=1e-6)
        assert one.neighbours[0].rejected == ("nobody has this",)


def test_a_path_relative_to_the_working_folder(tiny_corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    denn.train(tiny_corpus, out="model/", method="dummy").close()
    assert names(tmp_path) == {"model"}
    monkeypatch.chdir(tmp_path / "model")
    denn.train(tiny_corpus, out=".", method="dummy", replace=True).close()
    assert names(tmp_path) == {"model"}


def test_what_a_datastore_has_learnt_is_not_thrown_away_unasked(tiny_corpus, brief, tmp_path):
    out = tmp_path / "model"
    with denn.train(tiny_corpus, out=out, **brief) as model:
        model.add([denn.Document("a violin", ("taught",), "mine")])
    with pytest.raises(TrainingError, match="datastore has changed since training"):
        denn.train(tiny_corpus, out=out, **brief)
    with denn.load(out) as model:
        assert "mine" in model.method.store.ids()
    with denn.train(tiny_corpus, out=out, replace=True, **brief) as model:
        assert "mine" not in model.method.store.ids()


def test_a_model_is_not_replaced_unasked(tiny_corpus, tmp_path):
    out = tmp_path / "model"
    assert existing_model(out) is existing_model(tmp_path / "no" / "folder") is None
    denn.train(tiny_corpus, out=out, method="dummy").close()
    before = (out / "bundle.json").read_bytes()
    described = rf"{out} already contains a model \(dummy, 6 labels, 20..-..-..\)\."
    with pytest.raises(TrainingError, match=rf"{described} Choose another --out, or pass --replace \(replace=True\)\."):
        denn.train(tiny_corpus, out=out, method="dummy", seed=1)
    assert (out / "bundle.json").read_bytes() == before and names(tmp_path) == {"model"}
    denn.train(tiny_corpus, out=out, method="dummy", seed=1, replace=True).close()
    assert json.loads((out / "bundle.json").read_text())["parameters"]["seed"] == 1


@pytest.mark.parametrize("damage", ['{"format": 1}', '["no card"]', "", '{"created": "\\u001b[31m"}'])
def test_a_damaged_model_is_not_replaced_unasked_either(tmp_path, damage):
    (tmp_path / "bundle.json").write_text(damage)
    found = existing_model(tmp_path)
    assert found.description == f"{tmp_path} already contains a model (damaged or from another version)."
    assert (found.corpus, found.loss) == ("", "")


def test_what_would_be_lost_with_a_model_is_said(tiny_model, tmp_path):
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    assert existing_model(folder).loss == ""
    (folder / "store" / "store.sqlite").write_bytes(b"damaged")
    assert existing_model(folder).loss == "its datastore cannot be read"
    (folder / "store" / "address").write_text("postgresql://elsewhere/denn")
    assert existing_model(folder).loss == "it uses a datastore elsewhere, which a new model would not use"


def test_a_model_is_not_changed_and_trained_again_at_once(tiny_corpus, tmp_path):
    class Changing(Silent):
        stages = 0

        def start(self, stage):
            with pytest.raises(ConflictError, match="is changing the model"), changing(out):
                pass
            self.stages += 1

    out = tmp_path / "model"
    denn.train(tiny_corpus, out=out, method="dummy").close()
    with changing(out), pytest.raises(ConflictError, match="is changing the model"):
        denn.train(tiny_corpus, out=out, method="dummy", replace=True)
    progress = Changing()
    denn.train(tiny_corpus, out=out, method="dummy", replace=True, progress=progress).close()
    assert progress.stages and names(tmp_path) == {"model"}
    with changing(out):
        pass
    assert not (out / bundle.LOCK).exists()


def test_two_trainings_of_one_folder_are_one_too_many(tiny_corpus, brief, tmp_path):
    class Second:
        refused = None

        def start(self, stage):
            if self.refused is None:
                with pytest.raises(TrainingError, match="Another training run is writing to") as self.refused:
                    denn.train(tiny_corpus, out=tmp_path / "model", **brief)

        def advance(self, done, **values):
            pass

        def note(self, message):
            pass

    second = Second()
    denn.train(tiny_corpus, out=tmp_path / "model", progress=second, **brief).close()
    assert second.refused is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_an_id_twice_is_refused_before_training(brief, tmp_path):
    twice = [denn.Document("x", ("a",), "1"), denn.Document("y", ("b",), "1")]
    with pytest.raises(DataError, match="have the id '1'"):
        denn.train(denn.Corpus(train=twice), out=tmp_path / "model", **brief)


def test_a_training_that_never_began_leaves_nothing(tiny_corpus, tiny_settings, tmp_path):
    with pytest.raises(DennError, match="nonsense"):
        denn.train(tiny_corpus, out=tmp_path / "m", **{**tiny_settings, "encoder": "nonsense"})
    assert not list(tmp_path.iterdir())


def test_a_corpus_may_be_anything_that_can_be_read(tiny_corpus, brief, tmp_path):
    rows = [{"text": d.text, "labels": list(d.labels)} for d in tiny_corpus.train]
    with denn.train(pd.DataFrame(rows), out=tmp_path / "model", **brief) as model:
        assert (model.card.corpus["train"], model.card.corpus["valid"]) == (54, 6)
    with pytest.raises(DataError, match="got int; expected a path, a pandas or polars DataFrame"):
        denn.train(3, out=tmp_path / "other")

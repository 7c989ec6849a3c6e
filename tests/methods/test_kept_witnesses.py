"""What witnesses learnt survives an interruption, is reused only if complete, and leaves no files behind."""

import os
from pathlib import Path

import numpy as np
import pytest

import denn
from denn.clock import Clock
from denn.config import make_recipe
from denn.errors import TrainingError
from denn.progress import Silent
from denn.witnesses.words import NUMBERS, Words

pytestmark = pytest.mark.slow  # trains
READING, EMBEDDING = "reading words", "embedding training documents"


class Ending(Silent):
    """Progress that keeps the names of stages, and ends the run when one begins."""

    def __init__(self, stage="", error=KeyboardInterrupt):
        self.stage, self.error, self.stages, self.notes = stage, error, [], []

    def start(self, stage):
        self.stages.append(stage.what)
        if stage.what == self.stage:
            raise self.error("the end")

    def note(self, message):
        self.notes.append(message)


@pytest.fixture
def brief(tiny_settings):
    return {**tiny_settings, "epochs": 1, "allow_poor": True}


def end(corpus, out, stage, settings, error=KeyboardInterrupt):
    with pytest.raises(error):
        denn.train(corpus, out=out, progress=Ending(stage, error), **settings)


def kept(out: Path) -> Path:
    return out.with_name(f"{out.name}.training") / "witnesses" / "words"


def make_incomplete(folder, method):
    """Write the words again as if there had been no time for the last label."""
    words = Words.load(folder, method)
    words.bias = np.append(words.bias[:-1], np.float32(np.nan))
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    words.save(folder)


def test_words_that_were_learnt_before_an_interruption_are_read_again(tiny_corpus, brief, tmp_path):
    with denn.train(tiny_corpus, out=tmp_path / "whole", **brief) as whole:
        expected = whole.card.digests
    end(tiny_corpus, tmp_path / "model", EMBEDDING, brief)
    assert (kept(tmp_path / "model") / NUMBERS).is_file()
    seen = Ending()
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=seen, **brief) as model:
        assert model.card.digests == expected
    assert READING not in seen.stages and EMBEDDING in seen.stages
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "model"}


@pytest.mark.parametrize("stage", [READING, "learning the words of labels"])
def test_an_interruption_before_anything_is_learnt_leaves_nothing(tiny_corpus, brief, tmp_path, stage):
    end(tiny_corpus, tmp_path / "model", stage, brief)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [RuntimeError, TrainingError])
def test_a_failed_training_leaves_nothing_that_was_not_there_before(tiny_corpus, brief, tmp_path, error):
    end(tiny_corpus, tmp_path / "model", EMBEDDING, brief, error)
    assert not list(tmp_path.iterdir())
    end(tiny_corpus, tmp_path / "model", EMBEDDING, brief)
    before = (kept(tmp_path / "model") / NUMBERS).read_bytes()
    end(tiny_corpus, tmp_path / "model", EMBEDDING, brief, error)
    assert (kept(tmp_path / "model") / NUMBERS).read_bytes() == before


def test_words_that_were_cut_short_are_learnt_again(tiny_corpus, tiny_model, brief, tmp_path):
    end(tiny_corpus, tmp_path / "model", EMBEDDING, brief)
    with denn.load(tiny_model) as other:
        make_incomplete(kept(tmp_path / "model"), other.method)
    seen = Ending()
    with denn.train(tiny_corpus, out=tmp_path / "model", progress=seen, **brief) as model:
        assert model.method.witnesses["words"].is_complete
    assert READING in seen.stages


def test_words_that_were_cut_short_stay_if_there_is_no_time_for_more(tiny_corpus, brief, tmp_path):
    settings = {name: value for name, value in brief.items() if name != "allow_poor"}
    method, workdir = make_recipe("denn", settings).build(), tmp_path / "training"
    method.names = tiny_corpus.labels.names
    workdir.mkdir()
    assert method._learn("words", tiny_corpus, workdir, Silent(), Clock()).is_complete
    make_incomplete(workdir / "witnesses" / "words", method)
    seen = Ending()
    found = method._learn("words", tiny_corpus, workdir, seen, Clock(0.0))
    assert found is not None and not found.is_complete
    assert [note.split(":")[0] for note in seen.notes] == ["the words could not be learnt"]


def test_what_is_kept_is_on_disk_before_it_has_its_name(tiny_corpus, brief, tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def watched(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    end(tiny_corpus, tmp_path / "model", EMBEDDING, brief)
    folder = kept(tmp_path / "model")
    unfinished = folder.with_name("words.part")
    assert {unfinished / file.name for file in folder.iterdir()} <= set(synced)
    assert synced.index(folder.parent) > max(synced.index(unfinished / file.name) for file in folder.iterdir())

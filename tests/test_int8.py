"""Prediction in 8-bit integers: allowed by measured F1, which is saved; stored vectors stay exact."""

import shutil

import pytest
import torch

import denn
from denn import int8
from denn.encoders import quantised
from denn.errors import ConfigError
from denn.types import Document

pytestmark = [
    pytest.mark.slow,  # transformers
    pytest.mark.skipif(not quantised.is_available(), reason="this build of torch has no 8-bit products"),
]

TEXTS = ["goal match team and coach", "oven butter sauce", "the orbit of the rocket"]


@pytest.fixture
def folder(tiny_model, tmp_path, monkeypatch):
    """A trained model, and an empty cache."""
    monkeypatch.setenv("DENN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(int8, "LEAST_DOCUMENTS", 60)
    shutil.copytree(tiny_model, tmp_path / "model")
    return tmp_path / "model"


def test_what_is_scored_is_in_int8_and_what_is_stored_is_not(folder):
    with denn.load(folder) as exact, denn.load(folder, precision="int8") as fast:
        assert fast.method.in_int8
        assert not exact.method.in_int8
        assert torch.equal(fast.embed(TEXTS), exact.embed(TEXTS))
        assert not torch.equal(fast.scores(TEXTS).parts["classifier"], exact.scores(TEXTS).parts["classifier"])
        assert [p.labels for p in fast.predict(TEXTS)] == [p.labels for p in exact.predict(TEXTS)]


def test_the_loss_is_measured_once(folder, monkeypatch):
    measured = []
    measure = int8._measure
    monkeypatch.setattr(int8, "_measure", lambda *given: measured.append(1) or measure(*given))
    for _ in range(3):
        denn.load(folder, precision="int8").close()
    assert measured == [1]
    (remembered,) = (folder.parent / "cache" / "int8").iterdir()
    remembered.write_text("not JSON")
    denn.load(folder, precision="int8").close()
    assert measured == [1, 1]


def test_too_great_a_loss_is_refused_in_a_sentence_and_auto_stays_exact(folder, monkeypatch):
    monkeypatch.setattr(int8, "MOST_LOSS", -100.0)
    monkeypatch.setattr(int8, "LEAST_GAIN", 0.0)
    with pytest.raises(ConfigError, match=r"int8 cannot be used: int8 .* points of micro-F1 on 60 .* Use --precision"):
        denn.load(folder, precision="int8")
    with denn.load(folder, precision="auto") as model:
        assert not model.method.in_int8


def test_auto_takes_the_faster_one(folder, monkeypatch):
    for gain, expected in ((0.0, True), (1e9, False)):
        monkeypatch.setattr(int8, "LEAST_GAIN", gain)
        with denn.load(folder, precision="auto") as model:
            assert model.method.in_int8 is expected


def test_what_was_measured_is_used_without_measuring(folder, monkeypatch):
    monkeypatch.setattr(int8, "LEAST_GAIN", 0.0)
    with denn.load(folder) as model:
        assert not int8.use_remembered(model.method, model.card)
        assert not model.method.in_int8
    denn.load(folder, precision="int8").close()
    monkeypatch.setattr(int8, "_measure", lambda *_: pytest.fail("measured again"))
    with denn.load(folder) as model:
        assert int8.use_remembered(model.method, model.card)
        assert model.method.in_int8


def test_auto_does_not_wait_long(folder, monkeypatch):
    monkeypatch.setattr(int8, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(int8, "PATIENCE", 0.0)
    with denn.load(folder, precision="auto") as model:
        assert not model.method.in_int8
    denn.load(folder, precision="int8").close()
    with denn.load(folder, precision="auto") as model:
        assert model.method.in_int8


def test_a_refitted_model_in_memory_goes_on_in_int8(folder):
    from denn.refitting import refit_folder
    from denn.renewing import renew

    with denn.load(folder, precision="int8") as model:
        model.add([Document(f"goal match {i}", ("sport",)) for i in range(20)])
        refit_folder(folder, force=True)
        renewed = renew(model)
        assert renewed is not None
        assert renewed.method.in_int8
        assert renewed.predict(TEXTS)
        renewed.retire()


def test_few_documents_cannot_show_a_loss(folder, monkeypatch):
    monkeypatch.setattr(int8, "LEAST_DOCUMENTS", 61)
    monkeypatch.setattr(int8, "LEAST_GAIN", 0.0)
    with denn.load(folder, precision="auto") as model:
        assert not model.method.in_int8
    with pytest.raises(ConfigError, match="fewer than 61 validation documents"):
        denn.load(folder, precision="int8")


def test_a_method_without_an_encoder(tmp_path, tiny_corpus):
    denn.train(tiny_corpus, out=tmp_path / "model", method="br").close()
    denn.load(tmp_path / "model", precision="auto").close()
    with pytest.raises(ConfigError, match="the method 'br' does not support it"):
        denn.load(tmp_path / "model", precision="int8")

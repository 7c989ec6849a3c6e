"""The study of training ideas: its losses against sums in loops, and a run of every idea."""

import json
import math
import sys

import pytest
import torch

from denn import registry
from denn_bench.studies import training_ideas
from denn_bench.studies.training_ideas import IDEAS, asymmetric, zlpr


@pytest.fixture
def logits():
    return torch.tensor([[1.5, -0.5, 0.2], [-2.0, 3.0, 0.0]], dtype=torch.float64)


@pytest.fixture
def labels():
    return torch.tensor([[True, False, True], [False, False, False]])


def test_zlpr_is_its_definition(logits, labels):
    for found, scores, given in zip(zlpr(logits, labels), logits.tolist(), labels.tolist(), strict=True):
        others = sum(math.exp(score) for score, one in zip(scores, given, strict=True) if not one)
        own = sum(math.exp(-score) for score, one in zip(scores, given, strict=True) if one)
        assert float(found) == pytest.approx(math.log(1 + others) + math.log(1 + own))


def test_the_asymmetric_loss_is_its_definition(logits, labels):
    for found, scores, given in zip(asymmetric(logits, labels), logits.tolist(), labels.tolist(), strict=True):
        expected = 0.0
        for score, one in zip(scores, given, strict=True):
            share = 1 / (1 + math.exp(-score))
            shifted = max(share - 0.05, 0)
            expected -= math.log(share) if one else shifted**4 * math.log(1 - shifted)
        assert float(found) == pytest.approx(expected)


def test_every_idea_trains(tiny_corpus, tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.CORPORA.own, "tiny", f"{__name__}:load")
    monkeypatch.setattr(sys.modules[__name__], "load", lambda folder: tiny_corpus, raising=False)
    out = tmp_path / "ideas.jsonl"
    settings = ["alpha=0", "epochs=2", "max_length=8", 'witnesses=["classifier", "neighbours"]', "device=cpu"]
    settings += ["precision=float32", "learning_rate=0.005", "head_learning_rate=0.05"]
    given = [part for setting in settings for part in ("--set", setting)]
    command = ["training_ideas", str(tmp_path), "--corpus", "tiny", "--encoder", str(tiny_encoder), "--out", str(out)]
    for _ in range(2):  # the second time, every run has its line
        monkeypatch.setattr(sys, "argv", [*command, *given, "--scores", str(tmp_path / "scores")])
        training_ideas.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["idea"] for row in rows] == list(IDEAS)
    without, *others = [row["systems"] for row in rows]
    assert all(other != without for other in others)
    assert (tmp_path / "scores" / "zlpr" / f"tiny-defaults-{tiny_encoder.name}-0" / "valid.npz").exists()

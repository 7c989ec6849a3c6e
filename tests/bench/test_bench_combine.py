"""Comparing combinations on saved scores: runs, word scores, and the table."""

import json
from dataclasses import replace

import pytest
import torch

from denn import registry
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.data.corpus import read_corpus
from denn.errors import DataError
from denn.prediction_types import Context
from denn_bench.combine import compare_all, read_run, table
from denn_bench.studies import combine as study
from denn_bench.studies import stability
from denn_bench.witness_scores import WitnessScores

TEXTS, LABELS = 80, 6


def scores(part, seed=0, witnesses=("classifier", "neighbours")):
    """Create witnesses that each know something; the texts depend only on the split."""
    gold = torch.rand(TEXTS, LABELS, generator=torch.Generator().manual_seed(len(part))) < 0.3
    draw = torch.Generator().manual_seed(100 * seed + len(part) + 10 * len(witnesses))
    parts = {name: torch.sigmoid(3 * gold - 1.5 + 1.5 * torch.randn(gold.shape, generator=draw)) for name in witnesses}
    similarity = torch.rand(TEXTS, 5, generator=draw) if "neighbours" in witnesses else None
    return WitnessScores("tiny", seed, parts, gold, Context(torch.arange(10, 10 + LABELS), similarity))


def save(folder, name, seed=0, witnesses=("classifier", "neighbours")):
    for part in ("valid", "test"):
        scores(part, seed, witnesses).save(folder / f"{name}-{seed}" / f"{part}.npz")


def test_runs_are_compared_without_and_with_words(tmp_path):
    save(tmp_path, "tiny-denn", 0)
    save(tmp_path, "tiny-denn", 1)
    save(tmp_path, "words-tiny", 0, ("words",))
    said = []
    found = json.loads(json.dumps(compare_all(tmp_path, said.append)))
    two, three = ["classifier", "neighbours"], ["classifier", "neighbours", "words"]
    about = [(one["run"], one["seed"], one["witnesses"]) for one in found["runs"]]
    assert about == [("tiny-denn", seed, witnesses) for seed in (0, 1) for witnesses in (two, three)]
    assert len(said) == 4 and said[1].startswith("tiny-denn-0, 3 witnesses: ")
    assert found["machine"]["cores"] and found["versions"]["denn"]
    valid, test = scores("valid"), scores("test")
    threshold = tune_global(valid.parts["classifier"], valid.gold)
    expected = multilabel_scores(decide(test.parts["classifier"], threshold), test.gold)
    shown = found["runs"][0]["systems"]["classifier"]
    assert (shown["threshold"], shown["micro_f1"]) == (threshold, pytest.approx(expected["micro_f1"], abs=0.01))
    systems = found["runs"][1]["systems"]
    assert list(systems) == [*three, "average", "confidence", "learnt"]
    assert systems["learnt"]["micro_f1"] > max(systems[name]["micro_f1"] for name in three)

    rows = table(found["runs"]).splitlines()
    assert len(rows) == 4 and rows[2].startswith("| tiny-denn | 2 | ")
    mean = 50 * sum(found["runs"][place]["systems"]["learnt"]["micro_f1"] for place in (1, 3))
    assert f"{mean:.2f} / " in rows[3].split(" | ")[-5]
    for column, kind in ((-4, "halfway per label"), (-3, "three quarters"), (-2, "each label's own")):
        own = 50 * sum(found["runs"][place]["systems"]["learnt"]["per_label"][kind]["macro_f1"] for place in (1, 3))
        assert rows[0].split(" | ")[column] == f"learnt, {kind}"
        assert rows[3].split(" | ")[column].endswith(f" / {own:.2f}")
    by_seed = [row.split(" | ")[1] for row in table(found["runs"], by_seed=True).splitlines() if " | " in row]
    assert by_seed == ["seed", "0", "0", "1", "1"]
    for one in found["runs"]:  # as in older files
        del one["systems"]["learnt"]["per_label"]
    assert "halfway" in rows[0] and "halfway" not in table(found["runs"])


def test_words_of_the_same_seed_come_before_those_of_seed_0(tmp_path):
    for seed in (0, 1, 2):
        save(tmp_path, "tiny-denn", seed)
    for seed in (0, 2):
        save(tmp_path, "words-tiny", seed, ("words",))
    heard = [read_run(tmp_path / f"tiny-denn-{seed}")["test"].parts["words"] for seed in (0, 1, 2)]
    assert torch.equal(heard[0], heard[1]) and not torch.equal(heard[0], heard[2])


def test_a_run_with_words_keeps_its_own(tmp_path):
    save(tmp_path, "tiny-denn", 0, ("classifier", "words"))
    save(tmp_path, "words-tiny", 0, ("words",))
    own = WitnessScores.load(tmp_path / "tiny-denn-0" / "test.npz").parts["words"]
    assert torch.equal(read_run(tmp_path / "tiny-denn-0")["test"].parts["words"], own)
    (found,) = compare_all(tmp_path, str)["runs"]
    assert list(found["systems"]) == ["classifier", "words", "average", "learnt"]  # λ needs the neighbours


def test_another_witness_has_a_column_of_its_own(tmp_path):
    save(tmp_path, "tiny-denn", 0, ("classifier", "neighbours", "titles"))
    head, _, *rows = table(compare_all(tmp_path, str)["runs"]).splitlines()
    assert head.split(" | ")[-5] == "titles" and [bool(row.split(" | ")[-5].strip()) for row in rows] == [False, True]


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"has no witness scores.*denn bench run CORPUS RECIPE --scores"):
        compare_all(tmp_path / "nowhere", str)
    save(tmp_path, "tiny-denn")
    save(tmp_path, "words-tiny", 0, ("words",))
    words = scores("test", 0, ("words",))
    replace(words, gold=~words.gold).save(tmp_path / "words-tiny-0" / "test.npz")
    with pytest.raises(DataError, match=r"words-tiny-0/test\.npz and .*tiny-denn-0/test\.npz have different documents"):
        compare_all(tmp_path, str)
    words.save(tmp_path / "tiny-denn-0" / "test.npz")
    with pytest.raises(DataError, match=r"valid\.npz and test\.npz in .*tiny-denn-0 belong to different runs"):
        compare_all(tmp_path, str)


def load(folder):
    """Read the corpus that the next test registers."""
    return read_corpus(folder / "train.jsonl", folder / "valid.jsonl", folder / "test.jsonl", name="tiny")


def test_the_studies_write_what_is_compared(tiny_corpus, tiny_settings, tmp_path, monkeypatch):
    monkeypatch.setitem(registry.CORPORA.own, "tiny", f"{__name__}:load")
    (tmp_path / "data" / "tiny").mkdir(parents=True)
    for part in ("train", "valid", "test"):
        rows = [{"id": one.id, "text": one.text, "labels": one.labels} for one in getattr(tiny_corpus, part)]
        (tmp_path / "data" / "tiny" / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = tmp_path / "scores"
    settings = {**tiny_settings, "witnesses": ("classifier", "neighbours"), "seed": 1}
    trained = stability.train(tiny_corpus, None, "tiny", settings, True, scores / "tiny-defaults-own-1")
    study.words(tmp_path / "data", "tiny", 1, scores)
    paper, all_three = compare_all(scores, str)["runs"]
    assert (paper["run"], paper["seed"], len(all_three["witnesses"])) == ("tiny-defaults-own", 1, 3)
    for name in ("classifier", "neighbours", "average", "confidence"):
        assert paper["systems"][name]["micro_f1"] == trained["systems"][name]["test"]["micro_f1"]
    assert all_three["systems"]["words"]["micro_f1"] > 0.5

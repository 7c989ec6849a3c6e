"""`denn evaluate`: tables for people, one JSON object for programs."""

import csv
import json
import math
from dataclasses import replace

import pytest

import denn
from denn.cli import show
from denn.errors import BundleError
from denn.report.combination import combination_of

NAMES = ("precision", "recall", "F1")
pytestmark = pytest.mark.slow  # whole commands on models


def test_json_is_the_evaluation_and_nothing_else(run, tiny_model, files, tiny_corpus):
    ran = run("evaluate", tiny_model, files / "test.jsonl", "--json")
    assert ran.code == 0
    with denn.load(tiny_model) as model:
        expected = model.evaluate(tiny_corpus.test).as_dict()
    assert json.loads(ran.out) == json.loads(json.dumps(expected))
    assert "scoring 20 documents" in ran.err


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_no_number_that_is_not_finite_is_printed(run, dummy, files, command, monkeypatch):
    evaluated, decided = denn.Model.evaluate, denn.Model.decide

    def evaluate(*given, **options):
        return replace(evaluated(*given, **options), confidence=math.nan)

    def decide(*given, **options):
        return (replace(prediction, confidence=math.nan) for prediction in decided(*given, **options))

    monkeypatch.setattr(denn.Model, "evaluate", evaluate)
    monkeypatch.setattr(denn.Model, "decide", decide)
    ran = run(command, dummy, files / "test.jsonl", *["--json"][: command == "evaluate"])
    assert (ran.code, ran.out) == (2, "")
    assert "confidence is nan, expected a finite number" in ran.err


def test_the_model_itself_comes_first_and_alone(run, tiny_model, files):
    found = json.loads(run("evaluate", tiny_model, files / "test.jsonl", "--json").out)
    ran = run("evaluate", tiny_model, files / "test.jsonl")
    assert ran.code == 0
    assert max(len(line.rstrip()) for line in ran.out.splitlines()) <= 80
    assert "\x1b" not in ran.out
    first, *lines = ran.out.splitlines()
    assert first == f"denn on 20 documents, at the tuned threshold {found['threshold']:.2f}:"
    shown = {words[0]: words[1] for line in lines if len(words := line.split()) > 1}
    metrics = {f"{mean}-{name}": f"{mean}_{name.lower()}" for mean in ("micro", "macro") for name in NAMES}
    metrics |= {"example-F1": "example_f1", "empty": "empty_predictions"}
    assert {name: shown[name] for name in metrics} == {
        name: f"{100 * found[metric]:.1f}" for name, metric in metrics.items()
    }
    assert not any(line.split()[:1] in (["classifier"], ["tuned"], ["each"]) for line in lines), "no other decision"
    assert "To compare witnesses, combinations and thresholds, add --compare." in ran.out
    assert "Combination: learnt." in ran.out and "Mean λ" not in ran.out
    count = round(20 * found["unfamiliar"])
    assert f"Unfamiliar documents: {count} of 20 ({5 * count:.1f} %)" in " ".join(ran.out.split())
    assert "The model does not know" not in ran.out


def test_the_comparison_fits_80_columns_and_follows_the_model(run, tiny_model, files):
    found = json.loads(run("evaluate", tiny_model, files / "test.jsonl", "--json").out)
    ran = run("evaluate", tiny_model, files / "test.jsonl", "--compare")
    alone = run("evaluate", tiny_model, files / "test.jsonl").out.splitlines()
    assert ran.out.splitlines()[: len(alone) - 1] == alone[:-1]
    assert max(len(line.rstrip()) for line in ran.out.splitlines()) <= 80
    assert "add --compare" not in ran.out
    lines = [line.replace("λ (confidence)", "λ").split() for line in ran.out.splitlines()]
    names = [line[0] for line in lines if line[1:2] == ["0.5"]]
    assert [name for name in names if name != "words"] == ["classifier", "neighbours", "average", "λ", "denn"]
    metrics = ["micro_precision", "micro_recall", "micro_f1", "macro_f1", "supported_macro_f1", "example_f1"]
    metrics += ["p_at_1", "p_at_3", "p_at_5", "empty_predictions"]
    tuned = [line[1:] for line in lines if line[:1] == ["tuned"] and len(line) == 1 + len(metrics)]
    assert tuned[-1] == [f"{100 * found[metric]:.1f}" for metric in metrics]


def test_the_mean_of_lambda_is_shown_where_it_decides(tiny_model, tiny_corpus, capsys):
    with denn.load(tiny_model) as model:
        found, card = model.evaluate(tiny_corpus.test), model.card
    parameters = {**card.parameters, "combination": "confidence"}
    show.evaluation(found, card.model_copy(update={"parameters": parameters, "training": {}}))
    shown = capsys.readouterr().out
    assert "Combination: λ (confidence). It was set, not learnt." in " ".join(shown.split())
    assert f"Mean λ {found.confidence:.2f}" in shown


def test_facts_that_are_no_facts_are_a_damaged_bundle(tiny_model, tiny_corpus):
    with denn.load(tiny_model) as model:
        card = model.card
    for damage, place in (({"why": 3}, "why"), ({"scores": {"learnt": "much"}}, "scores.learnt"), ([], "")):
        facts = {**card.training, "combination": damage or [1]}
        with pytest.raises(BundleError, match=rf"damaged at training\.combination.*{place}"):
            combination_of(card.model_copy(update={"training": facts}))


def test_a_method_without_parts_is_evaluated(run, dummy, files):
    ran = run("evaluate", dummy, files / "test.jsonl")
    assert ran.code == 0
    assert "dummy" in ran.out and "To compare thresholds, add --compare." in ran.out
    assert "classifier" not in ran.out
    assert "λ" not in ran.out


def test_unknown_labels_are_counted(run, dummy, tmp_path):
    (tmp_path / "new.jsonl").write_text('{"text": "x", "labels": ["[/]", "sport", "b"]}\n')
    ran = run("evaluate", dummy, tmp_path / "new.jsonl", "--per-label", tmp_path / "labels.tsv")
    assert "The model does not know 2 labels used here" in ran.out
    with (tmp_path / "labels.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    assert {row["label"]: row["support"] for row in rows if row["support"] != "0"} == {
        "[/]": "1",
        "b": "1",
        "sport": "1",
    }
    assert list(rows[0]) == ["label", "support", "predicted", "true_positives", "precision", "recall", "f1"]


def test_stored_documents_are_no_evidence_for_themselves(run, tiny_model, files):
    def neighbours(*options):
        found = json.loads(run("evaluate", tiny_model, files / "train.jsonl", "--json", *options).out)
        return found["systems"]["neighbours"]["0.5"]["micro_f1"]

    assert neighbours() > neighbours("--stored")


def test_at_least_so_many_labels(run, dummy, files):
    found = json.loads(run("evaluate", dummy, files / "test.jsonl", "--json", "--min-labels", 2).out)
    assert found["systems"]["final"]["0.5"]["labels_per_text"] == pytest.approx(2)


def test_documents_that_are_in_the_datastore_call_for_a_warning(run, tiny_model, files):
    ran = run("evaluate", tiny_model, files / "train.jsonl", "--json")
    assert "The datastore contains 60 of these 60 documents, so the scores are too good" in ran.err
    assert json.loads(ran.out)
    for arguments in ((files / "train.jsonl", "--stored"), (files / "test.jsonl",)):
        assert "too good" not in run("evaluate", tiny_model, *arguments).err


def test_stored_documents_without_ids_are_found_too(run, tiny_settings, tiny_corpus, tmp_path):
    file = tmp_path / "train.jsonl"
    rows = [{"text": d.text, "labels": list(d.labels)} for d in tiny_corpus.train]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [f"--set={name}={value}" for name, value in tiny_settings.items()]
    assert run("train", file, "--out", tmp_path / "model", *settings).code == 0

    def neighbours(*options):
        found = json.loads(run("evaluate", tmp_path / "model", file, "--json", *options).out)
        return found["systems"]["neighbours"]["0.5"]["micro_f1"]

    assert neighbours() > neighbours("--stored")


def test_stored_documents_of_several_files_need_ids(run, tiny_model, tiny_corpus, files, tmp_path):
    whole = json.loads(run("evaluate", tiny_model, files / "train.jsonl", "--stored", "--json").out)
    rows = [{"text": d.text, "labels": list(d.labels), "id": d.id} for d in tiny_corpus.train]

    def write(name, rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("a.jsonl", rows[:30])
    write("b.jsonl", rows[30:])
    ran = run("evaluate", tiny_model, tmp_path / "*.jsonl", "--stored", "--json")
    assert json.loads(ran.out)["micro_f1"] == whole["micro_f1"]
    write("b.jsonl", [{name: row[name] for name in ("text", "labels")} for row in rows[30:]])
    ran = run("evaluate", tiny_model, tmp_path / "*.jsonl", "--stored", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert f"{tmp_path / 'b.jsonl'} has documents without ids. With --stored, documents of several files" in ran.err


def test_stored_documents_that_are_not_stored(run, tiny_model, tmp_path):
    file = tmp_path / "other.jsonl"
    file.write_text(json.dumps({"text": "goal", "labels": ["sport"], "id": "never seen"}) + "\n")
    ran = run("evaluate", tiny_model, file, "--stored")
    assert ran.code == 2 and "None of the documents' ids is in the datastore" in ran.err

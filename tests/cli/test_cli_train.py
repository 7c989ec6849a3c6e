"""`denn train`: precedence of settings, summary, --quiet, interruption and resuming."""

import io
import json
import shutil
import signal
import subprocess
import sys

import pytest

import denn
from denn import progress as progress_module
from denn.cli.progress import watching
from denn.cli.show import console
from denn.model_card import readme
from denn.progress import Bar, Pace, Plain
from denn.report.combination import combination_of
from denn.types import Stage

pytestmark = pytest.mark.slow  # most tests here train


def options(settings):
    return [f"--set={name}={value}" for name, value in settings.items()]


def card(folder):
    return json.loads((folder / "bundle.json").read_text())


def test_a_training_ends_with_what_one_wants_to_know(run, files, tmp_path, tiny_settings):
    out = tmp_path / "my model"
    ran = run("train", files / "train.jsonl", "--valid", files / "valid.jsonl", "--out", out, *options(tiny_settings))
    assert (ran.code, ran.out) == (0, "")
    lines = ran.err.splitlines()
    assert any("documents/s" in line and "left" in line and "micro_f1" in line for line in lines)
    assert "\x1b" not in ran.err
    where, scores, heard, cut, following = lines[-5:]
    assert where == f"The model is in {out}: denn, 6 labels."
    metrics, threshold = card(out)["metrics"], card(out)["thresholds"]["final"]["overall"]
    assert f"micro-F1 {100 * metrics['micro_f1']:.1f}, macro-F1 {100 * metrics['macro_f1']:.1f}" in scores
    assert f"threshold {threshold:.2f}" in scores
    facts = card(out)["training"]["combination"]
    assert heard.startswith("Witnesses: classifier") and heard.endswith(f"Combination: learnt. {facts['why']}")
    assert cut.startswith("Documents truncated to the maximum length of 64 tokens: 0 of 60.")
    assert following == f"Next: denn predict '{out}' texts.txt --evidence"


def test_set_beats_options_which_beat_the_recipe(run, files, tmp_path, tiny_settings):
    recipe = tmp_path / "recipe.toml"
    settings = tiny_settings | {"epochs": 1}
    written = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    recipe.write_text(f'method = "denn"\n[parameters]\n{written}k = 3\nseed = 1\n'.replace("k = 5\n", ""))
    out = tmp_path / "model"
    train = ["train", files / "train.jsonl", "--out", out, "--recipe", recipe, "--allow-poor"]
    assert run(*train, "--seed", 2, "--time-budget", "1h", "--set", "seed=3", "-q").code == 0
    parameters = card(out)["parameters"]
    assert (parameters["k"], parameters["seed"], parameters["time_budget"]) == (3, 3, 3600)
    assert run(*train, "--seed", 2, "--set", "time_budget=5m", "-q", "--replace").code == 0
    parameters = card(out)["parameters"]
    assert (parameters["seed"], parameters["time_budget"]) == (2, 300)
    assert run("train", files / "train.jsonl", "--out", out, "--recipe", recipe, "--method", "dummy").code == 2


def test_an_effort_level_is_an_option_and_a_recipe_without_one_means_one_fine_tuning(
    run, files, tmp_path, tiny_settings
):
    open_settings = {name: value for name, value in tiny_settings.items() if name != "epochs"}
    out = tmp_path / "model"
    train = ["train", files / "train.jsonl", "--valid", files / "valid.jsonl", "--out", out]
    ran = run(*train, "--effort", "quick", *options(open_settings))
    assert ran.code == 0 and card(out)["parameters"]["effort"] == "quick"
    assert "effort quick: learn from 60 documents without changing the encoder, about " in ran.err
    assert "On 120 documents, each scored by a model that has not learnt from it: micro-F1 " in ran.err
    assert "The encoder was not fine-tuned, because so few documents cannot show whether that helps; --eff" in ran.err
    recipe = tmp_path / "recipe.toml"
    written = "".join(f"{name} = {json.dumps(value)}\n" for name, value in open_settings.items())
    recipe.write_text(f'method = "denn"\n[parameters]\n{written}')
    ran = run(*train, "--recipe", recipe, "--replace")
    assert ran.code == 0 and card(out)["parameters"]["effort"] is None and "\neffort " not in ran.err
    ran = run(*train, "--effort", "quick", "--set", "epochs=3", "--replace")
    assert ran.code == 2 and ran.err.count("\n") == 1 and "quick does not train the encoder" in ran.err
    ran = run(*train, "--method", "dummy", "--effort", "quick", "--replace")
    assert ran.code == 2 and "'dummy' has no parameter 'effort'" in ran.err


def test_a_missing_encoder_is_noted_when_training_starts(run, tmp_path, monkeypatch):
    monkeypatch.setattr("denn.methods.effort.is_installed", lambda name: False)
    ran = run("train", tmp_path / "missing.jsonl", "--out", tmp_path / "model", "--effort", "best")
    assert ran.code == 2 and ran.err == f"denn: {tmp_path / 'missing.jsonl'}: no such file. Check the path.\n"


def test_a_training_continues_from_a_model_and_what_it_stores(run, files, tiny_model, tmp_path):
    train = ["train", files / "test.jsonl", "--valid", files / "valid.jsonl", "--out", tmp_path / "new", "--from"]
    ran = run(*train, tmp_path / "nowhere")
    assert ran.code == 2 and "no such folder" in ran.err
    ran = run(*train, tiny_model, "--with-store", "--effort", "quick")
    assert ran.code == 0 and "also training on 60 stored documents of the original model" in ran.err
    assert card(tmp_path / "new")["corpus"]["train"] == 80
    assert card(tmp_path / "new")["parameters"]["k"] == 5


def test_combination_and_metric_are_options_of_the_methods_that_have_them(run, files, tmp_path, tiny_settings):
    train = ["train", files / "train.jsonl", "--out", tmp_path / "model", "--combination", "confidence"]
    ran = run(*train, "--optimise", "macro_f1", *options(tiny_settings | {"epochs": 1}), "--allow-poor")
    assert ran.code == 0
    parameters = card(tmp_path / "model")["parameters"]
    assert (parameters["combination"], parameters["optimise"]) == ("confidence", "macro_f1")
    assert "Combination: λ (confidence). It was set, not learnt." in ran.err
    assert ", at a tuned threshold for each label." in ran.err
    with denn.load(tmp_path / "model") as model:
        assert model.card.thresholds["final"].decides == "per_label"
        assert "Decision: by a threshold for each label" in readme("me/rare", model.card, model.labels, 1, 1, None)
    ran = run("evaluate", tmp_path / "model", files / "test.jsonl")
    assert ran.code == 0 and ran.out.splitlines()[0].endswith(" documents, at a tuned threshold for each label:")
    ran = run("report", tmp_path / "model", files / "test.jsonl", "--out", tmp_path / "report.html")
    assert ran.code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert " texts, at a tuned threshold for each label.</p>" in page
    assert "the best threshold for all labels, but this model has one for each" in page
    ran = run(*train, "--method", "dummy")
    assert ran.code == 2 and "'dummy' has no parameter 'combination'" in ran.err
    ran = run(*train[:-1], "loudest")
    assert ran.code == 2 and "expected one of learnt, average, confidence" in ran.err


def test_without_validation_documents_nothing_is_learnt_about_the_witnesses(tiny_model):
    with denn.load(tiny_model) as model:
        training = {name: fact for name, fact in model.card.training.items() if name != "combination"}
        found = combination_of(model.card.model_copy(update={"training": training}))
    assert found.chosen == "average"
    assert found.sentence.endswith("There were no validation documents for learning a combination.")


def test_quiet_says_nothing_before_or_after_the_command(run, tmp_path):
    corpus = tmp_path / "corpus.csv"
    corpus.write_text("body,tags,key\n" + "".join(f"text {i},a;b,{i}\n" for i in range(20)))
    columns = ["--text-column", "body", "--labels-column", "tags", "--id-column", "key", "--separator", ";"]
    out = tmp_path / "model"
    train = ["train", corpus, "--method", "dummy", "--out", out, *columns, "--valid-share", 0.25]
    for arguments in (["-q", *train], [*train, "--quiet", "--replace"]):
        ran = run(*arguments)
        assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert (card(out)["corpus"]["train"], card(out)["corpus"]["valid"]) == (15, 5)
    assert "Next: denn predict" in run(*train, "--replace").err


def test_a_model_is_replaced_with_consent_only_which_is_asked_before_the_corpus_is_read(run, dummy, tmp_path):
    out = shutil.copytree(dummy, tmp_path / "model")
    train = ["train", tmp_path / "missing.jsonl", "--out", out, "--method", "dummy"]
    ran = run(*train)
    assert ran.code == 2
    assert f"{out} already contains a model (dummy, 6 labels, " in ran.err
    assert ran.err.endswith("Choose another --out, or pass --replace (replace=True).\n")
    assert "missing.jsonl" in run(*train, "--replace").err


def test_a_model_that_learnt_nothing_is_refused_unless_allowed(run, tmp_path):
    corpus = tmp_path / "corpus.csv"
    corpus.write_text("text,labels\n" + "always the same,a\nalways the same,b\nalways the same,a\n" * 30)
    train = ["train", corpus, "--out", tmp_path / "model", "--method", "br", "--set", "jobs=1", "--quiet"]
    ran = run(*train)
    assert ran.code == 2 and len(ran.err.splitlines()) == 1
    assert ran.err.startswith("denn: The model was not written: its micro-F1 is ")
    assert not (tmp_path / "model").exists()
    ran = run(*train, "--allow-poor")
    assert (ran.code, ran.err) == (0, "")
    assert (tmp_path / "model").exists()


@pytest.mark.parametrize("answer", ["n", "y"])
def test_a_terminal_is_asked_before_a_model_is_replaced(files, tiny_model, tmp_path, answer, answer_on_terminal):
    out = shutil.copytree(tiny_model, tmp_path / "model")
    with denn.load(out) as model:
        model.add([denn.Document("a violin", ("taught",), "mine")])
    command = [sys.executable, "-m", "denn", "train", files / "train.jsonl", "--out", out, "--method", "dummy"]
    code, said = answer_on_terminal(command, "Replace it? [y/N]", answer)
    screen = " ".join(said.split())
    assert "already contains a model (denn, 6 labels, " in screen and "changed since training" in screen
    assert code == (0 if answer == "y" else 2)
    assert card(out)["method"] == ("dummy" if answer == "y" else "denn")


def test_bad_rows_are_named_and_can_be_skipped(run, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"text": "x", "labels": ["a", "b"]}\n' * 9 + "{broken\n")
    train = ["train", corpus, "--method", "dummy", "--out", tmp_path / "model"]
    ran = run(*train)
    assert ran.code == 2
    assert f"{corpus}, line 10: not JSON" in ran.err
    ran = run(*train, "--skip-bad")
    assert ran.code == 0
    assert "warning:" in ran.err
    assert "skipped 1 of 10 rows" in ran.err


def test_a_known_corpus_is_found_in_the_data_folder(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DENN_DATA", str(tmp_path))
    train = ["train", "reuters21578", "--method", "dummy", "--out", tmp_path / "model"]
    ran = run(*train)
    assert ran.code == 2
    assert f"reuters21578 was not found at {tmp_path}/reuters21578. Set --data-dir" in ran.err
    assert "or put these files there: train.jsonl and test.jsonl, or reut2-000.sgm to reut2-021.sgm." in ran.err
    assert "Omit the options for reading a file" in run(*train, "--separator", ";").err
    (tmp_path / "debian").mkdir()
    rows = ({"id": str(i), "text": f"package {i}", "labels": [f"tag::{i % 2}"]} for i in range(100))
    (tmp_path / "debian" / "debian.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("train", "debian", "--method", "dummy", "--out", tmp_path / "model").code == 0
    assert card(tmp_path / "model")["corpus"] == {
        "name": "debian",
        "train": 80,
        "valid": 10,
        "label_counts": [40, 40],
    }
    assert json.loads(run("evaluate", tmp_path / "model", "debian", "--json").out)["documents"] == 10


def test_an_interrupted_training_is_taken_up_by_the_same_command(run, files, tmp_path, tiny_settings):
    settings = options(tiny_settings | {"epochs": 100_000, "patience": 0, "evaluate_every": 2})
    train = ["train", str(files / "train.jsonl"), "--out", str(tmp_path / "model"), *settings]
    command = [sys.executable, "-c", "from denn.cli import main; main()", *train]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("step 4"):
                process.send_signal(signal.SIGINT)
                break
        rest, out = process.stderr.read(), process.stdout.read()
    assert process.returncode == 130
    assert rest.splitlines()[-1] == "denn: interrupted; run the same command again to resume"
    assert "Traceback" not in rest
    assert out == ""
    ran = run(*train, "--time-budget", "0s", "--allow-poor")
    assert ran.code == 0
    assert "resuming at step" in ran.err
    assert denn.load(tmp_path / "model").predict(["goal"])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_a_bar_and_notes_that_stay(run, monkeypatch):
    run("--version")  # sets the level
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with watching() as shown:
        assert isinstance(shown, Bar)
        shown.start(Stage("training", 100))
        shown.advance(10, loss=0.5, seconds_left=80.0)
        shown.advance(20, loss=0.25, seconds_left=70.0)
        shown.note("step 1: [/] fine")
    assert "step 1: [/] fine" in terminal.getvalue()
    assert "loss 0.250" in terminal.getvalue()
    assert "1m10s left" in terminal.getvalue()


def test_the_pace_counts_what_this_process_did(monkeypatch):
    now = iter([0.0, 0.0, 0.0, 10.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(now))
    pace = Pace(Stage("training", 2000))
    assert pace.describe(1000, {}) == ""
    assert pace.describe(1500, {}) == "50 documents/s, 10s left"


def test_labels_that_look_like_markup_are_printed_as_they_are(capsys):
    console().print("[/] [bold]x[/bold] :smile:")
    assert capsys.readouterr().out == "[/] [bold]x[/bold] :smile:\n"


@pytest.mark.parametrize(("quiet", "kind"), [(False, "Plain"), (True, "Silent")])
def test_no_terminal_sees_lines_and_quiet_nothing(run, quiet, kind):
    run(*["-q"][:quiet], "data", "list")
    with watching() as shown:
        assert type(shown).__name__ == kind


def test_plain_notes_carry_the_pace(run, capsys, monkeypatch):
    run("data", "list")
    now = iter([0.0, 0.0, 0.0, 0.0, 2.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(now))
    plain = Plain()
    plain.start(Stage("training", 4000))
    plain.advance(0)
    plain.advance(2000, loss=0.5)
    plain.note("step 7")
    plain.advance(4000)
    plain.note("what comes next has no pace yet")
    assert capsys.readouterr().err == (
        "training: 4,000 documents\nstep 7 (1000 documents/s, 2s left)\nwhat comes next has no pace yet\n"
    )

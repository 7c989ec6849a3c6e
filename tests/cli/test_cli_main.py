"""Fast help, exit codes, and no traceback for errors that a user can fix."""

import os
import statistics
import subprocess
import sys
from dataclasses import fields

import pytest
import typer

import denn
from denn.cli.options import duration
from denn.cli.sources import Reading
from denn.wording import span

COMMANDS = ["demo", "train", "evaluate", "predict", "store", "data"]


def python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)


def test_help_imports_nothing_heavy():
    code = "import sys, atexit; from denn.cli import main; "
    code += "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules))); main(['--help'])"
    done = python(code)
    assert done.returncode == 0
    assert all(f"\n  {command} " in done.stdout for command in COMMANDS)
    assert not {"torch", "numpy", "pydantic", "rich", "transformers", "denn.model"} & set(done.stderr.split())


def test_help_takes_less_than_four_tenths_of_a_second():
    def cpu_seconds():
        before = os.times()
        python("from denn.cli import main; main(['--help'])")
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])  # CPU time of children; the load of other processes does not count

    assert statistics.median(cpu_seconds() for _ in range(3)) < 0.4


@pytest.mark.parametrize("command", [*COMMANDS, "store add", "store remove", "store relabel", "store info", "data get"])
def test_every_command_explains_itself_in_80_columns(run, command):
    ran = run(*command.split(), "--help")
    assert ran.code == 0
    assert "Usage: denn " in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.parametrize("command", ["train", "refit", "evaluate", "audit", "report", "store add"])
def test_commands_that_read_documents_have_the_same_options_for_it(run, command):
    said = run(*command.split(), "--help").out
    assert [said.count(f"  --{field.name.replace('_', '-')} ") for field in fields(Reading)] == [1] * 6


def test_without_arguments_there_is_help(run):
    ran = run()
    assert "Usage: denn" in ran.out + ran.err
    assert "Commands:" in ran.out + ran.err


def test_the_version_is_printed(run):
    assert run("--version").out == f"denn {denn.__version__}\n"


def test_results_are_utf_8_whatever_the_locale_says(run, tmp_path):
    run("keys", "create", tmp_path / "keys", "図書館")
    code = f"import sys; sys.argv = ['denn', 'keys', 'list', {str(tmp_path / 'keys')!r}]; "
    code += "from denn.cli import main; main()"
    done = python(code, PYTHONIOENCODING="cp1252")
    assert (done.returncode, done.stdout, done.stderr) == (0, "図書館: read\n", "")


@pytest.mark.slow
def test_bash_completion_knows_commands_and_methods():
    def complete(line):
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        return python("from denn.cli import main; main()", _DENN_COMPLETE="complete_bash", **words).stdout.split()

    assert complete("denn ev") == ["evaluate"]
    assert complete("denn train --method de") == ["denn"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "nowhere"], "denn: nowhere is not a model: no such folder."),
        (["train", "reuters", "--out", "m"], "Did you mean 'reuters21578'?"),
        (["train", "missing.jsonl", "--out", "m"], "missing.jsonl: no such file"),
        (["train", "x.jsonl", "--out", "m", "--set", "epoch=3"], "Did you mean 'epochs'?"),
        (["train", "x.jsonl", "--out", "m", "--set", "epochs"], "expected key=value"),
        (["train", "x.jsonl", "--out", "m", "--method", "den"], "Did you mean 'denn'?"),
        (["train", "x.jsonl", "--out", "m", "--recipe", "no.toml"], "no.toml cannot be read"),
        (["train", "x.jsonl", "--out", "m", "--time-budget", "soon"], "such as 90, 90s, 5m or 1h30m"),
        (["train", "x.jsonl"], "--out"),
        (["predict", "m", "--threshold", "0.5", "--per-label"], "--threshold or --per-label, not both"),
        (["store", "remove", "m"], "no documents selected"),
        (["data", "get", "debain"], "Did you mean 'debian'?"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_what_the_user_can_mend_is_one_message_and_exit_code_2(run, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    ran = run(*arguments)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())
    assert "Traceback" not in ran.err
    assert ran.out == ""


FAULT = "import denn.cli.show as s; s.table = lambda *_, **__: [][0]; from denn.cli import main; main({})"


@pytest.mark.slow
def test_our_own_faults_are_exit_code_1_and_a_traceback_only_when_asked_for(tmp_path):
    done = python(FAULT.format("['data', 'list']"), DENN_DATA=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("denn: This is a bug in denn (IndexError: list index out of range)")
    assert "Please report it" in done.stderr
    assert "Traceback" not in done.stderr
    done = python(FAULT.format("['data', 'list', '--verbose']"), DENN_DATA=str(tmp_path))
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1h30m", 5400), ("1h2m3s", 3723), ("0s", 0), ("0.5s", 0.5)],
)
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "m", "-3", "1m1h", "5 m"])
def test_durations_that_are_none(text):
    with pytest.raises(typer.BadParameter, match="is not a time"):
        duration(text)


def test_spans_are_written_as_they_are_read():
    assert [span(seconds) for seconds in (0, 59.4, 80, 3900)] == ["0s", "59s", "1m20s", "1h05m"]

"""User errors on the command line: one sentence before any work starts, and no partial file."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

import denn
from denn.cli import user_message
from denn.errors import ConfigError

pytestmark = pytest.mark.slow

NOWHERE = "no model"  # loading it would raise an error


def refused(ran, *said):
    """Check that there was exactly one error message, and return it."""
    assert ran.code == 2, ran.err
    assert "bug in denn" not in ran.err and "Traceback" not in ran.err
    for words in said:
        assert words in " ".join(ran.err.split())
    return ran.err


def commands(files, out):
    return {
        "predict": ("predict", NOWHERE, files / "test.jsonl", "--output", out),
        "evaluate": ("evaluate", NOWHERE, files / "test.jsonl", "--per-label", out),
        "report": ("report", NOWHERE, files / "test.jsonl", "--out", out),
        "map": ("bench", "map", NOWHERE, files / "test.jsonl", "--out", out),
        "get": ("data", "get", "debian", "--out", out),
    }


@pytest.mark.parametrize("command", ["predict", "evaluate", "report", "map", "get"])
def test_an_output_that_cannot_be_written_is_refused_before_any_work(run, files, tmp_path, monkeypatch, command):
    monkeypatch.setenv("DENN_DATA", str(tmp_path / "data"))
    (tmp_path / "file").write_text("x")
    wrong = {
        ".": ". is a folder.",
        tmp_path: f"{tmp_path} is a folder.",
        tmp_path / "file" / "out": f"{tmp_path / 'file'} is not a folder",
        "/proc/out": "the folder /proc is not writable",
        "/dev/full": "/dev/full is not a regular file",
        os.devnull: "not a regular file",
        tmp_path / ("n" * 300): "File name too long",
    }
    if command not in ("report", "map"):  # these create the folder
        wrong[tmp_path / "none" / "out"] = f"the folder {tmp_path / 'none'} does not exist. Create it"
    for out, said in wrong.items():
        assert NOWHERE not in refused(run(*commands(files, out)[command]), said)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("arguments", [("run", "tiny", "denn"), ("time", "tiny", "denn"), ("figure", "k")])
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(run, tmp_path, monkeypatch, arguments):
    monkeypatch.setattr("denn_bench.run.plan", lambda *_: [])
    option = "--out" if "figure" in arguments else "--results"
    refused(run("bench", *arguments, option, "/proc/results"), "the folder /proc is not writable")
    (tmp_path / "file").write_text("x")
    refused(run("bench", *arguments, option, tmp_path / "file"), "is not a folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "x"


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); from denn.cli import main; main()"


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_under_the_final_name(dummy, files, tmp_path):
    commands = (
        ("predict", dummy, files / "test.jsonl", "--output", tmp_path / "out.jsonl"),
        ("evaluate", dummy, files / "test.jsonl", "--per-label", tmp_path / "out.tsv"),
        ("report", dummy, files / "test.jsonl", "--out", tmp_path / "out.html"),
    )
    for command in commands:
        (out := Path(command[-1])).write_text("old")
        done = subprocess.run([sys.executable, "-c", FULL, *map(str, command)], capture_output=True, text=True)
        assert done.returncode == 2
        assert f"Cannot write {out}: File too large." in done.stderr
        assert "Traceback" not in done.stderr
        assert out.read_text() == "old"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("predict",), ("evaluate", "--json"), ("evaluate",)])
def test_a_stdout_that_cannot_be_written_is_one_sentence(dummy, files, arguments):
    command, *options = arguments
    code = "from denn.cli import main; main()"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, command, str(dummy), str(files / "test.jsonl"), *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "denn: No space left on device."
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_link_beside_the_output_leads_nowhere(run, dummy, files, tmp_path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "out.jsonl.part").symlink_to(tmp_path / "victim")
    assert run("predict", dummy, files / "test.jsonl", "--output", tmp_path / "out.jsonl").code == 0
    assert (tmp_path / "victim").read_text() == "precious"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 20


@pytest.mark.parametrize("seed", [-1, 2**63, 10**30])
def test_a_seed_has_63_bits(run, files, tmp_path, seed):
    out = tmp_path / "model"
    sentence = "The seed must be a whole number from 0 to 9,223,372,036,854,775,807."
    refused(run("train", files / "train.jsonl", "--out", out, "--seed", seed), sentence)
    refused(run("demo", "--out", out, "--seed", seed), sentence)
    refused(run("bench", "run", "tiny", "denn", "--seeds", f"0,{seed}"), sentence)
    refused(run("train", files / "train.jsonl", "--out", out, "--method", "dummy", "--set", f"seed={seed}"), sentence)
    with pytest.raises(ConfigError, match="The seed must be a whole number"):
        denn.train(denn.read_corpus([("a", ["x"])] * 3), out=out, method="dummy", seed=seed)
    with pytest.raises(ConfigError, match="The seed must be a whole number"):
        denn.read_corpus([("a", ["x"])] * 3, seed=seed)
    assert not list(tmp_path.iterdir())


def test_the_largest_seed_is_one(run, files, tmp_path):
    largest = 2**63 - 1
    command = ("train", files / "train.jsonl", "--out", tmp_path / "model", "--method", "dummy", "--seed", largest)
    assert run(*command).code == 0


@pytest.mark.parametrize(
    "setting",
    [
        "learning_rate=NaN", "learning_rate=nan", "learning_rate=inf", "learning_rate=1e400", "learning_rate=1e30",
        f"epochs={10**30}", f"epochs={'9' * 5000}", f"max_length={10**12}", f"batch_size={10**15}", "batch_size=-1",
        f"k={10**20}", "time_budget=Infinity", "alpha=-0.1", "seed=0.5", "seed=nan", "epochs=[[[[1]]]]",
        f"epochs={'[' * 100_000}", "warmup=nan", "dropout=true1", "clip=-inf",
    ],
)  # fmt: skip
def test_numbers_that_no_parameter_can_mean_are_refused(run, files, tmp_path, setting):
    name = setting.partition("=")[0]
    ran = run("train", files / "train.jsonl", "--out", tmp_path / "model", "--set", setting)
    assert name in refused(ran)
    assert len(ran.err) < 500
    (tmp_path / "r.toml").write_text(f"[parameters]\n{setting if setting.count('[') < 9 else name + '=1e999'}\n")
    refused(run("train", files / "train.jsonl", "--out", tmp_path / "model", "--recipe", tmp_path / "r.toml"))


@pytest.mark.parametrize(
    "options",
    [
        ("predict", "--threshold", "nan"),
        ("predict", "--threshold", "inf"),
        ("predict", "--neighbours", str(10**30)),
        ("predict", "--min-labels", str(10**30)),
        ("predict", "--min-labels", "-1"),
        ("evaluate", "--min-labels", str(10**30)),
    ],
)
def test_numbers_of_options_are_checked(run, dummy, files, options):
    command, *rest = options
    ran = run(command, dummy, files / "test.jsonl", *rest)
    refused(ran, f"Invalid value for '{rest[0]}'")
    assert not ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("predict", NOWHERE, "x.txt", "--neighbours", 2), "--neighbours needs --evidence"),
        (("predict", NOWHERE, "x.txt", "--partition-rows", 5), "--partition-rows, --ray-address and --workers are for"),
        (("evaluate", NOWHERE, "x.jsonl", "--partition-rows", 5), "--partition-rows needs --engine ray"),
        (("train", "x.jsonl", "--out", "m", "--valid", "v.jsonl", "--valid-share", 0.1), "--valid-share, not both"),
        (("train", "x.jsonl", "--out", "m", "--vocabulary-language", "fi"), "--vocabulary-language needs --vocabulary"),
        (("refit", NOWHERE, "--skip-bad"), "Options for reading a file need --valid FILE. Add it, or omit them"),
        (("audit", NOWHERE, "--text-column", "body"), "Options for reading a file need FILE. Add it, or omit them"),
    ],
)
def test_options_without_effect_are_refused(run, arguments, said):
    refused(run(*arguments), said)


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_a_known_corpus_has_no_options_for_reading_a_file(run, dummy, tmp_path, command):
    out = ["--out", tmp_path / "report.html"] if command == "report" else []
    ran = run(command, dummy, "debian", "--data-dir", tmp_path, "--skip-bad", "--text-column", "body", *out)
    refused(ran, "debian has its own columns and splits. Omit the options for reading a file")


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1", "9" * 400, "1e400"])
def test_times_and_shares_are_checked(run, files, tmp_path, value):
    train = ("train", files / "train.jsonl", "--out", tmp_path / "model", "--method", "dummy")
    refused(run(*train, "--valid-share", value))
    if value != "1":
        refused(run(*train, "--time-budget", value))
        refused(run("demo", "--out", tmp_path / "demo", "--time-budget", value))
        refused(run("bench", "run", "tiny", "denn", "--share", value))
        refused(run("bench", "time", "tiny", "denn", "--seconds", value))
    assert not list(tmp_path.iterdir())


def test_memory_that_is_used_up_is_no_fault():
    error = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to …"
    )
    assert user_message(error).startswith("Out of memory.")
    assert user_message(RuntimeError("something else")) is None


def test_labels_of_the_table_are_no_formulas(run, files, tmp_path):
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "a b", "labels": ["=1+1", "-x"]}\n' * 20)
    model = tmp_path / "model"
    assert run("train", corpus, "--out", model, "--method", "dummy").code == 0
    assert run("evaluate", model, corpus, "--per-label", tmp_path / "t.tsv").code == 0
    rows = list(csv.DictReader((tmp_path / "t.tsv").read_text().splitlines(), dialect="excel-tab"))
    assert sorted(row["label"] for row in rows) == ["'-x", "'=1+1"]

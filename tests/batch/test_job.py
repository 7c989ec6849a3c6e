"""A job writes every result once, whatever happens, and skips finished partitions when it runs again."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from batch_inputs import write_lines, write_parquet

import denn
from denn.batch import engines, job
from denn.batch.engines import in_process
from denn.batch.partitions import Reading, find, plan
from denn.batch.tasks import Embed
from denn.cli.partitioned import digest_of
from denn.errors import BatchError, ConfigError, ConflictError
from denn.progress import Silent

IDS = [f"t{n}" for n in range(35)]


def run(task, inputs, rows=10, opening=None):
    return job.run(task, plan(find(inputs), task.reading, rows), rows, opening or nullcontext(in_process), Silent())


def results(task):
    """Return the ids in the results, in the order of the partitions."""
    files = sorted(path for path in task.folder.rglob("*") if path.is_file() and path.name != "job.json")
    assert all(path.name.endswith(".jsonl") for path in files), files
    return [json.loads(line)["id"] for path in files for line in path.read_text().splitlines()]


def test_every_text_has_one_result_and_a_second_run_does_nothing(task, lines, dummy):
    assert (run(task, lines).skipped, results(task)) == (0, IDS)
    with denn.load(dummy) as model:
        expected = model.predict(["text number 0"])[0]
    first = json.loads((task.folder / "a.jsonl.jsonl").read_text().splitlines()[0])
    assert tuple(first["labels"]) == expected.labels

    @contextmanager
    def never():
        raise AssertionError("there is nothing to do")
        yield

    again = run(task, lines, opening=never())
    assert (again.partitions, again.skipped, again.texts) == (4, 4, 0)


def test_a_failed_partition_is_named_and_only_it_is_repeated(task, lines, tmp_path):
    (tmp_path / "in" / "d.jsonl").write_text('{"text": 1}')
    with pytest.raises(BatchError, match=r"1 of 4 partitions failed. The first is d.jsonl: .*, line 1: .* the others "):
        run(task, lines)
    assert results(task) == IDS[:25]
    write_lines(tmp_path / "in", d=range(25, 35))
    assert (run(task, lines).skipped, results(task)) == (3, IDS)


def test_passing_errors_are_tried_again(task, lines, monkeypatch):
    failures = iter([OSError("the disk is away"), None, None, OSError(), OSError(), OSError(), None])
    monkeypatch.setattr(engines, "PAUSE", 0)
    opened = type(task).opened

    @contextmanager
    def flaky(self):
        with opened(self) as work:

            def shaky(partition):
                if error := next(failures):
                    raise error
                return work(partition)

            yield shaky

    monkeypatch.setattr(type(task), "opened", flaky)
    with pytest.raises(BatchError, match=r"1 of 4 partitions failed. The first is c.jsonl: OSError: no message"):
        run(task, lines)
    assert results(task) == IDS[:20] + IDS[25:]


def test_other_settings_or_another_model_are_refused(task, lines, tmp_path, tiny_corpus):
    run(task, lines)
    with pytest.raises(ConfigError, match=r"contains results with different settings \(partition_rows\)"):
        run(task, lines, rows=5)
    with pytest.raises(ConfigError, match=r"different settings \(threshold\). Give another --output"):
        run(replace(task, deciding={"threshold": 0.5}), lines)
    denn.train(tiny_corpus.train[:50], out=tmp_path / "other", method="dummy").close()
    with pytest.raises(ConfigError, match=r"different settings \(model\)"):
        run(replace(task, model=tmp_path / "other", digest=digest_of(tmp_path / "other")), lines)


def test_a_model_that_changes_after_the_start_is_not_used(task, lines, tmp_path, tiny_corpus):
    denn.train(tiny_corpus.train[:50], out=tmp_path / "other", method="dummy").close()
    with pytest.raises(ConfigError, match="was changed while its predictions were computed"):
        run(replace(task, model=tmp_path / "other"), lines)  # with the digest of the first model
    assert results(task) == []


@pytest.mark.slow  # one process per partition decodes Parquet
def test_a_file_that_changes_during_the_run_has_no_mixed_results(task, inputs, tmp_path):
    partitions = plan(find(inputs), task.reading, 10)
    write_parquet(tmp_path / "in" / "a.parquet", 100, 60)
    with pytest.raises(BatchError, match=r"3 of 4 partitions failed. .* has changed since the command started"):
        job.run(task, partitions, 10, nullcontext(in_process), Silent())
    run(task, inputs)
    assert results(task) == [f"t{n}" for n in range(100, 160)] + IDS[25:]


def test_inputs_with_names_like_unfinished_results(task, tmp_path):
    write_lines(tmp_path / "in", **{"mail.part-001": range(3), "mail.part-002": range(3, 6)})
    assert run(task, str(tmp_path / "in" / "*.jsonl")).texts == 6
    assert results(task) == IDS[:6]


def test_inputs_of_the_same_name_in_another_folder_are_refused(task, lines, tmp_path):
    run(task, lines)
    write_lines(tmp_path / "elsewhere", a=range(3))
    with pytest.raises(ConfigError, match="which have the same names as those of"):
        run(task, str(tmp_path / "elsewhere" / "*.jsonl"))
    assert results(task) == IDS


OUTSIDE = {"files": {"x": {"state": [1, 2], "results": ["../in/a.jsonl"]}}}


@pytest.mark.parametrize("content", ["", "{", "3", '{"files": 3}', '{"files": {"x": {}}}', json.dumps(OUTSIDE)])
def test_a_damaged_record_is_refused_and_deletes_nothing(task, lines, content):
    run(task, lines)
    (task.folder / "job.json").write_text(content)
    with pytest.raises(ConfigError, match=r"job\.json"):
        run(task, lines)
    assert results(task) == IDS


def test_a_kill_while_the_record_is_written_for_the_first_time(task, lines):
    task.folder.mkdir()
    (task.folder / "job.json.part-host-1-0123abcd").write_text("{")
    run(task, lines)
    assert results(task) == IDS


def test_a_read_that_fails_for_a_moment_is_repeated(task, lines, monkeypatch):
    monkeypatch.setattr(engines, "PAUSE", 0)
    failures = iter([OSError(5, "Input/output error"), None, None, None, None])
    real = Path.open

    def flaky(self, *given, **more):
        if self.name.endswith(".jsonl") and self.parent.name == "in" and (error := next(failures)):
            raise error
        return real(self, *given, **more)

    monkeypatch.setattr(Path, "open", flaky)
    run(task, lines)
    assert results(task) == IDS


def test_results_of_a_changed_file_are_computed_again(task, lines, tmp_path, caplog):
    run(task, lines)
    write_lines(tmp_path / "in", d=range(100, 105), e=range(200, 203))
    assert run(task, lines).skipped == 3
    assert results(task) == IDS[:25] + [f"t{n}" for n in (*range(100, 105), 200, 201, 202)]
    assert "d.jsonl has changed, so it is processed again" in caplog.text


@pytest.mark.slow  # one process per partition decodes Parquet
def test_a_file_that_became_shorter_leaves_no_result_behind(task, inputs, tmp_path):
    run(task, inputs)
    assert results(task) == IDS
    write_parquet(tmp_path / "in" / "a.parquet", 0, 5)
    run(task, inputs)
    assert results(task) == IDS[:5] + IDS[25:]


def test_results_of_other_inputs_and_foreign_folders_are_pointed_out(task, lines, tmp_path, caplog):
    run(task, lines)
    (tmp_path / "in" / "a.jsonl").unlink()
    run(task, lines)
    assert "also contains results of other inputs, such as " in caplog.text
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    with pytest.raises(ConfigError, match=r"full contains other files. Give an empty folder"):
        run(replace(task, folder=tmp_path / "full"), lines)


def test_two_jobs_cannot_write_to_one_folder(task, lines):
    @contextmanager
    def nested():
        with pytest.raises(ConfigError, match="Another process is writing to "):
            run(task, lines)
        yield in_process

    run(task, lines, opening=nested())
    assert results(task) == IDS


@pytest.mark.slow  # a whole command
def test_a_killed_command_leaves_no_half_file_and_continues(task, lines):
    script = (
        "import os, signal\n"
        "from denn.batch import tasks\n"
        "from denn.cli import main\n"
        "replace, done = tasks.Path.replace, []\n"
        "def killed(self, target):\n"
        "    done.append(self)\n"
        "    if len(done) == 4: os.kill(os.getpid(), signal.SIGKILL)\n"  # job.json and two results are finished
        "    return replace(self, target)\n"
        "tasks.Path.replace = killed\n"
        f"main(['predict', {str(task.model)!r}, {lines!r}, '--output', {str(task.folder)!r}])\n"
    )
    dead = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert dead.returncode == -signal.SIGKILL, dead.stderr
    assert len([path for path in task.folder.iterdir() if ".part-" in path.name]) == 1
    assert len([*task.folder.glob("*.jsonl")]) == 2
    task = replace(task, deciding={"threshold": None, "per_label": False, "min_labels": 0})
    assert (run(task, lines, rows=10_000).skipped, results(task)) == (2, IDS)


def test_attempts_do_not_share_an_unfinished_file(tmp_path):
    from denn.batch.tasks import written_once

    with written_once(tmp_path / "x") as first, written_once(tmp_path / "x") as second:
        first.write(b"first")
        second.write(b"second")
        assert not (tmp_path / "x").exists()
    assert (tmp_path / "x").read_bytes() == b"first"  # the outer one was renamed last
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    with pytest.raises(ZeroDivisionError), written_once(tmp_path / "y") as out:
        out.write(b"half")
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_embeddings_are_those_of_the_model(tiny_model, lines, tmp_path):
    task = Embed(tiny_model, digest_of(tiny_model), tmp_path / "out", Reading())
    assert run(task, lines).texts == 35
    table = pq.read_table(task.folder / "d.jsonl.parquet")
    with denn.load(tiny_model) as model:
        expected = model.embed([f"text number {n}" for n in range(25, 35)])
    assert table["id"].to_pylist() == IDS[25:]
    assert table["embedding"].to_pylist() == [pytest.approx(row) for row in expected.tolist()]


def test_a_model_without_embeddings_says_so(dummy, lines, tmp_path):
    with pytest.raises((BatchError, ConflictError), match="keeps no datastore"):
        run(Embed(dummy, digest_of(dummy), tmp_path / "out", Reading()), lines)


def test_scores_in_parts_give_the_same_evaluation(tiny_model, tiny_corpus):
    documents = tiny_corpus.test
    scores = job.score(tiny_model, documents, False, 7, in_process, Silent())
    with denn.load(tiny_model) as model:
        assert model.evaluate(documents, scores=scores).as_dict() == model.evaluate(documents).as_dict()

"""Run `denn` in this process, and files to run it on."""

import io
import json
import logging
import sys
from dataclasses import dataclass

import pytest

import denn
from denn.cli import main


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def rows(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `denn` with arguments and bytes on stdin; return exit code, stdout and stderr."""
    logger = logging.getLogger("denn")
    before = logger.handlers, logger.level
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return Ran(int(stop.value.code or 0), *capsys.readouterr())

    yield call
    logger.handlers, level = before
    logger.setLevel(level)


def as_jsonl(documents):
    rows = ({"id": document.id, "text": document.text, "labels": document.labels} for document in documents)
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="session")
def files(tmp_path_factory, tiny_corpus):
    """A folder with train.jsonl, valid.jsonl and test.jsonl of the tiny corpus."""
    folder = tmp_path_factory.mktemp("files")
    for part in ("train", "valid", "test"):
        (folder / f"{part}.jsonl").write_text(as_jsonl(getattr(tiny_corpus, part)))
    return folder


@pytest.fixture(scope="session")
def dummy(tmp_path_factory, tiny_corpus):
    """The folder of a model of the method dummy."""
    folder = tmp_path_factory.mktemp("models") / "dummy"
    denn.train(tiny_corpus, out=folder, method="dummy").close()
    return folder

"""A full disk while a model is written: one sentence, the older model stays, and training resumes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import denn
from denn.errors import DennError

pytestmark = pytest.mark.slow  # trains

KILOBYTES = 16 * 1024


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={KILOBYTES}k", "tmpfs", folder], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def leave(disk: Path, kilobytes: int) -> None:
    """Fill the disk, leaving this much space."""
    (disk / "ballast").unlink(missing_ok=True)
    room = os.statvfs(disk)
    (disk / "ballast").write_bytes(bytes(max(0, room.f_bavail * room.f_frsize - 1024 * kilobytes)))


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a model, without SQLite's temporary ones."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm"))]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def size(folder: Path) -> int:
    return sum(len(some) for some in content(folder).values()) // 1024


@pytest.mark.parametrize("method", ["denn", "br", "leam"])
def test_wherever_the_disk_is_full_nothing_is_lost(disk, tiny_corpus, tiny_settings, method):
    settings = {"method": method, "allow_poor": True}
    if method == "br":
        settings |= {"min_df": 1, "jobs": 1}
    elif method == "leam":
        settings |= {"device": "cpu", "epochs": 1, "word_width": 32, "max_length": 40, "checkpoint_seconds": 0}
    else:
        settings |= tiny_settings | {"epochs": 1, "checkpoint_seconds": 0}
    out = disk / "model"
    denn.train(tiny_corpus, out=out, **settings).close()
    older, needed = content(out), 5 * size(out)  # with weights, moments and best weights
    refused = 0
    for kilobytes in [0, 4, *range(8, needed, max(8, needed // 12))]:
        leave(disk, kilobytes)
        try:
            denn.train(tiny_corpus, out=out, replace=True, **settings | {"seed": 1}).close()
        except DennError as error:
            refused += 1
            assert "\n" not in str(error)
            assert any(said in str(error) for said in ("No space left", "disk is full", "disk I/O error")), error
            assert content(out) == older
            assert not (disk / "model.training" / "bundle").exists()
            assert not list(disk.rglob("*.part"))
        else:
            break
    assert refused >= 2
    (disk / "ballast").unlink()
    with denn.train(tiny_corpus, out=out, replace=True, **settings | {"seed": 1}) as model:
        assert model.predict(["goal"])
    assert {path.name for path in disk.iterdir()} == {"model"}


def test_the_command_says_so_and_resumes(disk, tiny_corpus, tiny_settings, tmp_path):
    corpus = tmp_path / "train.jsonl"
    rows = [
        {"id": document.id, "text": document.text, "labels": document.labels}
        for document in tiny_corpus.train
        if document.labels
    ]
    corpus.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    settings = [f"--set={name}={value}" for name, value in (tiny_settings | {"epochs": 2}).items()]
    command = [
        sys.executable,
        "-m",
        "denn",
        "train",
        corpus,
        "--out",
        disk / "model",
        "--quiet",
        "--allow-poor",
        *settings,
    ]
    leave(disk, 64)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2, ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert "No space left on device" in ended.stderr and "run the same command again to resume" in ended.stderr
    (disk / "ballast").unlink()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert {path.name for path in disk.iterdir()} == {"model"}

"""A full disk while a model is written: one sentence, the older model stays, and training resumes."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import denn
from denn import upgrading
from denn.backup_checks import check
from denn.backups import back_up, restore
from denn.errors import DennError
from denn.progress import Silent

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


def logical(folder: Path) -> dict[str, object]:
    """Return the files below a folder, datastores as SQL: SQLite counts in a file how often its mode changed."""
    found: dict[str, object] = dict(content(folder))
    for name in found:
        if name.endswith(".sqlite"):
            with closing(sqlite3.connect(folder / name)) as connection:
                found[name] = list(connection.iterdump())
    return found


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


def test_backup_restore_and_upgrade_on_a_full_disk_change_nothing(disk, tmp_path):
    formats = Path(__file__).parent / "formats"
    model = Path(shutil.copytree(formats / "bundle-2-store-1" / "model", disk / "model"))
    other = Path(shutil.copytree(formats / "bundle-3-store-3" / "model", disk / "other"))
    backup = tmp_path / "backup"
    back_up(str(model), backup, Silent())
    work = {
        "backup": lambda: back_up(str(model), disk / "backup", Silent()),
        "restore": lambda: restore(str(model), backup, Silent()),
        "upgrade": lambda: upgrading.upgrade(model, Silent()),
        "undo": lambda: upgrading.undo(model),
        "upgrade of bundle.json alone": lambda: upgrading.upgrade(other, Silent()),
    }
    for name, action in work.items():
        (disk / "ballast").unlink(missing_ok=True)
        before = logical(disk)
        for kilobytes in range(0, 400, 8):
            leave(disk, kilobytes)
            try:
                action()
            except DennError as error:
                assert "\n" not in str(error)
                (disk / "ballast").unlink()
                assert logical(disk) == before, f"{name} with {kilobytes} kB"
            else:
                break
        assert kilobytes, name
        (disk / "ballast").unlink()
        assert not check(str(model), Silent()).problems

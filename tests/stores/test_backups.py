"""Backups of the embedded datastore: one moment of a store in use, restored whole, and damage that a check finds."""

import json
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from kinds import everything, vectors

from denn import backups
from denn.backup_checks import check, digest_of, is_backup, read_manifest
from denn.backups import back_up, restore
from denn.errors import ConflictError, StoreError
from denn.progress import Silent
from denn.stores.embedded import index_file, transfer
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document

BATCH = 20


def batch(name: str, size: int = BATCH) -> tuple[list[Document], torch.Tensor]:
    documents = [Document(f"{name} text {i}", (name, f"l{i % 3}"), f"{name}/{i}", ("no",)) for i in range(size)]
    return documents, vectors(size, seed=len(name))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("made") / "store.sqlite"
    with EmbeddedStore.create(path, 3, ["given"]) as store:
        store.add(*batch("a"), source="alice")
        store.add(*batch("b"), source="bob")
        store.remove(["a/0", "a/1"])
        store.relabel(["b/2"], ["new"])
        store.undo(3)
        store.forget(["b/5"])
    return path


@pytest.fixture
def path(made, tmp_path):
    """A store with removed, relabelled, undone and forgotten documents."""
    return Path(shutil.copyfile(made, tmp_path / "store.sqlite"))


def sql(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def back_up_here(path: Path) -> Path:
    back_up(str(path), path.parent / "backup", Silent())
    return path.parent / "backup"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_backup_has_everything_and_is_restored_whole(path):
    backup = back_up_here(path)
    manifest = read_manifest(backup)
    assert (manifest.documents, manifest.change, manifest.dimension, manifest.encoder) == (39, 6, 3, None)
    assert names(backup) == {"backup.json", "store.sqlite"} and names(path.parent) == {"backup", "store.sqlite"}
    with EmbeddedStore.open(path) as store:
        before, history = everything(store), store.history()
        store.add(*batch("later"))
        store.remove(["a/0"])
    assert restore(str(path), backup, Silent()) == (manifest, 0)
    with EmbeddedStore.open(path) as store:
        assert everything(store) == before and store.history() == history
        store.undo(4)  # what the history kept is there, too
        assert store.get(["b/2"])[0].labels == ("b", "l2")
        with pytest.raises(ConflictError, match="was forgotten"):
            store.add([Document("x", id="b/5")], torch.ones(1, 3))
    assert names(path.parent) == {"backup", "store.sqlite"}


def test_a_backup_has_one_moment_of_a_store_that_is_written_to(path, monkeypatch):
    monkeypatch.setattr(transfer, "PAGES", 1)

    class Watched(Silent):
        """Let the writer finish a change after every page."""

        changes = 0

        copying = False

        def start(self, stage):
            self.copying = stage.what == "copying"

        def advance(self, done, **_):
            if self.copying:
                self.changes += 1
                writer.add(*batch(f"during {self.changes}"))

    with EmbeddedStore.open(path) as writer:
        watched = Watched()
        manifest = back_up(str(path), path.parent / "backup", watched)
        assert watched.changes > 5
        assert (manifest.documents, manifest.change) == (39, 6)
        assert len(writer) == 39 + BATCH * watched.changes
    assert not check(str(path.parent / "backup"), Silent()).problems


def test_an_existing_backup_is_replaced_only_on_request(path):
    backup = back_up_here(path)
    first = (backup / "backup.json").read_bytes()
    with pytest.raises(ConflictError, match=r"already contains a backup. Choose another name, or pass --replace"):
        back_up_here(path)
    assert (backup / "backup.json").read_bytes() == first
    with EmbeddedStore.open(path) as store:
        store.add(*batch("later"))
    assert back_up(str(path), backup, Silent(), overwrite=True).documents == 59
    assert not check(str(backup), Silent()).problems
    other = path.parent / "other"
    other.mkdir()
    with pytest.raises(ConflictError, match=r"exists and is not a backup\. Choose another name"):
        back_up(str(path), other, Silent(), overwrite=True)
    assert names(path.parent) == {"backup", "store.sqlite", "other"}


def test_an_interrupted_backup_leaves_nothing(path):
    class Impatient(Silent):
        def advance(self, done, **_):
            raise KeyboardInterrupt

    before = names(path.parent)
    with pytest.raises(KeyboardInterrupt):
        back_up(str(path), path.parent / "backup", Impatient())
    assert names(path.parent) == before
    backup = back_up_here(path)
    content = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        restore(str(path), backup, Impatient())
    with EmbeddedStore.open(path) as store:
        assert len(store) == 39
    assert names(path.parent) == {"backup", "store.sqlite"} and len(path.read_bytes()) == len(content)


def test_a_store_in_use_is_not_replaced(path):
    backup = back_up_here(path)
    for read_only in (False, True):
        with EmbeddedStore.open(path, read_only) as store:
            with pytest.raises(ConflictError, match=r"in use by another process. Stop the service"):
                restore(str(path), backup, Silent())
            assert len(store) == 39
    restore(str(path), backup, Silent())


def test_a_process_that_waited_for_a_restore_gets_the_new_store(path, monkeypatch):
    backup = back_up_here(path)
    with EmbeddedStore.open(path) as store:
        store.add(*batch("later"))
    found = []

    def look() -> None:
        with EmbeddedStore.open(path) as store:
            found.append(len(store))

    waiting = threading.Thread(target=look)
    swap = transfer.put_in_place

    def slowly(*arguments):
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()  # it waits for the lock
        swap(*arguments)

    monkeypatch.setattr(backups.transfer, "put_in_place", slowly)
    restore(str(path), backup, Silent())
    waiting.join()
    assert found == [39]


def test_what_was_forgotten_stays_forgotten_unless_asked(path):
    backup = back_up_here(path)
    with EmbeddedStore.open(path) as store:
        store.forget(["a/3", "a/4"])
        store.vacuum()
    assert restore(str(path), backup, Silent())[1] == 2
    assert b"a text 3" not in path.read_bytes()
    with EmbeddedStore.open(path) as store:
        assert len(store) == 37 and store.history(1)[0].source == "restore"
        with pytest.raises(ConflictError, match="was forgotten"):
            store.add([Document("x", id="a/3")], torch.ones(1, 3))
    assert not check(str(path), Silent()).problems
    assert restore(str(path), backup, Silent(), with_forgotten=True)[1] == 0
    with EmbeddedStore.open(path) as store:
        assert len(store) == 39


def test_a_damaged_or_lost_store_is_restored(path):
    backup = back_up_here(path)
    path.write_bytes(b"\xff" * 10_000)
    path.with_name("store.sqlite-wal").write_bytes(b"old log")
    restore(str(path), backup, Silent())
    assert path.with_name("store.sqlite.damaged").read_bytes() == b"\xff" * 10_000
    with EmbeddedStore.open(path) as store:
        assert len(store) == 39
    path.unlink()
    restore(str(path), backup, Silent())
    assert not check(str(path), Silent()).problems


@pytest.mark.parametrize("page", range(1, 12, 2))
def test_a_partly_damaged_store_is_restored(path, page):
    backup = back_up_here(path)
    content = bytearray(path.read_bytes())
    content[4096 * page : 4096 * (page + 1)] = b"\xff" * 4096
    path.write_bytes(content)
    restore(str(path), backup, Silent())
    assert not check(str(path), Silent()).problems


def test_a_store_of_an_earlier_format_is_backed_up_and_upgraded_when_restored(tmp_path):
    former = Path(__file__).parents[1] / "formats" / "bundle-2-store-1" / "model" / "store" / "store.sqlite"
    path = Path(shutil.copyfile(former, tmp_path / "store.sqlite"))
    backup = back_up_here(path)
    assert read_manifest(backup).store_format == 1 and not check(str(backup), Silent()).problems
    restore(str(path), backup, Silent())
    assert check(str(path), Silent()).facts["format"] == 3


def test_a_backup_that_does_not_fit_is_refused(path, tmp_path):
    backup = back_up_here(path)
    EmbeddedStore.create(tmp_path / "wide.sqlite", 4).close()
    with pytest.raises(ConflictError, match=r"has embeddings of dimension 3, but .*wide.sqlite has 4"):
        restore(str(tmp_path / "wide.sqlite"), backup, Silent())
    assert not check(str(tmp_path / "wide.sqlite"), Silent()).problems


def rewrite(backup: Path, **values: object) -> None:
    file = backup / "backup.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_changed_backup_is_not_restored(path):
    backup = back_up_here(path)
    content = bytearray((backup / "store.sqlite").read_bytes())
    content[-100] ^= 1
    (backup / "store.sqlite").write_bytes(content)
    assert [problem.split(" has ")[1] for problem in check(str(backup), Silent()).problems] == [
        "changed since it was written. Use another backup."
    ]
    with pytest.raises(StoreError, match=r"has changed since it was written. .*The datastore was not changed"):
        restore(str(path), backup, Silent())
    assert not check(str(path), Silent()).problems
    for values, said in (
        ({"format": 9}, "newer version of denn .backup format 9"),
        ({"files": {"../x": "0" * 64}}, "'files.* has an invalid value"),
        ({"files": {}}, "does not name store.sqlite"),
    ):
        shutil.copytree(backup, path.parent / "other")
        rewrite(path.parent / "other", **values)
        with pytest.raises(StoreError, match=said):
            restore(str(path), path.parent / "other", Silent())
        shutil.rmtree(path.parent / "other")
    (backup / "store.sqlite").unlink()
    assert "has no store.sqlite" in check(str(backup), Silent()).problems[0]


def test_a_manifest_of_another_backup_is_found(path):
    backup = back_up_here(path)
    rewrite(backup, documents=7)
    assert check(str(backup), Silent()).problems == [
        "backup.json does not match store.sqlite: 'documents' differs. Use another backup."
    ]


def test_what_is_neither_is_said(path, tmp_path):
    (tmp_path / "empty").mkdir()
    for call, said in (
        (lambda: restore(str(path), tmp_path / "empty", Silent()), "is not a backup"),
        (lambda: back_up(str(tmp_path / "empty"), tmp_path / "x", Silent()), "is not a model"),
        (lambda: back_up(str(tmp_path / "nothing"), tmp_path / "x", Silent()), "there is no datastore"),
        (lambda: restore(str(tmp_path / "nothing"), back_up_here(path), Silent()), "there is no model or datastore at"),
        (lambda: check(str(tmp_path / "nothing"), Silent()), "neither a datastore nor a backup"),
        (lambda: check("memory:", Silent()), "cannot check the datastore memory:"),
        (lambda: back_up("postgresql://h/d?schema=s", tmp_path / "x", Silent()), "PostgreSQL's own pg_dump"),
        (lambda: restore("postgresql://h/d?schema=s", tmp_path / "x", Silent()), "PostgreSQL's own pg_restore"),
    ):
        with pytest.raises(StoreError, match=said):
            call()
    assert not is_backup(tmp_path / "x") and not (tmp_path / "nothing").exists()


DAMAGE = {
    "a vector of the wrong length": (
        "UPDATE documents SET embedding = x'00' WHERE id = 'a/7'",
        "does not have 3 dimensions: 1 document (such as 'a/7'). Restore a backup",
    ),
    "a vector that is not a unit": (
        f"UPDATE documents SET embedding = x'{np.float32([3, 0, 0]).tobytes().hex()}' WHERE id LIKE 'a/%'",
        "not finite or does not have length 1: 20 documents (such as 'a/0')",
    ),
    "a vector with nan": (
        f"UPDATE documents SET embedding = x'{np.float32([np.nan, 0, 0]).tobytes().hex()}' WHERE id = 'a/7'",
        "not finite or does not have length 1: 1 document (such as 'a/7')",
    ),
    "a label that does not exist": (
        "UPDATE documents SET labels = x'00010000' WHERE id = 'a/7'",
        "labels that do not exist, occur twice or are also rejected: 1 document (such as 'a/7')",
    ),
    "a text that is not text": ("UPDATE documents SET text = x'ff' WHERE id = 'a/7'", "not UTF-8 text: 1 document"),
    "a document that was forgotten": (
        "UPDATE documents SET id = 'b/5' WHERE id = 'a/7'",
        "stored although forgotten: 1 document (such as 'b/5')",
    ),
    "a change that is gone": ("DELETE FROM changes WHERE number = 2", "change that is not in the history: 1"),
    "a history without its change": ("UPDATE past SET number = 99 WHERE number = 4", "vacuum MODEL --keep 0"),
    "an undo of nothing": ("UPDATE changes SET undoes = 77 WHERE number = 5", "undoing a change that is missing"),
    "an old version that is damaged": (
        "UPDATE past SET embedding = x'00' WHERE number = 3",
        ": 2 previous versions",
    ),
    "a change from the future": ("UPDATE meta SET value = 3 WHERE key = 'version'", "after the last change"),
    "a label with a gap": ("UPDATE labels SET column = 99 WHERE column = 3", "numbered with gaps: 1 label"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_and_is_not_backed_up(path, what):
    statement, said = DAMAGE[what]
    assert not check(str(path), Silent()).problems
    sql(path, statement)
    problems = check(str(path), Silent()).problems
    assert any(said in problem for problem in problems), problems
    with pytest.raises(StoreError, match="damaged"):
        back_up(str(path), path.parent / "backup", Silent())
    assert names(path.parent) == {"store.sqlite"}


@pytest.mark.parametrize("page", [0, 3, 8])
def test_a_damaged_page_is_found(path, page):
    content = bytearray(path.read_bytes())
    content[4096 * page : 4096 * (page + 1)] = bytes(4096)
    path.write_bytes(content)
    (first, *_) = check(str(path), Silent()).problems
    assert first.endswith("Restore a backup (`denn store restore`), or build the datastore again from the corpus.")
    with pytest.raises(StoreError):
        back_up(str(path), path.parent / "backup", Silent())
    assert names(path.parent) == {"store.sqlite"}


def test_the_index_comes_along_and_is_checked(tmp_path):
    pytest.importorskip("faiss")
    path = tmp_path / "store.sqlite"
    with EmbeddedStore.create(path, 8, index="approximate") as store:
        store.add([Document(f"text {i}", id=str(i)) for i in range(600)], vectors(600, 8))
        store.build_index()
        store.add([Document("fresh", id="fresh")], torch.ones(1, 8))
    assert check(str(path), Silent()).facts["index"] == "current"
    backup = back_up_here(path)
    index = path.with_name("store.sqlite.faiss")
    built = index.read_bytes()
    index.unlink()
    restore(str(path), backup, Silent())
    assert index.read_bytes() == built
    with EmbeddedStore.open(path, index="approximate") as store:
        assert store.info()["search"] == "approximate" and len(store) == 601
    index.write_bytes(built[:-1])
    assert "is incomplete. The index is only a cache" in check(str(path), Silent()).problems[0]
    index.write_bytes(built[:-1] + bytes([built[-1] ^ 1]))
    assert "is damaged. The index is only a cache" in check(str(path), Silent()).problems[0]
    index.write_bytes(b"denn index 2\n" + built)
    assert not check(str(path), Silent()).problems
    index.write_bytes(built)
    sql(path, "UPDATE documents SET embedding = (SELECT embedding FROM documents WHERE id = '8') WHERE id = '7'")
    assert "other vectors than the datastore" in check(str(path), Silent()).problems[0]


def test_a_damaged_index_is_left_out_of_a_backup(path):
    path.with_name("store.sqlite.faiss").write_bytes(b"nonsense")
    backup = back_up_here(path)
    assert names(backup) == {"backup.json", "store.sqlite"}


def test_an_index_that_disappears_while_it_is_checked(path, monkeypatch):
    index = path.with_name("store.sqlite.faiss")
    index.write_bytes(b"nonsense")
    read = index_file.read_header

    def replaced(file):
        index.unlink(missing_ok=True)  # another process replaces it
        return read(file)

    monkeypatch.setattr(index_file, "read_header", replaced)
    assert "is incomplete" in check(str(path), Silent()).problems[0]  # what it had opened
    assert check(str(path), Silent()).facts["index"] == "none"


def test_what_a_killed_restore_left_behind_is_not_applied_to_the_next_one(path, monkeypatch):
    """A log next to the unfinished file belongs to another backup."""
    old = back_up_here(path)
    with EmbeddedStore.open(path) as store:
        store.add(*batch("later", 60))
    new = path.parent / "new"
    back_up(str(path), new, Silent())
    with EmbeddedStore.open(path) as store:
        store.forget(["a/3"])
    unfinished = path.with_name("store.sqlite.restoring")
    left = {}

    def kill(writer):  # in the middle of forgetting again: take what a kill would leave
        for suffix in ("", "-wal", "-shm"):
            left[suffix] = unfinished.with_name(unfinished.name + suffix).read_bytes()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(transfer, "clean", kill)
        restore(str(path), new, Silent())
    assert left["-wal"]
    for suffix, content in left.items():
        unfinished.with_name(unfinished.name + suffix).write_bytes(content)
    manifest, again = restore(str(path), old, Silent())
    assert (manifest.documents, again) == (39, 1)
    with EmbeddedStore.open(path) as store:
        assert len(store) == 38 and "a/3" not in store.ids()
    assert not check(str(path), Silent()).problems


def test_a_backup_of_a_newer_format_is_not_restored(path):
    backup = back_up_here(path)
    sql(backup / "store.sqlite", "UPDATE meta SET value = 4 WHERE key = 'format'")
    manifest = json.loads((backup / "backup.json").read_text())
    manifest["files"]["store.sqlite"] = digest_of(backup / "store.sqlite")
    (backup / "backup.json").write_text(json.dumps(manifest))
    with EmbeddedStore.open(path) as store:
        store.add(*batch("later"))
    with pytest.raises(StoreError, match="from a newer version of denn"):
        restore(str(path), backup, Silent())
    with EmbeddedStore.open(path) as store:
        assert len(store) == 59


def test_a_restored_store_keeps_its_permissions(path):
    backup = back_up_here(path)
    path.chmod(0o660)
    restore(str(path), backup, Silent())
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_folder_that_appears_during_a_backup_is_not_replaced(path):
    target = path.parent / "backup"

    class Late(Silent):
        def start(self, stage):
            target.mkdir(exist_ok=True)
            (target / "precious.txt").write_text("mine")

    with pytest.raises(ConflictError, match="exists and is not a backup"):
        back_up(str(path), target, Late())
    assert names(target) == {"precious.txt"}


def test_an_unreadable_id_in_the_old_store_does_not_stop_a_restore(path, caplog):
    backup = back_up_here(path)
    sql(path, "UPDATE forgotten SET id = CAST(X'ff41' AS TEXT)")
    assert restore(str(path), backup, Silent())[0].documents == 39
    assert "documents forgotten since the backup may be back" in caplog.text

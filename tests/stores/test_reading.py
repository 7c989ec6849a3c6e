"""Reading an embedded datastore without write access to its folder, or while others change it."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch

from denn.errors import StoreError
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document, Where

NOBODY = 65534
READER = """
import os, sys
from denn.errors import StoreError
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Where
import torch
store = EmbeddedStore.open  # imported while this process can still read everything
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
store = store(sys.argv[1], read_only=sys.argv[2] == "read")
for line in sys.stdin:
    try:
        if line == "select often\\n":
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(50):
                store.select(Where(text="x"))
            print(len(os.listdir("/proc/self/fd")) - before, flush=True)
        elif line == "begin\\n":
            rows = store.export(1)
            print(next(rows)[0][0].id, flush=True)
        elif line == "go on\\n":
            print(len(list(rows)), flush=True)
        else:
            found = store.search(torch.eye(3)[:1], 9)
            print(",".join(sorted(store.ids())), ",".join(sorted(found.ids[0])), flush=True)
    except StoreError as error:
        print(error, flush=True)
"""


@pytest.fixture
def path():
    with tempfile.TemporaryDirectory() as folder:  # not pytest's own, which each run makes private
        Path(folder).chmod(0o755)
        path = Path(folder) / "folder" / "store.sqlite"
        with EmbeddedStore.create(path, 3, ["x"]) as store:
            store.add([Document("one", ("x",), "a"), Document("two", ("x",), "b")], torch.eye(3)[:2])
        yield path


class Reader:
    """A process of another user with read-only access to the folder."""

    def __init__(self, path, mode):
        command = [sys.executable, "-c", READER, str(path), mode]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def asks(self, what):
        print(what, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().rstrip("\n")

    def sees(self):
        answer = self.asks("see")
        ids, _, found = answer.partition(" ")
        assert ids == found, answer
        return ids

    def close(self):
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_reader_without_write_access_sees_every_change(path, mode):
    soon = time.time() + 3600
    os.utime(path, (soon, soon))  # like a copy from a machine whose clock is ahead
    reader = Reader(path, mode)
    assert reader.sees() == "a,b"
    assert sorted(file.name for file in path.parent.iterdir()) == ["store.sqlite"], "nobody has the log open"
    with EmbeddedStore.open(path) as store:
        store.add([Document("three", ("new",), "c")], torch.eye(3)[2:])
        assert reader.sees() == "a,b,c"
        assert int(reader.asks("select often")) < 5, "descriptors are given back while a writer has the log open"
        store.forget("a")
        assert reader.sees() == "b,c"
        store.vacuum()
        assert reader.sees() == "b,c"
    for id in "defg":  # a writer opens and closes the store
        with EmbeddedStore.open(path) as store:
            store.add([Document("more", ("new",), id)], torch.eye(3)[2:])
        assert id in reader.sees()
    with EmbeddedStore.open(path) as store:
        store.forget("b")
    assert reader.sees() == "c,d,e,f,g"
    late = Reader(path, mode)
    assert late.sees() == "c,d,e,f,g"
    reader.close()
    late.close()


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_log_that_cannot_be_read_is_refused(path):
    with EmbeddedStore.open(path) as store:
        store.add([Document("three", ("new",), "c")], torch.eye(3)[2:])
        copy = path.parents[1] / "copy" / path.name  # as a killed writer leaves it, without the index of the log
        copy.parent.mkdir()
        for end in ("", "-wal"):
            shutil.copy(str(path) + end, str(copy) + end)
    script = READER + "\n"
    ran = subprocess.run([sys.executable, "-c", script, str(copy), "read"], capture_output=True, text=True, input="\n")
    assert "UnavailableError" in ran.stderr and "Open it once with write access" in ran.stderr
    with EmbeddedStore.open(copy) as store:
        assert store.ids() == ["a", "b", "c"]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_what_was_read_of_two_moments_is_refused(path):
    reader = Reader(path, "read")
    assert reader.asks("begin") == "a"
    with EmbeddedStore.open(path) as store:
        store.relabel(["a", "b"], ["other"])
    assert "changed while it was being read" in reader.asks("go on")
    assert reader.sees() == "a,b", "and the next reading is of one moment again"
    reader.close()


@pytest.mark.slow
def test_a_long_selection_holds_up_no_search(path):
    with EmbeddedStore.open(path) as store:
        store.add([Document(f"{number} " + "x" * 20_000) for number in range(6000)], torch.randn(6000, 3))
        begun = time.perf_counter()
        store.select(Where(text="nowhere"))
        whole = time.perf_counter() - begun
        selecting = threading.Thread(target=lambda: [store.select(Where(text="nowhere")) for _ in range(3)])
        selecting.start()
        waits = []
        while selecting.is_alive():
            begun = time.perf_counter()
            store.search(torch.eye(3)[:1], 1)
            waits.append(time.perf_counter() - begun)
        assert len(waits) > 10 and sorted(waits)[len(waits) // 2] < whole / 5


DAMAGE = {
    "a column beyond the labels": "UPDATE documents SET labels = x'07000000' WHERE id = 'a'",
    "a negative column": "UPDATE documents SET labels = x'00ffffff' WHERE id = 'a'",
    "half a column": "UPDATE documents SET labels = x'0000' WHERE id = 'a'",
    "labels that are text": "UPDATE documents SET labels = 'abcd' WHERE id = 'a'",
    "an embedding of another width": "UPDATE documents SET embedding = x'0000803f' WHERE id = 'a'",
    "an embedding that is too long": "UPDATE documents SET embedding = x'000000400000000000000000' WHERE id = 'a'",
    "an embedding that is no number": "UPDATE documents SET embedding = x'0000c07f0000000000000000' WHERE id = 'a'",
    "an id that is bytes": "UPDATE documents SET id = x'61' WHERE id = 'a'",
    "a change that is text": "UPDATE documents SET changed = 'soon' WHERE id = 'a'",
    "a name that is bytes": "UPDATE labels SET name = x'61'",
    "a dimension that is text": "UPDATE meta SET value = 'wide' WHERE key = 'dimension'",
    "no dimension": "DELETE FROM meta WHERE key = 'dimension'",
    "a dimension of none": "UPDATE meta SET value = 0 WHERE key = 'dimension'",
    "another dimension": "UPDATE meta SET value = 4 WHERE key = 'dimension'",
    "a huge dimension": "UPDATE meta SET value = 10000000000 WHERE key = 'dimension'",
    "no epoch": "DELETE FROM meta WHERE key = 'epoch'",
}


def test_a_schema_that_is_not_text_is_refused(path):
    content = bytearray(path.read_bytes())
    at = content.index(b"CREATE TABLE documents")
    content[at : at + 6] = b"\xff\xfe\xfd\xff\xfe\xfd"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        EmbeddedStore.open(path)


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_in_one_sentence(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    with pytest.raises(StoreError) as refused, EmbeddedStore.open(path):
        pass
    assert "\n" not in str(refused.value)
    assert "damaged" in str(refused.value) or "expected" in str(refused.value)

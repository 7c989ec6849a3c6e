"""Datastores outside a model's folder: the folder alone cannot choose them, and no password goes out in the clear."""

import shutil
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

import postgres_server
import pytest
import torch

import denn
from denn.errors import StoreError, UnavailableError
from denn.stores.address import open_store, use
from denn.stores.embedded.store import EmbeddedStore
from denn.stores.trust import VARIABLE, UntrustedError
from denn.types import Document

SECRET = "the user's own password"


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("DENN_CONFIG", str(tmp_path / "settings"))


@pytest.fixture
def model(tmp_path):
    """The files of a model that its datastore needs."""
    folder = tmp_path / "model"
    with EmbeddedStore.create(folder / "store" / "store.sqlite", 3, ["x"]) as store:
        store.add([Document("own", ("x",), "own")], torch.eye(3)[:1])
    (folder / "labels.txt").write_text("x\n")
    return folder


@pytest.fixture
def other(tmp_path):
    path = tmp_path / "other.sqlite"
    with EmbeddedStore.create(path, 3, ["x"]) as store:
        store.add([Document("other", ("x",), "other")], torch.eye(3)[:1])
    return path


def ids(folder):
    with open_store(folder) as store:
        return store.ids()


def test_an_address_that_came_with_the_folder_is_refused(model, other, monkeypatch):
    (model / "store" / "address").write_text(f"{other}\n")
    with pytest.raises(UntrustedError, match="is not trusted on this machine"):
        open_store(model)
    monkeypatch.setenv(VARIABLE, f"memory: {other}")
    assert ids(model) == ["other"]
    monkeypatch.delenv(VARIABLE)
    use(model, other)
    assert ids(model) == ["other"]
    copied = shutil.copytree(model, model.with_name("copied"))
    assert ids(copied) == ["other"], "this user allowed it"
    monkeypatch.setenv("DENN_CONFIG", str(model.with_name("another user")))
    with pytest.raises(UntrustedError):
        open_store(model)


def test_a_models_own_store_can_be_used_again_when_the_other_is_gone(model, other):
    use(model, other)
    other.unlink()
    with pytest.raises(StoreError, match="no datastore at"):
        open_store(model)
    use(model, None)
    assert ids(model) == ["own"]
    use(model, model / "store" / "store.sqlite")
    (model / "store" / "store.sqlite").unlink()
    with pytest.raises(StoreError, match="no longer has its own datastore"):
        use(model, None)


def test_another_width_is_refused_and_changes_nothing(model, tmp_path):
    EmbeddedStore.create(tmp_path / "wide.sqlite", 4, ["x"]).close()
    with pytest.raises(StoreError, match="dimension 4, expected 3"):
        use(model, tmp_path / "wide.sqlite")
    assert ids(model) == ["own"]


@pytest.mark.parametrize("content", [b"", b"\n", b"one\ntwo\n", b"\xff\xfe", b"a\x1b[2Jb\n"])
def test_an_address_that_is_none(model, content):
    (model / "store" / "address").write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        open_store(model)


@contextmanager
def greedy_server():
    """A server that asks for a password in the clear; yield its port and what it received."""
    heard = []

    def serve():
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client, suppress(OSError):
                client.settimeout(5)
                first = client.recv(1000)
                if first[4:8] == struct.pack("!i", 80877103):  # no TLS here
                    client.sendall(b"N")
                    first = client.recv(1000)
                heard.append(first)
                client.sendall(b"R" + struct.pack("!ii", 8, 3))  # AuthenticationCleartextPassword
                heard.append(client.recv(1000))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1], heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_no_server_gets_the_password_in_the_clear(model, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with greedy_server() as (port, heard):
        address = f"postgresql://user@127.0.0.1:{port}/database?schema=denn&sslmode=disable"
        (model / "store" / "address").write_text(address)
        with pytest.raises(UntrustedError):
            open_store(model)
        assert not heard, "nobody is asked before the address is allowed"
        monkeypatch.setenv(VARIABLE, address)
        with pytest.raises(UnavailableError, match="authentication method requirement"):
            open_store(model)
        assert heard and not any(SECRET.encode() in said for said in heard)
        for weaker in ("require_auth=password", "require_auth=none"):
            with pytest.raises(StoreError, match="PGREQUIREAUTH"):
                open_store(f"{address}&{weaker}")


@pytest.mark.slow
@pytest.mark.parametrize("method, opens", [("scram-sha-256", True), ("password", False), ("md5", False)])
def test_a_real_server_gets_a_password_by_scram_only(tmp_path, monkeypatch, method, opens):
    server = postgres_server.server()
    store = postgres_server.create(tmp_path / "address", 3, ["x"])
    role = f"by_{method.replace('-', '_')}"
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    with server.connect() as connection:
        connection.execute(f"SET password_encryption = '{'md5' if method == 'md5' else 'scram-sha-256'}'")
        connection.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{SECRET.replace(chr(39), chr(39) * 2)}'")
        try:
            rules.write_text(f"local all {role} {method}\n{before}")
            connection.execute("SELECT pg_reload_conf()")
            monkeypatch.setenv("PGPASSWORD", SECRET)
            address = store.address.replace("postgres@", f"{role}@")
            assert address != store.address
            if opens:
                with open_store(address) as opened:
                    assert opened.labels == ("x",)
                monkeypatch.setenv("PGPASSWORD", "wrong")
                with pytest.raises(UnavailableError, match="authentication failed"):
                    open_store(address)
            else:
                with pytest.raises(UnavailableError, match="authentication method requirement"):
                    open_store(address)
        finally:
            rules.write_text(before)
            connection.execute("SELECT pg_reload_conf()")
            connection.execute(f"DROP ROLE {role}")
            store.close()


@pytest.mark.slow
@pytest.mark.parametrize("answer", ["n", "y"])
def test_a_terminal_is_asked_whether_to_trust(tiny_model, tmp_path, answer, answer_on_terminal):
    folder = shutil.copytree(tiny_model, tmp_path / "foreign")
    elsewhere = shutil.copy(folder / "store" / "store.sqlite", tmp_path / "elsewhere.sqlite")
    (folder / "store" / "address").write_text(f"{elsewhere}\n")
    command = [sys.executable, "-m", "denn", "store", "info", str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert ran.returncode == 2 and "is not trusted on this machine" in ran.stderr and "Traceback" not in ran.stderr
    code, _ = answer_on_terminal(command, "trust this address?", answer)
    assert code == (0 if answer == "y" else 2)
    again = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert again.returncode == code, "the answer is remembered"
    if answer == "y":
        with denn.load(folder) as model:
            assert len(model.store) == 60

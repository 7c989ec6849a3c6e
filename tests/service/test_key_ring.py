"""Keys of a running service: created, revoked, expired and limited without a restart."""

import asyncio
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from inside import Inside, eventually, inside
from typer.testing import CliRunner

from denn.cli.app import app
from denn.errors import ConfigError
from denn.service import rates
from denn.service.key_file import add_key, read_keys, revoke_key
from denn.service.key_ring import Access, KeyRing
from denn.service.keys import Keys, new_key
from denn.service.rates import Allowance

TEXT = {"text": "goal match team"}
ROOT, ROOT_LINE = new_key("administer", "root")
SOON = timedelta(seconds=1.5)


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    return shutil.copytree(tiny_model, tmp_path_factory.mktemp("ring") / "tiny")


@pytest.fixture
def file(tmp_path) -> Path:
    add_key(tmp_path / "keys", "read", "first")
    return tmp_path / "keys"


@pytest.fixture
def running(folder, file) -> Iterator[Inside]:
    """A service with a file of keys, and an administrator key that is not in the file."""
    with inside(folder, keys=Keys.parse([ROOT_LINE]), key_file=file) as running:
        yield running


def status(running: Inside, key: str | None, path: str = "/v1/labels") -> int:
    with running.client(key) as client:
        return client.get(path).status_code


def keys_of(running: Inside) -> dict[str, str]:
    with running.client(ROOT) as client:
        return {key["name"]: key["state"] for key in client.get("/v1/keys").json()["keys"]}


def facts(caplog: pytest.LogCaptureFixture, message: str) -> list[dict]:
    return [record.facts for record in caplog.records if record.getMessage() == message]


@pytest.mark.slow
def test_a_key_is_created_and_revoked_while_the_service_runs(running, file, caplog):
    caplog.set_level(logging.INFO, "denn.service")
    key = add_key(file, "teach", "alice")
    eventually(lambda: status(running, key) == 200)
    document = {"documents": [{"text": "goal", "labels": ["sport"], "id": "by-alice"}]}
    with running.client(key) as client:
        assert client.post("/v1/documents", json=document).status_code == 201
        assert client.get("/v1/history", params={"limit": 1}).json()["changes"][0]["author"] == "alice"
        revoke_key(file, "alice")
        eventually(lambda: client.get("/v1/labels").status_code == 401)  # on the same connection
        answers = [client.get("/v1/labels"), client.post("/v1/documents", json=document)]
        session = client.get("/v1/session").json()
    today = datetime.now(UTC).date()
    for answer in answers:
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json()["detail"] == f"This key was revoked on {today}. Ask for a new one."
    assert session["rights"] == [] and session["why_not"] == answers[0].json()["detail"]
    assert keys_of(running) == {"first": "active", "root": "active", "alice": "revoked"}
    assert facts(caplog, "keys read again") == [
        {"active": 3, "added": ["alice"], "ended": []},
        {"active": 2, "added": [], "ended": ["alice"]},
    ]
    used = [record.facts for record in caplog.records if record.getMessage() == "request"]
    assert {one["status"] for one in used if one["key"] == "alice"} >= {201, 401}


@pytest.mark.slow
def test_a_key_expires_while_the_service_runs(running, file):
    ends = datetime.now(UTC) + SOON
    key, line = new_key("teach", "short-lived", expires=ends + timedelta(seconds=1))
    file.write_text(file.read_text() + line + "\n")
    eventually(lambda: status(running, key) == 200)
    with running.client(key) as client:
        assert datetime.fromisoformat(client.get("/v1/session").json()["expires"]) > ends
        eventually(lambda: client.get("/v1/labels").status_code == 401)
        assert datetime.now(UTC) > ends
        assert "This key expired on" in client.get("/v1/labels").json()["detail"]
    assert keys_of(running)["short-lived"] == "expired"


@pytest.mark.slow
def test_a_file_that_is_not_valid_changes_nothing(running, file, caplog):
    caplog.set_level(logging.WARNING, "denn.service")
    good = file.read_text()
    key = add_key(file, "read", "reader")
    eventually(lambda: status(running, key) == 200)
    for content, said in (
        (f"{good}read {key}\n", "Line 2 of the keys is not valid"),
        (None, "Cannot read the key file"),
    ):
        caplog.clear()
        file.unlink() if content is None else file.write_text(content)
        (warning,) = eventually(lambda: [record.getMessage() for record in caplog.records])
        assert warning.startswith("the last valid keys stay in force: ") and said in warning and key not in warning
        assert status(running, key) == 200
    file.write_text(good)
    eventually(lambda: status(running, key) == 401)
    assert len(caplog.records) == 1  # each problem is logged once


@pytest.mark.slow
def test_reading_never_becomes_public_because_keys_are_gone(running, file):
    assert status(running, None) == 401
    file.write_text("")
    eventually(lambda: keys_of(running) == {"root": "active"})
    assert status(running, None) == 401 and status(running, ROOT) == 200


@pytest.mark.slow
def test_a_key_has_its_own_limit_on_texts(running, file):
    limited, free = add_key(file, "teach", "limited", per_minute=4), add_key(file, "read", "free")
    eventually(lambda: status(running, free) == 200)
    with running.client(limited) as client, running.client(free) as other:
        assert client.post("/v1/predict/batch", json={"texts": ["a", "b", "c"]}).status_code == 200
        assert client.get("/v1/labels").status_code == 200  # counts as one text
        answer = client.post("/v1/predict", json=TEXT)
        assert answer.status_code == 429 and answer.headers["Content-Type"] == "application/problem+json"
        wait = int(answer.headers["Retry-After"])
        assert 1 <= wait <= 15  # four a minute
        assert answer.json()["detail"] == (f"The key 'limited' may send 4 texts per minute. Try again in {wait} s.")
        document = {"documents": [{"text": "goal", "labels": ["sport"]}]}
        assert client.post("/v1/documents", json=document).status_code == 429
        assert client.get("/health").status_code == client.get("/v1/session").status_code == 200
        assert {other.post("/v1/predict", json=TEXT).status_code for _ in range(10)} == {200}
    lines = file.read_text().replace("per_minute=4", "per_minute=100000")
    file.write_text(lines)
    eventually(lambda: status(running, limited) == 200)  # the new limit applies at once


def started(client: httpx.Client, lines: str) -> httpx.Response | None:
    answer = client.post("/v1/predict/stream", content=lines)
    return answer if answer.status_code == 200 else None


@pytest.mark.slow
def test_a_stream_is_slowed_down_and_not_refused(running, file):
    key = add_key(file, "read", "streamer", per_minute=3600)  # 60 a second
    eventually(lambda: status(running, key) == 200)
    with running.client(key) as client:
        allowance = next(iter(running.guard._ring._allowances.values()))
        begun = time.monotonic()
        allowance.wait()  # brings it up to date
        allowance.take(allowance._left)  # so that it has just run out
        sent = "".join(json.dumps({"text": "goal"}) + "\n" for _ in range(64))
        answer = eventually(lambda: started(client, sent))
    assert len(answer.text.splitlines()) == 64 and "error" not in answer.text
    assert time.monotonic() - begun > 0.5  # two batches of 32: the second waits for the first to be paid


def test_an_allowance_grows_again_up_to_one_minute(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    allowance = Allowance(60)
    assert allowance.wait() == 0
    allowance.take(60)
    assert allowance.wait() == pytest.approx(1)
    now += 1
    assert allowance.wait() == 0
    allowance.take(31)  # more than is left
    assert allowance.wait() == pytest.approx(31)
    now += 10_000
    assert allowance.wait() == 0
    allowance.take(60)
    assert allowance.wait() == pytest.approx(1)  # nothing was saved beyond one minute


@pytest.fixture(params=["folder", "database"])
def common(request, folder, tmp_path, monkeypatch):
    """A model whose datastore is in its folder or in a database."""
    mine = shutil.copytree(folder, tmp_path / "mine")
    if request.param == "database":
        monkeypatch.syspath_prepend(Path(__file__).parents[1] / "stores")
        import postgres_server

        address = postgres_server.address_of(tmp_path / "address", fresh=True)
        for arguments in (["store", "copy", str(mine), address], ["store", "use", str(mine), address]):
            assert CliRunner().invoke(app, arguments).exit_code == 0
    return mine


@pytest.mark.slow
def test_the_history_names_the_key_of_every_change_in_every_datastore(common, tmp_path):
    file = tmp_path / "keys"
    alice, bob = add_key(file, "teach", "alice"), add_key(file, "administer", "bob")
    document = {"text": "goal", "labels": ["sport"], "source": "desk"}
    with inside(common, key_file=file) as running, running.client(alice) as one, running.client(bob) as other:
        assert one.put("/v1/documents/a", json=document).status_code == 200
        assert other.patch("/v1/documents/a", json={"add": ["music"]}).status_code == 200
        number = one.get("/v1/history", params={"limit": 1}).json()["changes"][0]["number"]
        assert one.post(f"/v1/history/{number}/undo").status_code == 200
        assert other.delete("/v1/documents/a").status_code == 200
        changes = one.get("/v1/history", params={"id": "a"}).json()["changes"]
    assert [(change["action"], change["author"], change["source"]) for change in changes] == [
        ("remove", "bob", "bob"),
        ("undo", "alice", "alice"),
        ("relabel", "bob", "bob"),
        ("add", "alice", "alice: desk"),
    ]


def ran(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["keys", *map(str, arguments)])
    if isinstance(done.exception, ConfigError):
        return 2, done.stdout, str(done.exception)
    return done.exit_code, done.stdout, done.stderr


def test_the_commands(tmp_path):
    file = tmp_path / "keys.txt"
    code, key, _ = ran("create", file, "alice", "--right", "teach", "--expires", "90d", "--per-minute", 600)
    assert code == 0 and stat.S_IMODE(file.stat().st_mode) == 0o600 and key.strip() not in file.read_text()
    file.write_text(f"# ours\n\n{file.read_text()}")
    file.chmod(0o640)
    assert ran("create", file, "bob")[0] == 0 and stat.S_IMODE(file.stat().st_mode) == 0o640
    found = read_keys(file).find(key.strip())
    assert (found.name, found.right, found.per_minute) == ("alice", "teach", 600)
    assert timedelta(days=89) < found.expires - datetime.now(UTC) <= timedelta(days=90)
    assert ran("create", file, "bob") == (2, "", f"{file} already has an active key named 'bob'. "
                                                 "Choose another name, or revoke it.")  # fmt: skip
    assert ran("revoke", file, "alice")[0] == 0
    assert ran("revoke", file, "alice")[2] == f"{file} has no active key named 'alice'. Active keys: 'bob'."
    assert ran("create", file, "alice", "--expires", "2100-01-01")[0] == 0  # a new key for the same owner
    rows = [json.loads(line) for line in ran("list", file, "--json")[1].splitlines()]
    assert [(row["name"], row["right"], row["state"]) for row in rows] == [
        ("alice", "teach", "revoked"), ("bob", "read", "active"), ("alice", "read", "active"),
    ]  # fmt: skip
    shown = ran("list", file)[1].splitlines()
    assert shown[0].startswith("alice: teach, revoked 20") and shown[0].endswith(" UTC, 600 texts per minute")
    assert shown[1:] == ["bob: read", "alice: read, until 2100-01-01 00:00 UTC"]
    assert file.read_text().startswith("# ours\n\n") and not list(tmp_path.glob(".*"))
    for wrong in ("tomorrow", "2001-01-01", "0d", "99999999d"):
        assert ran("create", file, "carol", "--expires", wrong)[0] == 2
    assert "Cannot read the key file" in ran("list", tmp_path / "nothing")[2]
    assert "The name of the key is empty" in ran("create", file, "")[2]
    file.write_text("nonsense\n")
    assert f"{file} is not a valid key file. Line 1 of the keys" in ran("list", file)[2]
    assert "Cannot change the key file" in ran("create", tmp_path / "no" / "folder", "carol")[2]


def test_a_revocation_that_could_not_be_read_at_first_takes_effect(file, monkeypatch, caplog):
    """A file system or a limit on open files may fail for a moment."""

    async def looks() -> list[str]:
        ring, states = KeyRing(Keys(), file), []
        revoke_key(file, "first")
        for failing in (True, True, False):
            with monkeypatch.context() as patch:
                if failing:
                    patch.setattr(Path, "read_text", refuse)
                await ring.look()
            states.append(ring.keys.known[0].state())
        return states

    def refuse(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    assert asyncio.run(looks()) == ["active", "active", "revoked"]
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == ["WARNING"]  # once


def test_a_key_that_ended_in_one_place_has_ended():
    key, line = new_key("read", "reader")
    revoked = line.replace(" reader", " revoked=2026-01-01 reader")
    for given, file in ((line, revoked), (revoked, line)):
        assert (Keys.parse([given]) + Keys.parse([file])).find(key).state() == "revoked"
    assert len((Keys.parse([line]) + Keys.parse([line])).known) == 1


def test_a_request_does_not_pay_with_the_bill_of_an_earlier_one():
    """Both may run in the same context: uvicorn starts a pipelined request from the one before it."""
    limited, free = (
        Access(rights=("read",), key=Keys.parse([new_key("read", "x", per_minute=limit)[1]]).known[0])
        for limit in (10, None)
    )
    ring = KeyRing(Keys())
    ring.bill(limited)
    rates.charge(1)
    for other in (free, Access(rights=("read",))):
        ring.bill(other)
        rates.charge(100)
    assert next(iter(ring._allowances.values()))._left == pytest.approx(9, abs=0.1)


@pytest.mark.slow
def test_a_stream_ends_with_its_key(running, file):
    key = add_key(file, "read", "streamer", per_minute=1200)
    eventually(lambda: status(running, key) == 200)
    sent = "".join(json.dumps({"text": "goal"}) + "\n" for _ in range(1500))  # the last ones wait for the limit
    with running.client(key) as client, client.stream("POST", "/v1/predict/stream", content=sent) as answer:
        lines = answer.iter_lines()
        assert "error" not in next(lines)
        revoke_key(file, "streamer")
        rest = [json.loads(line) for line in lines]
    assert len(rest) == 1499 and "This key was revoked" in rest[-1]["error"]


@pytest.mark.slow
def test_a_stream_does_not_wait_for_hours(running, file):
    key = add_key(file, "read", "slow", per_minute=2)
    eventually(lambda: status(running, ROOT, "/v1/keys") == 200 and "slow" in keys_of(running))
    sent = "".join(json.dumps({"text": "goal"}) + "\n" for _ in range(64))
    with running.client(key) as client:
        lines = [json.loads(line) for line in client.post("/v1/predict/stream", content=sent).text.splitlines()]
    assert len(lines) == 64 and "error" not in lines[0]
    assert "The key may send 2 texts per minute. Send the rest again in" in lines[-1]["error"]


def test_a_file_is_read_again_when_its_permissions_change(file):
    ring = KeyRing(Keys(), file)
    seen = ring._signature()
    file.chmod(0o640)  # as after a file that the service could not read
    assert ring._signature() != seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_keeps_its_owner(tmp_path):
    add_key(tmp_path / "keys", "read", "first")
    os.chown(tmp_path / "keys", 10001, 10002)
    revoke_key(tmp_path / "keys", "first")  # as `sudo denn keys revoke` does with the file of a service
    found = (tmp_path / "keys").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (10001, 10002, 0o600)


def test_a_linked_file_stays_a_link(tmp_path):
    add_key(tmp_path / "real", "read", "first")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    add_key(tmp_path / "link", "read", "second")
    assert (tmp_path / "link").is_symlink() and len(read_keys(tmp_path / "real").known) == 2

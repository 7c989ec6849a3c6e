"""`denn serve` and `denn keys` as commands: output, shutdown, and several services at once."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uvicorn
from inside import PATIENCE, eventually

from denn.service.draining import DrainingServer
from denn.service.keys import Keys

TEXT = {"text": "referee goal stadium kyoto temple sakura"}


@pytest.fixture
def folder(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "tiny")


def ran(*arguments: object, **variables: str) -> subprocess.CompletedProcess:
    """Run a command to its end."""
    command = [sys.executable, "-m", "denn", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **variables})


@pytest.mark.slow
def test_new_keys():
    done = ran("keys", "new", "write", "the desk")
    key, line = done.stdout.splitlines()
    assert done.returncode == 0 and Keys.parse([line]).find(key).name == "the desk"
    wrong = ran("keys", "new", "admin")
    assert wrong.returncode == 2 and "must be read, teach or administer" in wrong.stderr and not wrong.stdout


@pytest.mark.slow
def test_what_a_user_can_mend(folder, tmp_path):
    (tmp_path / "keys").write_text("# ours\nwrite my-secret\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options, said in (
            (["--keys", tmp_path / "keys"], "Line 2 of the keys is not valid"),
            (["--keys", tmp_path / "nothing"], "Cannot read the key file"),
            (["--port", port], f"Cannot listen on 127.0.0.1, port {port}: Address already in use. Try another --port."),
            (["--host", "no.such.host.invalid"], "Cannot listen on no.such.host.invalid"),
        ):
            done = ran("serve", folder, *options)
            assert done.returncode == 2 and said in " ".join(done.stderr.split()), done.stderr
            assert "Traceback" not in done.stderr and "my-secret" not in done.stderr
    done = ran("serve", tmp_path / "no-model", "--port", "0")
    assert done.returncode == 2 and "no-model" in done.stderr
    assert "Line 1 of the keys is not valid" in ran("serve", folder, "--port", "0", DENN_KEYS="nonsense").stderr


@pytest.mark.slow
def test_keys_from_a_file_and_from_the_environment(serving, folder, tmp_path, monkeypatch):
    (read, read_line), (write, write_line), (more, more_line) = (
        ran("keys", "new", right, name).stdout.splitlines()
        for right, name in (("read", "file"), ("write", "environment"), ("read", "too"))
    )
    (tmp_path / "keys").write_text(f"# who may read\n\n{read_line}\n", encoding="utf-8")
    monkeypatch.setenv("DENN_KEYS", f"{write_line}; {more_line}")
    with serving(folder, "--keys", str(tmp_path / "keys"), teach=False) as running:
        assert running.write_key is None
        statuses = {}
        for name, key in (("none", None), ("file", read), ("environment", write), ("too", more)):
            with running.client(key) as client:
                statuses[name] = client.get("/v1/labels").status_code, client.delete("/v1/documents/x").status_code
        assert statuses == {"none": (401, 401), "file": (200, 403), "environment": (200, 404), "too": (200, 403)}
        curl = running.process.stdout.readline()
        assert "-H 'Authorization: Bearer KEY'" in curl
    logged = "".join(running.log)
    assert all(f'"key": "{name}"' in logged for name in ("file", "environment", "too"))
    assert not any(key in logged for key in (read, write, more))


@pytest.mark.slow
def test_the_greeting_the_command_to_try_and_an_end_by_the_keyboard(serving, folder):
    with serving(folder, "--host", "127.0.0.2", "--log", "none", teach=False) as running:
        assert running.url.startswith("http://127.0.0.2:")  # any loopback address is accepted as a host name
        command = running.process.stdout.readline()
        assert command.startswith(f"Try: curl {running.url}/v1/predict -H 'Content-Type: application/json' -d '")
        with running.client() as client:
            assert client.get("/health").status_code == 200
            body = json.loads(re.search("-d '(.*)'", command)[1])
            assert client.post("/v1/predict", json=body).status_code == 200
            assert client.put("/v1/documents/x", json={"text": "x", "labels": []}).status_code == 403
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(PATIENCE) in (0, 130, -signal.SIGINT)
    assert "Traceback" not in "".join(running.log) and "bug in denn" not in "".join(running.log)


@pytest.mark.slow
def test_a_signal_to_stop_waits_for_what_was_accepted(serving, folder):
    answers = []
    with serving(folder) as running:
        body = {"texts": [f"{number} " + "goal match team " * 1900 for number in range(256)]}

        def post() -> None:
            with running.client() as client:
                answers.append(client.post("/v1/predict/batch", json=body, timeout=PATIENCE))

        thread = threading.Thread(target=post)
        thread.start()
        with running.client() as client:
            eventually(lambda: "denn_waiting_texts 256.0" in client.get("/metrics").text or answers)
        running.process.send_signal(signal.SIGTERM)
        thread.join(PATIENCE)
        running.process.wait(PATIENCE)
    assert answers[0].status_code == 200 and len(answers[0].json()["predictions"]) == 256


@pytest.mark.slow
def test_a_draining_service_is_not_ready_and_still_answers_until_the_next_signal(serving, folder):
    with serving(folder, "--drain-seconds", "600") as running, running.writer() as client:
        assert client.get("/ready").status_code == 200
        running.process.send_signal(signal.SIGTERM)
        answer = eventually(lambda: (found := client.get("/ready")).status_code == 503 and found)
        assert "about to stop" in answer.json()["detail"] and answer.headers["Connection"] == "close"
        for path, body, status in (
            ("/v1/predict", TEXT, 200),
            ("/v1/documents", {"documents": [TEXT | {"labels": ["sport"]}]}, 201),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, answer.headers["Connection"]) == (status, "close")
        assert client.get("/health").status_code == 200 and running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(PATIENCE)
    assert sum("draining" in line for line in running.log) == 1


def test_a_draining_server_stops_by_itself():
    async def app(scope, receive, send):
        await receive()

    draining = threading.Event()
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    server = DrainingServer(config, draining, seconds=0.3)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket.create_server(("127.0.0.1", 0))]})
    thread.start()
    eventually(lambda: server.started)
    begun = time.monotonic()
    server.handle_exit(signal.SIGTERM, None)
    assert draining.is_set() and not server.should_exit
    thread.join(PATIENCE)
    assert not thread.is_alive() and time.monotonic() - begun > 0.3
    other = DrainingServer(config, threading.Event(), seconds=0.3)
    other.handle_exit(signal.SIGINT, None)
    assert other.should_exit  # at the keyboard nobody wants to wait


@pytest.mark.slow
def test_a_kill_loses_nothing_that_was_acknowledged(serving, folder):
    acknowledged = []
    for kill in range(3):
        with serving(folder) as running:
            last = running.process

            def add(number: int, client) -> None:
                body = {"documents": [{"text": f"{number} goal", "labels": ["sport", f"label {number}"]}] * 3}
                answer = client.post("/v1/documents", json=body)
                assert answer.status_code == 201
                acknowledged.extend(answer.json()["ids"])

            with running.writer() as client:
                for number in range(10 + kill):
                    add(100 * kill + number, client)
                last.kill()  # right after the answer
                last.wait()
    with serving(folder) as running, running.client() as client:
        found = client.get("/v1/documents", params={"limit": 1000}).json()
        assert len(set(acknowledged)) == 99 and found["total"] == 60 + 99
        assert set(acknowledged) <= {one["id"] for one in found["documents"]}
        assert client.get("/v1/labels", params={"query": "label "}).json()["total"] == 33
        assert client.post("/v1/predict", json=TEXT).status_code == 200


@pytest.fixture(params=["folder", "database"])
def common(request, folder, tmp_path, monkeypatch):
    """A model whose datastore is in its folder or in a database."""
    if request.param == "database":
        monkeypatch.syspath_prepend(Path(__file__).parents[1] / "stores")
        import postgres_server

        address = postgres_server.address_of(tmp_path / "address", fresh=True)
        assert ran("store", "copy", folder, address).returncode == 0
        assert ran("store", "use", folder, address).returncode == 0
    return folder


@pytest.mark.slow
def test_what_one_service_adds_another_knows_at_once(serving, common):
    with serving(common) as first, serving(common) as second, first.writer() as one, second.writer() as other:
        text = "zeppelin moorings of the aerodrome"
        for writer, reader, number in ((one, other, 1), (other, one, 2)):
            documents = [
                {"text": f"{text} {number} {n}", "labels": ["airships"], "id": f"{number}/{n}\x00"} for n in "ab"
            ]
            added = writer.post("/v1/documents", json={"documents": documents, "source": f"desk {number}"})
            assert added.json()["ids"] == [f"{number}/a\x00", f"{number}/b\x00"]
            found = reader.post("/v1/predict", json={"text": documents[0]["text"]}).json()
            assert found["neighbours"][0]["id"] == f"{number}/a\x00"
            assert found["neighbours"][0]["similarity"] == pytest.approx(1, abs=1e-3)
            assert "airships" in {row["label"] for row in found["scores"]}
            (label,) = reader.get("/v1/labels", params={"query": "airships"}).json()["labels"]
            assert label["documents"] == 2 * number and label["trained"] is False
        assert (
            one.get("/v1/documents", params={"limit": 0}).json()
            == other.get("/v1/documents", params={"limit": 0}).json()
        )
        assert one.delete("/v1/documents/1%2Fa%00").status_code == 200
        assert other.get("/v1/documents/1%2Fa%00").status_code == 404
        (change,) = other.get("/v1/history", params={"limit": 1}).json()["changes"]
        assert other.post(f"/v1/history/{change['number']}/undo").json()["documents"] == 1
        assert one.get("/v1/documents/1%2Fa%00").json()["labels"] == ["airships"]
        assert [row.status_code for row in (one.get("/v1/model"), other.get("/v1/map"), one.get("/ready"))] == [200] * 3
        assert "postgresql" not in one.get("/v1/model").text + one.get("/v1/documents/nobody").text

"""Rules for every request: host names, origins, headers, ids, logs, metrics and internal errors."""

import json
import logging
import re
import shutil
from collections.abc import Iterator

import pytest
from inside import Inside, eventually, inside

from denn.errors import BundleError, EncoderError, UnavailableError
from denn.service.guard import SECURITY
from denn.service.keys import Keys, new_key
from denn.service.telemetry import JsonLines

pytestmark = pytest.mark.slow  # each starts its own service

TEXT = {"text": "goal match team"}
WRITE, WRITE_LINE = new_key("write", "the writer")
READ, READ_LINE = new_key("read", "the reader")
ORIGIN = "https://catalogue.example"


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    return shutil.copytree(tiny_model, tmp_path_factory.mktemp("guard") / "tiny")


@pytest.fixture(scope="module")
def named(folder) -> Iterator[Inside]:
    """A service with two host names, a read key and a write key."""
    keys = Keys.parse([WRITE_LINE, READ_LINE])
    with inside(folder, hosts=("denn.example", "[::1]"), keys=keys, body_bytes=10_000) as running:
        yield running


@pytest.fixture(scope="module")
def shared(folder) -> Iterator[Inside]:
    """A service that allows requests from another site."""
    with inside(folder, origins=(ORIGIN,), keys=Keys.parse([WRITE_LINE, READ_LINE])) as running:
        yield running


@pytest.mark.parametrize("host", ["denn.example", "DENN.example:8000", "[::1]", "[::1]:8000"])
def test_the_names_of_the_service(named, host):
    with named.client() as client:
        assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "hosts",
    [
        [], [""], ["127.0.0.1"], ["evil.example"], ["denn.example.evil"], ["x@denn.example"], ["denn.example, evil"],
        ["denn.example", "evil"], ["denn.example", "denn.example"],
    ],
)  # fmt: skip
def test_other_names_are_refused(named, hosts):
    lines = ["GET /health HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""]
    with named.connect() as connection:
        connection.sendall("\r\n".join(lines).encode())
        answer = connection.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 400") and "Host name not allowed" in answer


@pytest.mark.parametrize("path", ["/health", "/v1/labels", "/v1/documents?limit=3", "/openapi.json", "/", "/v1/no"])
def test_head_is_get_without_the_body(service, path):
    with service.client() as client:
        whole = client.get(path)
        only = client.head(path)
        assert (only.status_code, only.content) == (whole.status_code, b"")
        assert {only.headers[name] == whole.headers[name] for name in ("content-type", "content-length")} == {True}
        assert client.get("/health").status_code == 200  # on the same connection
        assert client.head("/v1/predict").status_code == 405


def test_other_origins_see_nothing_unless_they_may(named, shared, service):
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
    with service.client() as client:
        for answer in (client.get("/v1/session", headers=asked), client.options("/v1/predict", headers=asked)):
            assert not [name for name in answer.headers if name.startswith("access-control")]
    with shared.client() as client:
        before = client.options("/v1/predict", headers=asked)
        assert before.status_code == 200 and before.headers["Access-Control-Allow-Origin"] == ORIGIN
        assert before.headers["Access-Control-Allow-Headers"] == "x-api-key"
        for path, key, status in (("/v1/labels", READ, 200), ("/v1/labels", "wrong", 401), ("/nothing", READ, 404)):
            answer = client.get(path, headers={"Origin": ORIGIN, "X-API-Key": key})
            assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (status, ORIGIN)
            assert "X-Request-Id" in answer.headers["Access-Control-Expose-Headers"]
            assert "Access-Control-Allow-Credentials" not in answer.headers
        for other in ("https://evil.example", "null", f"{ORIGIN}.evil"):
            answer = client.get("/v1/session", headers={"Origin": other})
            assert "Access-Control-Allow-Origin" not in answer.headers
            assert client.options("/v1/predict", headers={**asked, "Origin": other}).status_code == 400


def every_kind(running: Inside) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Request every kind of response; return name, status and headers of each."""
    with running.client(WRITE, Host="denn.example") as client:
        gate = running.gate
        document = {"text": "x", "labels": ["sport"], "id": "kind"}
        asked = [
            ("page", client.get("/")),
            ("file", client.get("/page/api.js")),
            ("JSON", client.post("/v1/predict", json=TEXT)),
            ("stream", client.post("/v1/predict/stream", content=json.dumps(TEXT))),
            ("metrics", client.get("/metrics")),
            ("description", client.get("/openapi.json")),
            ("added", client.post("/v1/documents", json={"documents": [document]})),
            ("removed", client.delete("/v1/documents/kind?forget=true")),
            ("redirection", client.get("/page")),
            ("no body", client.head("/v1/labels")),
            ("wrong host", client.get("/health", headers={"Host": "evil"})),
            ("wrong key", client.get("/v1/labels", headers={"Authorization": "Bearer x"})),
            ("nothing there", client.get("/nothing")),
            ("no such file", client.get("/page/nothing.js")),
            ("no such document", client.get("/v1/documents/nothing")),
            ("wrong method", client.get("/v1/predict")),
            ("conflict", client.put("/v1/documents/kind", json={"text": "x", "labels": []})),
            ("too large", client.post("/v1/predict", json={"text": "x" * 10_000})),
            ("not valid", client.post("/v1/predict", json={})),
            ("not JSON", client.post("/v1/predict", content=b"\xff", headers={"Content-Type": "application/json"})),
        ]
        gate.poison = "poison"
        asked.append(("our own fault", client.post("/v1/predict", json={"text": "poison"})))
        gate.poison = None
    for what, answer in asked:
        yield what, answer.status_code, answer.headers


def test_every_kind_of_answer_has_the_headers(named):
    seen = {}
    for what, status, headers in every_kind(named):
        seen[what] = status
        assert {name: headers.get(name) for name in SECURITY} == SECURITY, what
        assert re.fullmatch("[0-9a-f]{32}", headers["X-Request-Id"]), what
    assert list(seen.values()) == [200, 200, 200, 200, 200, 200, 201, 200, 307, 200, 400, 401, 404, 404, 404, 405, 409,
                                   413, 422, 400, 500]  # fmt: skip


def test_a_fault_of_our_own_is_a_problem_too_and_says_no_text(named, caplog):
    named.gate.poison = "secret poison"
    with named.client(READ, Host="denn.example") as client:
        answer = client.post("/v1/predict", json={"text": "secret poison"})
        named.gate.poison = None
        assert client.post("/v1/predict", json=TEXT).status_code == 200
    assert answer.status_code == 500 and answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["request_id"] == answer.headers["X-Request-Id"]
    assert "secret" not in answer.text
    own = {"request_id": answer.json()["request_id"]}
    (failed,) = eventually(lambda: [record for record in caplog.records if getattr(record, "facts", None) == own])
    line = json.loads(JsonLines().format(failed))
    assert line["level"] == "error" and line["request_id"] == answer.json()["request_id"]
    assert "RuntimeError" in line["trace"] and "inside.py" in line["trace"] and "secret" not in line["trace"]


def test_a_datastore_out_of_reach(named, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise UnavailableError("cannot use the datastore postgresql://secret-host/base: its server did not answer.")

    monkeypatch.setattr(named.model.store, "history", fail)
    monkeypatch.setattr(named.gate, "scores", fail, raising=False)
    with named.client(READ, Host="denn.example") as client:
        for answer in (client.get("/v1/history"), client.post("/v1/predict", json=TEXT)):
            assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
            assert answer.json()["detail"] == "The datastore is unavailable. Try again later."
        stream = client.post("/v1/predict/stream", content=f"{json.dumps(TEXT)}\n[]\n").text
    first, second = map(json.loads, stream.splitlines())
    assert first == {"line": 1, "id": None, "error": "The datastore is unavailable. Try again later."}
    assert "Not a JSON object" in second["error"]


@pytest.mark.parametrize("kind", [BundleError, EncoderError])
def test_a_model_folder_out_of_reach_and_where_it_is(named, monkeypatch, caplog, kind):
    def fail(*_: object, **__: object) -> None:
        raise kind("/srv/secret-project/model/bundle.json is missing.")

    monkeypatch.setattr("denn.service.routes_examples.some_kept", fail)
    monkeypatch.setattr(named.gate, "scores", fail, raising=False)
    with named.client(READ, Host="denn.example") as client:
        stream = client.post("/v1/predict/stream", content=json.dumps(TEXT)).json()
        found = [client.get("/v1/examples"), client.post("/v1/predict", json=TEXT)]
    for answer in found:
        assert answer.status_code == 500 and "Retry-After" not in answer.headers  # it stays so until someone repairs it
    said = {stream["error"], *(answer.json()["detail"] for answer in found)}
    assert said == {"The model's files cannot be used. See the service log."}
    assert caplog.text.count("/srv/secret-project/model/bundle.json is missing.") == 3  # the log names it


def test_errors_behind_errors_are_told_without_their_words():
    words = "a secret text"
    try:
        try:
            raise KeyError(words)
        except KeyError as error:
            raise ValueError(words) from error
    except ValueError as error:
        record = logging.LogRecord("x", 40, "", 0, f"failed\n{words}", (), (type(error), error, None))
    line = json.loads(JsonLines().format(record))
    assert line["message"] == "failed" and line["level"] == "error"
    assert line["trace"].splitlines()[-1] == "KeyError" and "ValueError" in line["trace"] and "secret" not in str(line)


def test_request_ids(service):
    with service.client() as client:
        assert "Server" not in client.get("/health").headers  # the response must not reveal the server software
        for given in ("mine-1.2_3", "x" * 64):
            assert client.get("/health", headers={"X-Request-Id": given}).headers["X-Request-Id"] == given
        made = set()
        for given in ("", "x" * 65, "two words", "<script>", '"', "é".encode()):
            made.add(client.get("/health", headers={"X-Request-Id": given}).headers["X-Request-Id"])
        assert len(made) == 6 and all(re.fullmatch("[0-9a-f]{32}", one) for one in made)
        problem = client.get("/nothing", headers={"X-Request-Id": "mine"}).json()
        assert problem["request_id"] == "mine" and problem["instance"] == "/nothing" and problem["status"] == 404


def test_the_log_is_json_and_holds_no_texts_ids_labels_or_keys(service):
    secret = "unutterable"
    document = {"text": f"{secret} text", "labels": [f"{secret} label"], "id": f"{secret}-id"}
    with service.writer() as client:
        asked = [
            client.post("/v1/predict", json={"text": secret}),
            client.post("/v1/predict", json={"text": 5, secret: secret}),
            client.post("/v1/predict", content=f'{{"{secret}'.encode(), headers={"Content-Type": "application/json"}),
            client.post("/v1/predict/stream", content=json.dumps({"text": secret, "id": secret})),
            client.post("/v1/documents", json={"documents": [document], "source": secret}),
            client.get(f"/v1/documents/{secret}-id"),
            client.get("/v1/documents", params={"text": secret, "label": secret}),
            client.patch(f"/v1/documents/{secret}-id", json={"add": [secret * 2]}),
            client.delete(f"/v1/documents/{secret}-id"),
            client.get(f"/v1/documents/{secret}-id"),
            client.get(f"/{secret}"),
            client.get("/health", headers={"Authorization": f"Basic {secret}", "Host": secret, "Cookie": secret}),
            client.request(secret.upper(), "/health"),
        ]
    ids = [answer.headers["X-Request-Id"] for answer in asked[:-1]]
    eventually(lambda: any(ids[-1] in line for line in service.log))
    eventually(lambda: any('"Invalid HTTP' in line for line in service.log))  # it has no id
    lines = [json.loads(line) for line in service.log]
    assert secret not in "".join(service.log).lower() and service.write_key not in "".join(service.log)
    ours = {line["request_id"]: line for line in lines if line.get("request_id") in ids}
    assert [ours[one]["status"] for one in ids] == [200, 422, 422, 200, 201, 200, 200, 200, 200, 404, 404, 400]
    assert ours[ids[5]] | {"time": 0, "ms": 0} == {
        "time": 0, "level": "info", "message": "request", "request_id": ids[5], "method": "GET",
        "route": "/v1/documents/{id:id}", "status": 200, "ms": 0, "bytes": 0, "key": "teach",
    }  # fmt: skip
    assert asked[-1].status_code == 400


def test_metrics_count_by_route_and_status(service):
    def counted(client) -> dict[str, float]:
        lines = client.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}

    with service.client() as client:
        before = counted(client)
        client.post("/v1/predict/batch", json={"texts": ["goal", "match"]})
        client.get("/v1/documents/nobody-1")
        client.get("/v1/documents/nobody-2")
        client.request("TRACE", "/health")
        after = counted(client)
    grown = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)}
    for name, more in {
        'denn_requests_total{method="POST",route="/v1/predict/batch",status="200"}': 1,
        'denn_requests_total{method="GET",route="/v1/documents/{id:id}",status="404"}': 2,
        'denn_requests_total{method="other",route="/health",status="405"}': 1,
        'denn_request_seconds_count{route="/v1/predict/batch"}': 1,
        "denn_texts_total": 2,
        "denn_predictions_total": 2,
        "denn_batch_texts_count": 1,
    }.items():
        assert grown.get(name) == more, name
    assert "nobody" not in str(after) and after["denn_documents"] >= 60 and after["denn_waiting_texts"] == 0

"""Hostile and broken requests as data; run as `hostile.py URL KEY` it sends them all and prints a table in Markdown."""

import json
import random
import socket
import sys
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from urllib.parse import quote, urlsplit

SECONDS = 60.0  # seconds to wait for a response before it counts as a hang
JSON = "Content-Type: application/json"
PREDICT = "POST /v1/predict"
ADD = "POST /v1/documents"
STREAM = "POST /v1/predict/stream"
UNDO = "POST /v1/history/1/undo?confirm=true"
REMOVE = "DELETE /v1/documents/train-1"
DOCUMENT = {"text": "x", "labels": ["sport"]}


@dataclass(frozen=True)
class Case:
    """A request and its expected status; it uses the write key unless it has its own."""

    name: str
    status: int
    line: str = PREDICT  # method and path, exactly as sent
    body: bytes | str = b""
    headers: tuple[str, ...] = (JSON,)
    raw: bytes | None = None  # a complete raw request instead; HOST is replaced by the address

    def bytes(self, host: str, key: str) -> bytes:
        """Return the raw bytes of the request."""
        if self.raw is not None:
            return self.raw.replace(b"HOST", host.encode())
        body = self.body.encode() if isinstance(self.body, str) else self.body
        lines = [f"{self.line} HTTP/1.1", f"Host: {host}", *self.headers, f"Content-Length: {len(body)}"]
        if not any(line.startswith("Authorization") for line in self.headers):
            lines.append(f"Authorization: Bearer {key}")
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body


@dataclass(frozen=True)
class Answer:
    """The response."""

    status: int  # 0 if the connection was closed without a response
    kind: str = ""  # the content type
    body: bytes = b""

    @property
    def said(self) -> str:
        """Return the message of the response on one line."""
        try:
            found = json.loads(self.body)
            return str(found.get("detail") or found.get("error") or f"a response with {', '.join(found)}")
        except ValueError:
            return self.body.decode(errors="replace").partition("\n")[0]


def ask(url: str, key: str, case: Case) -> Answer:
    """Send a raw request and read the response."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), SECONDS) as connection:
        try:
            connection.sendall(case.bytes(address.netloc, key))
        except ConnectionError:  # it was rejected before all of it arrived
            pass
        answer = HTTPResponse(connection, method=case.line.partition(" ")[0])
        try:
            answer.begin()
            return Answer(answer.status, answer.headers.get("Content-Type", ""), answer.read())
        except (HTTPException, ConnectionError):
            return Answer(0)


def predicted(**options: object) -> str:
    return json.dumps({"text": "goal", **options})


def added(**document: object) -> str:
    return json.dumps({"documents": [{**DOCUMENT, **document}]})


def raw(head: str, body: bytes = b"") -> bytes:
    """Return a raw request."""
    return head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body


BODIES = (
    Case("no body", 422),
    Case("not JSON", 422, body="text=goal"),
    Case("truncated JSON", 422, body='{"text": "goal'),
    Case("two JSON values", 422, body='{"text": "a"}{"text": "b"}'),
    Case("null", 422, body="null"),
    Case("a list instead of an object", 422, body='["goal"]'),
    Case("a number instead of a text", 422, body='{"text": 5}'),
    Case("null instead of a text", 422, body='{"text": null}'),
    Case("a string instead of a number", 422, body=predicted(evidence="10")),
    Case("a string instead of a boolean", 422, body=predicted(per_label="true")),
    Case("an unknown field", 422, body=predicted(admin=True)),
    Case("`__proto__` and `constructor`", 422, body='{"text": "a", "__proto__": {"a": 1}, "constructor": 1}'),
    Case("a duplicate key (the last one counts)", 200, body='{"text": 5, "text": "goal"}'),
    Case("100,000 open brackets", 400, body="[" * 100_000),
    Case("20,000 nested objects", 400, body='{"text":' * 20_000 + "1" + "}" * 20_000),
    Case("NaN", 422, body='{"text": "a", "threshold": NaN}'),
    Case("Infinity", 422, body='{"text": "a", "threshold": -Infinity}'),
    Case("a number of 5,000 digits", 400, body='{"text": "a", "evidence": ' + "9" * 5000 + "}"),
    Case("1e400", 422, body='{"text": "a", "threshold": 1e400}'),
    Case("bytes that are not UTF-8", 400, body=b'{"text": "\xff\xfe\x80"}'),
    Case("a lone surrogate, escaped", 422, body='{"text": "\\ud800"}'),
    Case("a lone surrogate as a key", 422, body='{"text": "a", "\\udfff": 1}'),
    Case("a lone surrogate as a label", 422, body='{"text": "a", "thresholds": {"\\ud800": 0.5}}'),
    Case("NUL in a text", 200, body='{"text": "go\\u0000al"}'),
    Case("NUL byte in JSON", 422, body=b'{"text": "go\x00al"}'),
    Case("a byte order mark", 200, body=b'\xef\xbb\xbf{"text": "goal"}'),
    Case("UTF-16", 200, body='{"text": "goal"}'.encode("utf-16")),
    Case("right-to-left and zero-width characters", 200, body=predicted(text="\u202egoal\u200b\u2066\ufeff")),
    Case("a script in a text", 200, body=predicted(text="<script>alert(1)</script>")),
    Case("a text of 100,001 characters", 413, body=predicted(text="x" * 100_001)),
    Case("257 texts", 413, "POST /v1/predict/batch", json.dumps({"texts": ["x"] * 257})),
    Case("no texts", 422, "POST /v1/predict/batch", '{"texts": []}'),
    Case("a body of 9 MB", 413, body=predicted(text="x" * 9_000_000)),
    Case("300,000 empty lists", 422, body='{"text": [' + "[]," * 300_000 + "[]]}"),
    Case("a million numbers instead of texts", 422, "POST /v1/predict/batch", '{"texts": [' + "1," * 1_000_000 + "1]}"),
    Case("a million empty documents", 422, ADD, '{"documents": [' + "{}," * 1_000_000 + "{}]}"),
    Case("200,000 unknown fields", 422, body='{"text": "a", ' + ", ".join(f'"{n}": 1' for n in range(200_000)) + "}"),
    Case("200,000 invalid thresholds", 422, body=predicted(thresholds={str(number): 5 for number in range(200_000)})),
    Case("1,001 thresholds", 422, body=predicted(thresholds={f"label {number}": 0.5 for number in range(1001)})),
    Case("a gzipped body", 400, body=b"\x1f\x8b\x08\x00" + b"\x00" * 50, headers=(JSON, "Content-Encoding: gzip")),
)

VALUES = (
    Case("`evidence` below its range", 422, body=predicted(evidence=-1)),
    Case("`top_k` of 0", 422, body=predicted(top_k=0)),
    Case("`threshold` above 1", 422, body=predicted(threshold=1.0000001)),
    Case("`min_labels` of 2^64", 422, body=predicted(min_labels=2**64)),
    Case("1,001 neighbours", 422, "POST /v1/neighbours", '{"text": "a", "k": 1001}'),
    Case("a negative offset", 422, "GET /v1/documents?offset=-1"),
    Case("an offset above 2^53", 422, "GET /v1/documents?offset=9007199254740993"),
    Case("a limit that is not a number", 422, "GET /v1/labels?limit=many"),
    Case("month 13", 422, "GET /v1/documents?since=2026-13-01"),
    Case("year 1 without a time zone", 422, "GET /v1/documents?since=0001-01-01T00:00:00"),
    Case("a time after the year 9999 in UTC", 422, "GET /v1/documents?before=9999-12-31T23:59:59-14:00"),
    Case("a time of 1e300 seconds", 422, "GET /v1/documents?since=1e300"),
    Case("undo of change 0", 422, "POST /v1/history/0/undo"),
    Case("undo of a change that does not exist", 404, "POST /v1/history/9007199254740991/undo"),
    Case("undo of a 24-digit number", 422, "POST /v1/history/999999999999999999999999/undo"),
    Case("undo of everything, unconfirmed", 409, "POST /v1/history/1/undo"),
    Case("undo of everything, confirmed by a word", 422, "POST /v1/history/1/undo?confirm=surely"),
    Case("SQL in an id", 404, "GET /v1/documents/" + quote("x'; DROP TABLE documents; --")),
    Case("SQL in a filter", 200, "GET /v1/documents?label=" + quote("' OR 1=1 --") + "&text=" + quote("%' OR '1'='1")),
    Case("a thousand parameters", 200, "GET /v1/labels?" + "&".join(f"x{number}=1" for number in range(1000))),
    Case("an empty text filter", 422, "GET /v1/documents?text="),
    Case("an empty source filter", 422, "GET /v1/documents?source="),
    Case("an empty label filter", 422, "GET /v1/documents?label=sport&label="),
    Case("a filter with 101 labels", 422, "GET /v1/documents?" + "&".join(["label=x"] * 101)),
    Case("a map of a million points", 422, "GET /v1/map?limit=1000000"),
)

WRITES = (
    Case("a label of 1,001 characters", 422, ADD, added(labels=["x" * 1001])),
    Case("an empty label", 422, ADD, added(labels=[""])),
    Case("a string instead of labels", 422, ADD, added(labels="sport")),
    Case("1,001 labels", 422, ADD, added(labels=[f"label {number}" for number in range(1001)])),
    Case("a label assigned and rejected", 422, ADD, added(rejected=["music", "sport"])),
    Case("an empty rejected label", 422, ADD, added(rejected=[""])),
    Case("1,001 rejected labels", 422, ADD, added(rejected=[f"label {number}" for number in range(1001)])),
    Case("a label added and rejected", 422, "PATCH /v1/documents/train-1", '{"add": ["new"], "reject": ["new"]}'),
    Case("a lone surrogate in a document", 422, ADD, added(text="\ud800")),
    Case("a lone surrogate in an id", 422, ADD, added(id="\udc00")),
    Case("an id of 1,001 characters", 422, ADD, added(id="x" * 1001)),
    Case("a duplicate id", 422, ADD, json.dumps({"documents": [{"text": "x", "labels": [], "id": "twice"}] * 2})),
    Case(
        "one invalid document of two",
        422,
        ADD,
        '{"documents": [{"text": "x", "labels": []}, {"text": 5, "labels": []}]}',
    ),
    Case("no documents", 422, ADD, '{"documents": []}'),
    Case("a change of a document without an id", 422, "PUT /v1/documents/", '{"text": "x", "labels": []}'),
    Case("new labels, but none given", 422, "PATCH /v1/documents/train-1", "{}"),
    Case("new labels for an unknown document", 404, "PATCH /v1/documents/nobody", '{"add": ["sport"]}'),
    Case("removal of an unknown document", 404, "DELETE /v1/documents/nobody"),
    Case("removal of all documents", 405, "DELETE /v1/documents"),
    Case("a source with two lines", 422, ADD, json.dumps({"documents": [DOCUMENT], "source": "x\nalice: y"})),
    Case(
        "a source with a right-to-left override", 422, ADD, json.dumps({"documents": [DOCUMENT], "source": "\u202ex"})
    ),
    Case("a source of 201 characters", 422, f"DELETE /v1/documents/train-1?source={'x' * 201}"),
    Case("a source with terminal escape codes", 422, "POST /v1/history/1/undo?confirm=true&source=%1b%5b2J"),
)

# Pages of other sites, with the key that a browser keeps; the first comes from a browser that names no site.
SITES = (
    Case("a form from another site", 422, ADD, added(), headers=("Content-Type: text/plain",)),
    Case("a form from another site with its Origin", 403, ADD, added(), headers=(JSON, "Origin: https://evil.example")),
    Case("a form without fields that sends an undo", 403, UNDO, headers=("Origin: https://evil.example",)),
    Case("the same from a sandbox", 403, UNDO, headers=("Origin: null",)),
    Case("the same without Origin", 403, UNDO, headers=("Sec-Fetch-Site: cross-site",)),
    Case("the same from a neighbouring site", 403, UNDO, headers=("Sec-Fetch-Site: same-site",)),
    Case("the same from another port of this host", 403, UNDO, headers=("Origin: http://127.0.0.1:1",)),
    Case("a script on another site that removes a document", 403, REMOVE, headers=("Origin: http://evil.example",)),
    Case(
        "a script on another site that predicts", 403, body=predicted(), headers=(JSON, "Origin: http://evil.example")
    ),
)

STREAMS = (
    Case("lines that are not JSON", 200, STREAM, b"\xff\n[\n{}\n\n5\n"),
    Case("an id of NaN", 200, STREAM, '{"text": "a", "id": NaN}\n'),
    Case("a lone surrogate in the id of a line", 200, STREAM, '{"text": "a", "id": "\\ud800"}\n'),
    Case("20,000 empty lines", 200, STREAM, "\n" * 20_000),
    Case("a line of 50,000 brackets", 200, STREAM, "[" * 50_000),
)

HEADERS = (
    Case("no content type", 422, body=predicted(), headers=()),
    Case("another content type", 422, body=predicted(), headers=("Content-Type: application/xml",)),
    Case("an invalid content type", 422, body=predicted(), headers=("Content-Type: ;;;/=",)),
    Case("another charset (JSON is UTF-8)", 200, body=predicted(), headers=(f"{JSON}; charset=utf-7",)),
    Case("an invalid Authorization header", 401, ADD, added(), (JSON, "Authorization: Basic \xff\xfe")),
    Case(
        "an Authorization header of 10,000 characters",
        401,
        ADD,
        added(),
        (JSON, "Authorization: Bearer " + "x" * 10_000),
    ),
    Case("Basic authentication without a password", 401, ADD, added(), (JSON, "Authorization: Basic eA==")),
    Case("a request id with a script", 200, body=predicted(), headers=(JSON, 'X-Request-Id: "><script>')),
    Case("another host", 400, raw=raw("GET /health HTTP/1.1\nHost: evil.example")),
    Case("no host", 400, raw=raw("GET /health HTTP/1.1\nHosts: HOST")),
    Case("two hosts", 400, raw=raw("GET /health HTTP/1.1\nHost: HOST\nHost: evil.example")),
    Case("HTTP/0.9", 400, raw=b"GET /health\r\n\r\n"),
    Case("a Content-Length of 10 TB", 413, raw=raw(f"{PREDICT} HTTP/1.1\nHost: HOST\nContent-Length: 9999999999999")),
    Case("an upgrade to WebSocket", 200, "GET /health", headers=("Upgrade: websocket", "Connection: Upgrade")),
)

PATHS = (
    Case("`/page/../../guard.py`", 404, "GET /page/../../guard.py"),
    Case("`/page/%2e%2e/%2e%2e/guard.py`", 404, "GET /page/%2e%2e/%2e%2e/guard.py"),
    Case("`/page/..%2f..%2fguard.py`", 404, "GET /page/..%2f..%2fguard.py"),
    Case("`/page/..%5c..%5cguard.py`", 404, "GET /page/..%5c..%5cguard.py"),
    Case("`/page//etc/passwd`", 404, "GET /page//etc/passwd"),
    Case("`/page/%00`", 404, "GET /page/%00"),
    Case("a path of 50,000 characters", 404, "GET /page/" + "x" * 50_000),
    Case("`//v1//labels`", 404, "GET //v1//labels"),
    Case("`/v1/documents/%2e%2e%2fetc%2fpasswd`", 404, "GET /v1/documents/%2e%2e%2fetc%2fpasswd"),
    Case("a line break in an id", 404, "GET /v1/documents/x%0d%0aSet-Cookie:%20a=b"),
    Case("bytes that are not UTF-8 in a path", 404, "GET /v1/documents/%ff%fe"),
    Case("a script in a path", 404, "GET /%3Cscript%3Ealert(1)%3C/script%3E"),
    Case("the method TRACE", 405, "TRACE /v1/predict"),
    Case("the method PROPFIND", 405, "PROPFIND /v1/documents"),
)

# Not HTTP: the parser responds in plain text, before any of our code runs.
WIRE = (
    Case("a method that does not exist", 400, "BREW /v1/predict"),
    Case("CONNECT", 400, raw=raw("CONNECT evil.example:80 HTTP/1.1\nHost: HOST")),
    Case("100 KB of headers", 400, raw=raw("GET /health HTTP/1.1\nHost: HOST\nX: " + "x" * 100_000)),
    Case("5,000 headers", 400, raw=raw("GET /health HTTP/1.1\nHost: HOST\n" + "\n".join(["X-Many: headers"] * 5000))),
    Case("a NUL in a header", 400, raw=raw("GET /health HTTP/1.1\nHost: HOST\nX: a\0b")),
    Case("a header on two lines", 400, raw=raw("GET /health HTTP/1.1\nHost: HOST\nX: a\n b")),
    Case("a space in a path", 400, "GET /v1/documents/a b"),
    Case("unescaped bytes in a path", 400, "GET /v1/documents/\xe9"),
    Case("a Content-Length of 24 digits", 400, raw=raw(f"{PREDICT} HTTP/1.1\nHost: HOST\nContent-Length: {'9' * 24}")),
    Case("a negative Content-Length", 400, raw=raw(f"{PREDICT} HTTP/1.1\nHost: HOST\nContent-Length: -1")),
    Case("two Content-Length headers", 400, headers=("Content-Length: 4",), body=b"abcdef"),
    Case(
        "Content-Length and chunks (request smuggling)",
        400,
        headers=("Transfer-Encoding: chunked",),
        body=b"0\r\n\r\nGET / HTTP/1.1",
    ),
    Case("invalid chunks", 400, raw=raw(f"{PREDICT} HTTP/1.1\nHost: HOST\nTransfer-Encoding: chunked", b"ZZ\r\n")),
    Case("an unknown transfer encoding", 400, raw=raw(f"{PREDICT} HTTP/1.1\nHost: HOST\nTransfer-Encoding: gzip")),
    Case("HTTP/9.9", 400, raw=raw("GET /health HTTP/9.9\nHost: HOST")),
    Case("HTTP/2", 400, raw=raw("PRI * HTTP/2.0", b"SM\r\n\r\n")),
    Case("a TLS handshake", 400, raw=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)),
    Case("1,000 random bytes", 400, raw=random.Random(1).randbytes(1000)),
)

CASES = (*BODIES, *VALUES, *WRITES, *SITES, *STREAMS, *HEADERS, *PATHS, *WIRE)


def main(url: str, key: str) -> None:
    """Print a table of all requests and their outcomes."""
    print("| request | status | response |\n| --- | --- | --- |")  # noqa: T201
    for case in CASES:
        answer = ask(url, key, case)
        said = answer.said.replace("|", "\\|")
        print(f"| {case.name} | {answer.status} | {said[:120]}{'…' * (len(said) > 120)} |")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:3])

"""Keys: rights, ways to send a key, and that no key is ever shown."""

import base64
import hashlib
import hmac
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from http.client import HTTPConnection

import pytest
from inside import Inside, inside

from denn.errors import ConfigError
from denn.service.key_ring import UNKNOWN
from denn.service.keys import RIGHTS, Key, Keys, given_key, new_key
from denn.stores.copying import SOURCE

pytestmark = pytest.mark.slow  # each starts its own service


def line_of(key: str, right: str, name: str = "") -> str:
    return f"{right} sha256:{hashlib.sha256(key.encode()).hexdigest()} {name}".strip()


READ, WRITE, OTHER = "denn-read-aB3_xyz", "denn-write-Cd4-xyz", "denn-read-eF5_xyz"  # shorter than generated keys
READ_LINE = line_of(READ, "read", "catalogue")
WRITE_LINE = line_of(WRITE, "administer", "Jürgen at the desk")
TEACH = "denn-teach-gH6_xyz"
TEACH_LINE = line_of(TEACH, "teach", "the night shift")
OTHER_LINE = line_of(OTHER, "read")
TEXT = {"text": "goal match team"}

OPEN = ["/", "/page/api.js", "/health", "/ready", "/v1/session", "/openapi.json"]
READING = ["/v1/documents", "/v1/documents/train-1", "/v1/history", "/v1/labels", "/v1/model", "/v1/map", "/v1/recent",
           "/metrics", "/nothing", "/v1/projects", "/v1/refit"]  # fmt: skip
ASKING = [
    ("/v1/predict", TEXT),
    ("/v1/predict/batch", {"texts": ["goal"]}),
    ("/v1/predict/stream", TEXT),
    ("/v1/neighbours", TEXT),
    ("/v1/map/place", TEXT),
]
WRITING = [
    ("POST", "/v1/documents", {"documents": [{"text": "x", "labels": ["sport"], "id": "new"}]}),
    ("PUT", "/v1/documents/new", {"text": "x", "labels": ["sport"]}),
    ("PATCH", "/v1/documents/train-1", {"add": ["sport"]}),
    ("DELETE", "/v1/documents/train-1", None),
    ("DELETE", "/v1/documents/train-1?forget=true", None),
    ("POST", "/v1/history/1/undo", None),
]
ADMINISTERING = [("POST", "/v1/refit", None), ("GET", "/v1/keys", None)]


@pytest.fixture(scope="module")
def folder(tiny_model, tmp_path_factory):
    return shutil.copytree(tiny_model, tmp_path_factory.mktemp("keys") / "tiny")


@pytest.fixture(scope="module")
def closed(folder) -> Iterator[Inside]:
    """A service with keys of every right."""
    with inside(folder, keys=Keys.parse([OTHER_LINE, READ_LINE, TEACH_LINE, WRITE_LINE])) as running:
        yield running


@pytest.fixture(scope="module")
def bare(folder) -> Iterator[Inside]:
    """A service without keys."""
    with inside(folder) as running:
        yield running


def test_a_line_keeps_only_the_digest():
    key, line = new_key("teach", "Jürgen at the desk")
    assert key.startswith("denn-teach-") and len(key) > 50 and line == line_of(key, "teach", "Jürgen at the desk")
    assert new_key("read") != new_key("read")
    with pytest.raises(ConfigError, match="must be read, teach or administer, not 'admin'"):
        new_key("admin")
    wrong = ("two\nlines", " blank", "blank ", "expire=2026-12-31", "expires=2001-01-01", "per_minute=3 eve", "x" * 101)
    for name in wrong:  # a name like a field would make a key without a name, and perhaps an expired one
        with pytest.raises(ConfigError, match=r"A key cannot be named '.+ Expected"):
            new_key("read", name)
    for name in ("alice: bob", "\x1b[31m"):  # the history shows names before a colon, and terminals show names
        with pytest.raises(ConfigError, match="The new key has a name with"):
            new_key("read", name)


def test_fields_of_a_line():
    expires = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
    _, line = new_key("teach", "the desk", expires, 60)
    (key,) = Keys.parse([line]).known
    assert (key.name, key.right, key.expires, key.per_minute) == ("the desk", "teach", expires, 60)
    assert key.rights == ("read", "teach") and key.state() == "active" and key.why_not() == ""
    (key,) = Keys.parse([line.replace("expires=2031-01-02T03:04:05+00:00", "expires=2026-01-02")]).known
    assert key.expires == datetime(2026, 1, 2, tzinfo=UTC) and key.state() == "expired"
    assert key.why_not() == "This key expired on 2026-01-02. Ask for a new one."
    (key,) = Keys.parse([line.replace("expires", "revoked").replace("2031", "2026")]).known
    assert key.state() == "revoked" and key.why_not() == "This key was revoked on 2026-01-02. Ask for a new one."
    for wrong in ("expires=soon", "expires=2031-13-01", "per_minute=0", "per_minute=-1", "per_minute=1e9", "revoked=²"):
        with pytest.raises(ConfigError, match=f"Line 1 of the keys has an invalid {wrong.split('=')[0]}"):
            Keys.parse([f"{READ_LINE[:76]} {wrong} bob"])
    with pytest.raises(ConfigError, match="gives a field twice"):
        Keys.parse([f"{READ_LINE[:76]} per_minute=1 per_minute=2 bob"])
    with pytest.raises(ConfigError, match="Line 2 of the keys repeats an earlier key"):
        Keys.parse([READ_LINE, f"{READ_LINE[:76]} revoked=2026-01-02 bob"])


def test_an_old_write_key_may_do_everything():
    (key,) = Keys.parse(["write" + READ_LINE[4:]]).known
    assert key.right == "administer" and key.rights == ("read", "teach", "administer")


def test_lines():
    keys = Keys.parse(["", "  # a comment", f"  {READ_LINE}  ", OTHER_LINE, "\t"])
    assert keys.known == (
        Key("read", hashlib.sha256(READ.encode()).hexdigest(), "catalogue"),
        Key("read", hashlib.sha256(OTHER.encode()).hexdigest(), ""),
    )
    assert keys.guard_reading and not keys.allow_teaching and not Keys().guard_reading
    assert Keys.parse([f"{READ_LINE[:76]} revoked=2026-01-02"]).guard_reading  # reading does not become public


@pytest.mark.parametrize(
    "line",
    [READ, f"read {READ}", "read sha256:abc", "admin " + READ_LINE[5:], READ_LINE.upper(), "read", "sha256:" + "0" * 64,
     READ_LINE.replace(":", " "), READ_LINE + "x" * 100, READ_LINE.replace("sha256", "md5")],
)  # fmt: skip
def test_wrong_lines(line):
    with pytest.raises(ConfigError, match=r"Line 2 of the keys is not valid\. Expected 'RIGHT sha256:DIGEST") as error:
        Keys.parse(["# mine", line])
    assert READ not in str(error.value) and READ_LINE[12:40] not in str(error.value)  # it may be a key given by mistake


def test_no_writer_is_named_like_copies_whose_changes_are_not_counted():
    with pytest.raises(ConfigError, match=f"The new key uses the name '{SOURCE}'"):
        new_key("teach", SOURCE)
    assert new_key("read", SOURCE) and new_key("teach", f"{SOURCE} of alice")


def test_every_key_is_compared_whatever_was_given(monkeypatch):
    compared = []

    def compare(a: str, b: str) -> bool:
        compared.append(a)
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = Keys.parse([READ_LINE, WRITE_LINE, OTHER_LINE])
    given = {READ: "catalogue", OTHER: "", "wrong": None, "é\udcff": None, "": None, None: None}
    for one, name in given.items():
        compared.clear()
        key = keys.find(one)
        assert (key.name if key else None) == name
        assert compared == [key.digest for key in keys.known]


def basic(password: str, user: str = "anybody") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "api_key", "found"),
    [
        (f"Bearer {READ}", None, READ),
        (f"bearer   {READ} ", None, READ),
        (basic(READ), None, READ),
        (basic(READ, ""), None, READ),
        (basic("a:b"), None, "a:b"),
        (None, READ, READ),
        ("Bearer wrong", READ, READ),
        (f"Bearer {READ}", "", READ),
        (None, None, None),
        ("Bearer", None, None),
        ("Bearer ", None, None),
        (READ, None, None),
        (f"Digest {READ}", None, None),
        ("Basic", None, None),
        ("Basic !!!", None, None),
        ("Basic \xff\xfe", None, None),
        ("Basic " + base64.b64encode(b"\xff:\xff").decode(), None, None),
        ("Basic " + base64.b64encode(b"no colon").decode(), None, None),
        (basic(""), None, None),
    ],
)
def test_ways_to_send_a_key(authorization, api_key, found):
    assert given_key(authorization, api_key) == found


@pytest.mark.parametrize("path", OPEN)
def test_what_is_open_to_all(closed, path):
    with closed.client() as client:
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("key", [None, "wrong", READ + "x", READ[:-1], READ.upper()])
def test_without_a_key_nothing_else_is(closed, key):
    with closed.client(key) as client:
        answers = [client.get(path) for path in READING] + [client.post(path, json=body) for path, body in ASKING]
        answers += [client.request(method, path, json=body) for method, path, body in WRITING + ADMINISTERING]
        answers += [client.get("/v1/labels/")]
    for answer in answers:
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
        expected = "A key is required. Send it as 'Authorization: Bearer KEY'." if key is None else UNKNOWN
        assert answer.json()["detail"] == expected
    assert len(closed.model.store) == 60


@pytest.mark.parametrize(
    "path", ["//health", "/health/", "/page/../v1/labels", "/page/%2e%2e/v1/labels", "/page", "/v1/session/../labels"]
)
def test_no_way_around_the_keys(closed, path):
    connection = HTTPConnection("127.0.0.1", closed.port)  # which does not normalise the path
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status in (401, 404) and b"sport" not in answer.read()
    connection.close()


@pytest.mark.parametrize(
    "way", [f"Authorization: Bearer {READ}", f"X-API-Key: {READ}", f"Authorization: {basic(READ)}"]
)
def test_a_read_key_reads_and_does_not_write(closed, way):
    with closed.client(**dict([way.split(": ")])) as client:
        assert {client.get(path).status_code for path in READING} <= {200, 404}
        assert {client.post(path, json=body).status_code for path, body in ASKING} == {200}
        for method, path, body in WRITING + ADMINISTERING:
            answer = client.request(method, path, json=body)
            right = "teach" if (method, path, body) in WRITING else "administer"
            assert answer.status_code == 403
            assert (
                answer.json()["detail"] == f"The key 'catalogue' does not have the right to {right}. Use another key."
            )
    assert len(closed.model.store) == 60 and len(closed.model.store.history()) == 1


@pytest.mark.parametrize("key", [TEACH, WRITE])
def test_keys_for_teaching_and_administering_teach(closed, key):
    with closed.client(key) as client:
        assert client.get("/v1/labels").status_code == 200
        assert client.post("/v1/documents", json=WRITING[0][2]).status_code == 201
        assert client.delete("/v1/documents/new").status_code == 200


def test_only_an_administrator_sees_the_keys_and_refits(closed):
    with closed.client(TEACH) as client:
        for method, path, body in ADMINISTERING:
            answer = client.request(method, path, json=body)
            assert answer.status_code == 403 and "the right to administer" in answer.json()["detail"]
    with closed.client(WRITE) as client:
        found = client.get("/v1/keys")
    never = {"state": "active", "expires": None, "revoked": None, "per_minute": None}
    assert found.json() == {"keys": [
        {"name": "Jürgen at the desk", "right": "administer", **never},
        {"name": "catalogue", "right": "read", **never},
        {"name": "read", "right": "read", **never},
        {"name": "the night shift", "right": "teach", **never},
    ]}  # fmt: skip


def test_every_route_needs_the_right_that_its_description_names(closed):
    with closed.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    needed = {
        (method.upper(), path): one.get("x-right") for path, ways in paths.items() for method, one in ways.items()
    }
    assert {right for right in needed.values()} == {None, "read", "teach", "administer"}
    keys = {"read": READ, "teach": TEACH, "administer": WRITE}
    for one, key in {None: None, **keys}.items():
        with closed.client(key) as client:
            for (method, path), right in needed.items():
                if one == right == "administer" and method == "POST":
                    continue  # it would start a refit
                path = path.replace("{id}", "nobody").replace("{number}", "999").replace("{project_id}", "model")
                status = client.request(method, path).status_code
                enough = right is None or (one is not None and list(keys).index(one) >= list(keys).index(right))
                assert (status in (401, 403)) != enough, (method, path, one, status)


def test_writing_is_off_without_a_write_key(bare):
    with bare.client() as client:
        assert {client.get(path).status_code for path in READING} <= {200, 404}
        for key in (None, "anything", WRITE):
            for method, path, body in WRITING + ADMINISTERING:
                headers = {"X-API-Key": key} if key else {}
                answer = client.request(method, path, json=body, headers=headers)
                assert answer.status_code == 403 and answer.json()["detail"].startswith("Editing is off.")
    assert len(bare.model.store.history()) == len(bare.model.store.history(id="new")) + 1


def test_only_a_write_key_leaves_reading_open(service):
    with service.client() as client:
        assert client.get("/v1/labels").status_code == 200
        for method, path, body in WRITING:
            assert client.request(method, path, json=body).status_code == 401


@pytest.mark.parametrize(
    ("key", "may"),
    [
        (None, (False, False)),
        ("wrong", (False, False)),
        (READ, (True, False)),
        (TEACH, (True, True)),
        (WRITE, (True, True)),
    ],
)
def test_the_session_says_what_the_key_may_do(closed, bare, key, may):
    with closed.client(key) as client:
        session = client.get("/v1/session").json()
    assert (session["may_read"], session["may_write"]) == may and session["writes"] == "on"
    assert session["rights"] == {READ: ["read"], TEACH: ["read", "teach"], WRITE: [*RIGHTS]}.get(key, [])
    assert session["key"] == {READ: "catalogue", TEACH: "the night shift", WRITE: "Jürgen at the desk"}.get(key)
    with bare.client(key) as client:
        session = client.get("/v1/session").json()
    assert (session["may_read"], session["may_write"], session["writes"]) == (True, False, "off")


def test_a_key_is_in_no_answer_and_no_log(closed, caplog):
    caplog.set_level("INFO")
    answers = []
    for key in (READ, WRITE, "a-wrong-key"):
        for headers in ({"X-API-Key": key}, {"Authorization": basic(key)}, {"Authorization": f"Bearer {key}"}):
            with closed.client(**headers) as client:
                answers += [client.get(path) for path in (*OPEN, *READING)]
                answers += [client.post("/v1/predict", json={}), client.put("/v1/documents/x", json={})]
    said = "".join(answer.text + str(answer.headers) for answer in answers)
    logged = "".join(str(record.__dict__) for record in caplog.records if record.name == "denn.service")
    for secret in (READ, WRITE, "a-wrong-key", READ_LINE[12:40], WRITE_LINE[13:40], basic(READ)[6:]):
        assert secret not in said and secret not in logged
    assert "Jürgen at the desk" in logged and "catalogue" in logged  # but its owner is shown

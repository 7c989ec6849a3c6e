"""Requests from pages of other sites, with the keys that a browser keeps for this service."""

import base64
import shutil
from collections.abc import Iterator

import pytest
from inside import Inside, inside

from denn.service.keys import Keys, new_key

pytestmark = pytest.mark.slow  # each starts its own service

KEY, LINE = new_key("write", "desk")
ALLOWED = "https://catalogue.example"
BASIC = {"Authorization": "Basic " + base64.b64encode(f"denn:{KEY}".encode()).decode()}  # as a browser stores it
ASKED = [
    ("POST", "/v1/history/1/undo?confirm=true", None),
    ("POST", "/v1/documents", {"documents": [{"text": "x", "labels": []}]}),
    ("PUT", "/v1/documents/new", {"text": "x", "labels": []}),
    ("PATCH", "/v1/documents/train-1", {"add": ["music"]}),
    ("DELETE", "/v1/documents/train-1", None),
    ("POST", "/v1/predict", {"text": "goal"}),
    ("POST", "/v1/projects/model/learn", []),
    ("GET", "/v1/map?limit=10000", None),
    ("GET", "/v1/documents?text=x", None),
    ("HEAD", "/v1/labels", None),
    ("GET", "/metrics", None),
]
FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "https://tags.example.evil.example"},
    {"Origin": "https://eviltags.example"},
    {"Origin": "https://tags.example:8443"},
    {"Origin": "ftp://tags.example"},
    {"Origin": "tags.example"},
    {"Origin": f"{ALLOWED}.evil.example"},
    {"Origin": "http://catalogue.example"},  # differs from the allowed one
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "Cross-Site"},
    {"Origin": "https://tags.example", "Sec-Fetch-Site": "same-site"},
    {"Origin": "null", "Sec-Fetch-Site": "same-origin"},
]
OWN = [
    {},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "https://tags.example", "Sec-Fetch-Site": "same-origin"},  # TLS ends at a proxy
    {"Origin": "https://outside.example", "Sec-Fetch-Site": "same-origin"},  # the proxy drops the Host header
    {"Origin": "http://TAGS.example"},
    {"Origin": "https://tags.example:443"},
    {"Origin": ALLOWED},
    {"Origin": ALLOWED, "Sec-Fetch-Site": "cross-site"},
]


@pytest.fixture(scope="module")
def running(tiny_model, tmp_path_factory) -> Iterator[Inside]:
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("origin") / "model")
    with inside(folder, name="model", keys=Keys.parse([LINE]), origins=(ALLOWED,)) as running:
        yield running


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_site_changes_nothing_and_costs_nothing(running, headers):
    running.gate.batches.clear()
    with running.client(Host="tags.example", **BASIC, **headers) as client:
        for method, path, body in ASKED:
            answer = client.request(method, path, json=body)
            assert answer.status_code == 403, path
            assert method == "HEAD" or "Cross-site request not allowed" in answer.json()["detail"], path
        for path in ("/", "/page/app.js", "/docs", "/openapi.json"):  # the page may be opened from a link
            assert client.get(path).status_code == 200, path
    assert len(running.model.store.history()) == 1 and running.gate.batches == []


@pytest.mark.parametrize("headers", OWN, ids=str)
def test_the_own_page_programs_and_allowed_sites_come_through(running, headers):
    with running.client(Host="tags.example", **BASIC, **headers) as client:
        assert client.post("/v1/predict", json={"text": "goal"}).status_code == 200
        assert client.get("/v1/labels").status_code == client.get("/metrics").status_code == 200


def test_a_port_is_part_of_the_origin(running):
    with running.client(Host="localhost:8000") as client:
        for origin, status in (
            ("http://localhost:8000", 200),
            ("http://localhost:3000", 403),
            ("http://localhost", 403),
        ):
            assert client.post("/v1/predict", json={"text": "goal"}, headers={"Origin": origin}).status_code == status


def test_two_origins_are_none(running):
    with running.connect() as connection:
        lines = ["POST /v1/predict HTTP/1.1", "Host: x", "Origin: http://x", "Origin: http://x", "Content-Length: 0"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(12) == b"HTTP/1.1 403"


def test_every_site_may_be_allowed(tiny_model):
    with inside(tiny_model, origins=("*",)) as running, running.client() as client:
        for origin, status in (("https://any.example", 200), ("null", 403)):
            answer = client.post("/v1/predict", json={"text": "goal"}, headers={"Origin": origin})
            assert answer.status_code == status

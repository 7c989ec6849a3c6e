"""Every hostile or broken request gets its status, and nothing else happens; the requests are in hostile.py."""

import json
from collections import Counter

import pytest
from hostile import CASES, STREAMS, WIRE, ask


def state(client) -> tuple[object, ...]:
    """Return what must not change: the documents, their labels and the history."""
    paths = ("/v1/documents?limit=3", "/v1/history", "/v1/labels")
    answers = [client.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    return tuple(answer.json() for answer in answers)


@pytest.fixture(scope="module")
def client(service):
    with service.client() as client:
        yield client


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile(service, client, case):
    before = state(client)
    answer = ask(service.url, service.write_key, case)
    assert answer.status == case.status, answer.said
    if case in WIRE:
        assert answer.kind.startswith("text/plain")
    elif answer.status >= 400:
        problem = json.loads(answer.body)
        assert answer.kind == "application/problem+json" and problem["status"] == answer.status
        assert problem["detail"].endswith(".") and len(problem["detail"]) < 300 and problem["request_id"]
        assert "Traceback" not in str(problem) and str(service.folder) not in str(problem)
    elif case in STREAMS:
        assert [json.loads(line)["line"] for line in answer.body.splitlines()]  # all of them can be read
    else:
        json.loads(answer.body)
    assert state(client) == before


def test_there_are_enough_of_them_and_each_is_another():
    assert len(CASES) >= 45
    assert not [name for name, times in Counter(case.name for case in CASES).items() if times > 1]


def test_they_left_no_fault_in_the_log(service, client):
    client.get("/health")
    assert not [line for line in service.log if json.loads(line)["level"] == "error"]

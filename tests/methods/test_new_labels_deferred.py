"""Thresholds of later labels in a service: answers at once, estimates in the background, each label once."""

import threading
import time

import pytest
import torch

from denn.config import make_recipe
from denn.errors import StoreError, UnavailableError
from denn.methods import new_labels
from denn.methods.backlog import Backlog
from denn.methods.denn import DENN
from denn.methods.new_labels import Allowance, NewLabels
from denn.stores.embedded.store import EmbeddedStore
from denn.types import Document

PATIENCE = 20.0
FALLBACK = 0.4
NAMES = [f"label {number}" for number in range(6)]


def eventually(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)


class Plain:
    """A store whose methods a test may replace."""

    def __init__(self, store):
        self.store = store

    def __getattr__(self, name):
        return getattr(self.store, name)


@pytest.fixture
def method(tmp_path):
    """DENN with three neighbours over an empty store of two dimensions; it has no network and needs none."""
    made = DENN(make_recipe("denn", {"k": 3}).parameters)
    with EmbeddedStore.create(tmp_path / "store.sqlite", 2, ("old",)) as store:
        made.store = Plain(store)
        yield made


def put(method, degrees, labels, name):
    """Store documents by their angles, on a circle."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    documents = [Document("", tuple(labels), f"{name}{number}") for number in range(len(degrees))]
    method.store.add(documents, torch.stack([angles.cos(), angles.sin()], dim=1).float())


class Held(NewLabels):
    """Thresholds whose estimates a test can block; records which started, and whether two of one label overlapped."""

    def __init__(self, method, go_on=True):
        super().__init__(method, {"final": FALLBACK})
        self.begun, self.threads, self.at_work, self.met = [], [], set(), False
        self.gate = threading.Event()
        if go_on:
            self.gate.set()

    def _estimate(self, name):
        self.begun.append(name)
        self.threads.append(threading.current_thread().name)
        self.met |= name in self.at_work
        self.at_work.add(name)
        self.gate.wait(PATIENCE)
        self.at_work.discard(name)
        return {"final": 0.9}


@pytest.fixture
def labels(method):
    """Six labels of three documents each, whose thresholds are deferred; none may be estimated at once."""
    for number, name in enumerate(NAMES):
        put(method, [10.0 * number, 10.0 * number + 1, 10.0 * number + 2], (name,), f"{number}-")
    made = Held(method, go_on=False)
    made.defer(0.0, 0.0)
    yield made
    made.gate.set()
    made.close()


def test_an_answer_comes_at_once_and_the_estimate_later(labels):
    assert labels.of(NAMES) == dict.fromkeys(NAMES, FALLBACK)  # although the first never finishes
    assert labels.thresholds(torch.ones(1, 6), NAMES)["final"].tolist() == pytest.approx([FALLBACK] * 6)
    labels.gate.set()
    eventually(lambda: labels.of(NAMES) == dict.fromkeys(NAMES, 0.9))
    assert sorted(labels.begun) == NAMES and set(labels.threads) == {"denn-thresholds"}
    eventually(lambda: "denn-thresholds" not in {thread.name for thread in threading.enumerate()})
    assert labels.thresholds(torch.ones(1, 6), NAMES)["final"].tolist() == pytest.approx([0.9] * 6)
    assert len(labels.begun) == 6  # all from memory


def test_what_is_voted_for_most_is_estimated_first(labels):
    votes = torch.tensor([[0.1, 0.9, 0.2, 0.0, 0.3, 0.1], [0.5, 0.1, 0.2, 0.0, 0.8, 0.2]])
    labels.thresholds(votes, NAMES)
    labels.gate.set()
    eventually(lambda: len(labels.begun) == 5)
    assert labels.begun == ["label 1", "label 4", "label 0", "label 2", "label 5"]


def test_many_who_ask_at_once_have_each_label_estimated_once(labels):
    labels._allowance = Allowance(PATIENCE, 0.0)  # some estimate at once, some leave it to the background
    asking = [threading.Thread(target=labels.thresholds, args=(torch.ones(1, 6), NAMES)) for _ in range(4)]
    asking += [threading.Thread(target=labels.of, args=(NAMES,)) for _ in range(4)]
    for thread in asking:
        thread.start()
    eventually(lambda: labels.begun)
    labels.gate.set()
    for thread in asking:
        thread.join(PATIENCE)
    eventually(lambda: labels.of(NAMES) == dict.fromkeys(NAMES, 0.9))
    assert sorted(labels.begun) == NAMES and not labels.met


def test_a_prediction_estimates_itself_within_its_allowance(method):
    for number, name in enumerate(NAMES):
        put(method, [10.0 * number, 10.0 * number + 1], (name,), f"{number}-")
    labels = Held(method)
    labels.defer(1e-9, 0.0)  # the first estimate takes longer
    first = labels.thresholds(torch.tensor([[0.2, 0.9, 0.2, 0.2, 0.2, 0.2]]), NAMES)["final"]
    assert first[1] == pytest.approx(0.9) and labels.threads[0] == threading.current_thread().name
    eventually(lambda: len(labels.begun) == 6)
    assert labels.threads[1:] == ["denn-thresholds"] * 5
    labels.close()


def test_an_allowance_comes_back_with_time(monkeypatch):
    now = 100.0
    monkeypatch.setattr(new_labels.time, "monotonic", lambda: now)
    allowance = Allowance(2.0, 0.1)
    assert allowance
    allowance.spend(3.0)
    assert not allowance
    now += 9.0
    assert not allowance
    now += 2.0
    assert allowance
    now += 1000.0
    assert allowance
    allowance.spend(2.0)  # no more than that was saved
    assert not allowance


def test_a_label_is_estimated_again_when_its_documents_have_changed(method, labels):
    labels.gate.set()
    labels.of(NAMES[:1])
    eventually(lambda: labels.of(NAMES[:1])[NAMES[0]] == 0.9)
    put(method, [100.0], NAMES[:1], "more")
    assert labels.of(NAMES[:1])[NAMES[0]] == 0.9  # the last one is used until there is another
    eventually(lambda: labels.begun == NAMES[:1] * 2)


def test_labels_that_are_gone_leave_nothing_behind(method, labels):
    labels.gate.set()
    labels.of(NAMES)
    eventually(lambda: len(labels._found) == 6)
    method.store.forget([f"0-{number}" for number in range(3)])
    method.store.vacuum()
    assert labels.of(NAMES[:1]) == {NAMES[0]: FALLBACK} and labels.of(["never there"]) == {"never there": FALLBACK}
    put(method, [100.0], NAMES[1:2], "more")
    labels.of(NAMES)
    eventually(lambda: set(labels._found) == set(NAMES[1:]))
    assert len(labels._backlog) == 0


@pytest.mark.parametrize("error", [UnavailableError("away"), StoreError("a document went")])
def test_a_store_that_is_away_does_not_end_the_background(method, labels, error):
    counts, calls = method.store.label_counts, []

    def fails():
        calls.append(threading.current_thread().name)
        if calls[-1] == "denn-thresholds" and calls.count("denn-thresholds") < 4:
            raise error
        return counts()

    method.store.label_counts = fails
    labels.gate.set()
    labels.of(NAMES)
    eventually(lambda: len(labels.begun) == 3)  # the other three met the error
    eventually(lambda: labels.of(NAMES) == dict.fromkeys(NAMES, 0.9))
    assert sorted(labels.begun) == NAMES


def test_a_fault_of_our_own_does_not_end_it_either(monkeypatch):
    done, reported = [], []
    monkeypatch.setattr(threading, "excepthook", lambda fault: reported.append(fault.exc_type))

    def work(item: str) -> None:
        if item == "bad":
            raise RuntimeError
        done.append(item)

    backlog = Backlog(work, "test")
    backlog.put(["bad"])
    eventually(lambda: reported == [RuntimeError])
    backlog.put(["good"])
    eventually(lambda: done == ["good"])
    backlog.close()
    backlog.put(["after the end"])
    assert done == ["good"] and backlog._thread is None


def test_the_background_rests_as_long_as_it_worked():
    ended = []

    def work(item: str) -> None:
        time.sleep(0.1)
        ended.append(time.monotonic())

    backlog = Backlog(work, "test")
    backlog.put("ab")
    eventually(lambda: len(ended) == 2)
    assert ended[1] - ended[0] >= 0.2
    backlog.close()  # does not wait for the rest


def test_closing_waits_for_one_estimate_and_drops_the_others(labels):
    labels.of(NAMES)
    eventually(lambda: labels.begun)
    closing = threading.Thread(target=labels.close)
    closing.start()
    time.sleep(0.02)
    assert closing.is_alive()
    labels.gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive() and len(labels.begun) == 1


def test_without_deferring_nothing_starts_a_thread(method):
    put(method, [0.0, 1.0, 2.0], ("new",), "a")
    labels = Held(method)
    assert labels.thresholds(torch.ones(1, 1), ["new"])["final"].tolist() == pytest.approx([0.9])
    assert labels.threads == [threading.current_thread().name]
    labels.close()

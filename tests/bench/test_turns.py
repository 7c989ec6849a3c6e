"""Taking turns: one training run at a time, and the speed measured at its start."""

import fcntl
import threading

from denn.types import Stage
from denn_bench.turns import Turns

EMBEDDING, TRAINING, WRITING = Stage("embedding", 3), Stage("training", 10, trains=True), Stage("writing")


class Heard:
    """Progress that records all calls."""

    def __init__(self):
        self.said = []

    def start(self, stage):
        self.said.append(stage)

    def advance(self, done, **values):
        self.said.append((done, values))

    def note(self, message):
        self.said.append(message)


def is_locked(path):
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_the_lock_is_held_from_training_to_the_next_stage(tmp_path):
    path, heard, begun = tmp_path / "lock", Heard(), []
    turns = Turns(heard, path, lambda: begun.append(is_locked(path)))
    turns.start(EMBEDDING)
    assert not path.exists()
    turns.start(TRAINING)
    assert is_locked(path)
    turns.advance(4, loss=0.5)
    turns.note("half way")
    turns.start(WRITING)
    assert not is_locked(path)
    assert begun == [True]
    assert heard.said == [
        EMBEDDING,
        Stage("waiting for another run"),
        TRAINING,
        (4, {"loss": 0.5}),
        "half way",
        WRITING,
    ]


def test_a_second_training_waits_for_the_first_to_end(tmp_path):
    path, order = tmp_path / "lock", []
    first, second = (Turns(Heard(), path, lambda name=name: order.append(name)) for name in ("first", "second"))
    first.start(TRAINING)
    thread = threading.Thread(target=second.start, args=(TRAINING,))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and order == ["first"]
    first.start(WRITING)
    thread.join(60)
    assert order == ["first", "second"]
    assert first.waited < second.waited
    second.start(WRITING)


def test_what_is_timed_is_alone(tmp_path):
    path = tmp_path / "lock"
    with Turns(Heard(), path, lambda: None).alone():
        assert is_locked(path)
    assert not is_locked(path)


def test_a_training_that_fails_gives_its_turn_back(tmp_path):
    path = tmp_path / "lock"
    turns = Turns(Heard(), path, lambda: None)
    turns.start(TRAINING)
    turns.close()
    assert not is_locked(path)
    turns.close()  # again does no harm


def test_without_a_lock_the_training_begins_at_once():
    heard, begun = Heard(), []
    turns = Turns(heard, None, lambda: begun.append(True))
    turns.start(TRAINING)
    with turns.alone():
        pass
    assert heard.said == [TRAINING] and begun == [True]

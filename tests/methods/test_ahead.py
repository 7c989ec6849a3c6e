"""Batches that are prepared ahead."""

import threading
import time

import pytest

from denn.methods.ahead import work_ahead


def test_the_next_batch_is_worked_on_while_the_present_one_is_finished():
    begun: list[int] = []
    second = threading.Event()

    def work(batch: int) -> int:
        begun.append(batch)
        if batch == 2:
            second.set()
        return 10 * batch

    found = work_ahead([1, 2, 3], work)
    assert next(found) == (1, 10)
    assert second.wait(10)
    assert list(found) == [(2, 20), (3, 30)]
    assert begun == [1, 2, 3]


@pytest.mark.parametrize("ahead", [1, 2])
def test_no_more_batches_are_read_than_asked(ahead: int):
    read: list[int] = []

    def batches():
        for batch in range(10):
            read.append(batch)
            yield batch

    found = work_ahead(batches(), lambda batch: batch, ahead)
    next(found)
    assert read == list(range(ahead + 1))
    found.close()
    assert read == list(range(ahead + 1))


def test_what_fails_ahead_is_raised_at_its_batch():
    def work(batch: int) -> int:
        return 1 // batch

    found = work_ahead([1, 0], work)
    assert next(found) == (1, 1)
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("denn-ahead") and _stays(thread)]


def _stays(thread: threading.Thread) -> bool:
    end = time.monotonic() + 10
    while thread.is_alive() and time.monotonic() < end:
        thread.join(0.01)
    return thread.is_alive()

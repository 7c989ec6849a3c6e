"""Run a task on partitions, one after the other in this process; `on_ray` has the engine for a cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from denn.batch.tasks import Task, Work
from denn.errors import DennError, UnavailableError

log = logging.getLogger(__name__)

ATTEMPTS = 3  # at a partition, if an attempt fails or its worker dies
PAUSE = 1.0  # seconds before the second attempt; doubles each time


@dataclass(frozen=True)
class Done:
    """The outcome of a partition: a result, or an error."""

    number: int  # position of the partition
    result: Any = None
    count: int = 0  # texts
    error: str | None = None
    is_fatal: bool = False  # no other partition can succeed either
    deaths: int = 0  # of workers with this partition before


class Engine(Protocol):
    """Runs a task on partitions and yields the outcome of each, in any order."""

    def __call__(self, task: Task, partitions: Sequence[Any]) -> Iterator[Done]:
        """Yield the outcomes."""
        ...


def in_process(task: Task, partitions: Sequence[Any]) -> Iterator[Done]:
    """Run a task in this process."""
    with task.opened() as work:
        for number, partition in enumerate(partitions):
            yield attempt(work, number, partition)


def attempt(work: Work, number: int, partition: Any) -> Done:
    """Process a partition, and retry after errors that may be temporary; errors in the data are not."""
    for tries_left in reversed(range(ATTEMPTS)):
        try:
            result, count = work(partition)
            return Done(number, result, count)
        except DennError as error:
            if not isinstance(error, UnavailableError) and not isinstance(error.__cause__, OSError):
                return Done(number, error=str(error))
            sentence = str(error)
        except Exception as error:  # of a model, a reader or the file system; the partition fails, not the run
            log.debug("a partition failed", exc_info=True)
            sentence = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        if tries_left:
            time.sleep(PAUSE * 2 ** (ATTEMPTS - 1 - tries_left))
    return Done(number, error=sentence)

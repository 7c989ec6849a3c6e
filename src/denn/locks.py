"""Locks between processes: files that the kernel unlocks when their holder ends, for whatever reason."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[int | None]:
    """Try to lock this file without waiting, and yield its descriptor; None if another process holds the lock.

    A process that inherits the descriptor holds the lock as well.

    The holder removes the file before unlocking it. A process that opened the file before that and locks it afterwards
    holds the lock of a file without a name, which excludes nobody, so it tries again.
    """
    descriptor = _lock(path)
    if descriptor is None:
        yield None
        return
    try:
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> int | None:
    """Lock the file that has this name now and return its descriptor; None if another process holds it."""
    while True:
        with ExitStack() as unless_locked:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            unless_locked.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    unless_locked.pop_all()
                    return descriptor
            except BlockingIOError:
                return None
            except FileNotFoundError:
                pass  # the holder removed it after it was opened here

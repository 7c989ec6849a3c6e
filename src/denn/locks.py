"""Locks between processes: files that the system unlocks when their holder ends, for whatever reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout, has_fcntl


@contextmanager
def alone(path: Path) -> Iterator[tuple[int, ...] | None]:
    """Try to lock this file without waiting, and yield its descriptors; None if another process holds the lock.

    A process that inherits the descriptors holds the lock as well. On Windows, locks cannot be inherited, so there are
    none.
    """
    path.parent.stat()  # raises if it is gone; FileLock would create it
    held: list[int] = []
    lent: dict[str, Any] = {"on_acquired": held.append} if has_fcntl else {}
    lock = FileLock(path, timeout=0, thread_local=False, **lent)
    try:
        lock.acquire()
    except Timeout:
        yield None
        return
    try:
        yield tuple(held)
    finally:
        with suppress(PermissionError):  # on Windows, filelock removes it after unlocking
            path.unlink(missing_ok=True)  # a process that locks it afterwards notices and tries again
        lock.release()

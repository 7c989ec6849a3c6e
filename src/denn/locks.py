"""Locks between processes: files that the system unlocks when their holder ends, for whatever reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout, has_fcntl


@contextmanager
def alone(path: Path) -> Iterator[tuple[int, ...] | None]:
    """Try to lock this file without waiting, and yield its descriptors; None if another process holds the lock.

    A process that inherits the descriptors holds the lock as well. On Windows, locks cannot be inherited, so there are
    none. The folder of the file may be replaced by another one meanwhile.
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
            if not held or _is_at(path, held[0]):
                path.unlink(missing_ok=True)  # a process that locks it afterwards notices and tries again
        lock.release()


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False

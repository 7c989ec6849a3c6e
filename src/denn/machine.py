"""The memory of this machine, and the priority of this process."""

from __future__ import annotations

import os


def memory() -> int | None:
    """Return the bytes of memory; None if the system does not report it, as on Windows."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process or thread, if the system can."""
    if hasattr(os, "nice"):
        os.nice(niceness)

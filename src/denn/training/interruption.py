"""Ctrl-C, put off while weights and state are changed together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block, so that weights and state always belong together."""
    main = threading.current_thread() is threading.main_thread()  # others are not interrupted
    if not main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    came: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            signal.raise_signal(signal.SIGINT)

"""Progress of commands on stderr: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from denn.progress import Plain, Silent, bar, on_terminal

if TYPE_CHECKING:
    from denn.protocols import Progress

log = logging.getLogger(__name__)


@contextmanager
def watching() -> Iterator[Progress]:
    """Yield a progress display that suits stderr."""
    if not log.isEnabledFor(logging.INFO):
        yield Silent()
    elif on_terminal():
        with bar() as shown:
            yield shown
    else:
        yield Plain()

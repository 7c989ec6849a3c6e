"""Where results are written: stdout, or a file that appears when it is complete."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from denn.errors import DennError

log = logging.getLogger(__name__)


@contextmanager
def writing(path: Path | None) -> Iterator[IO[bytes]]:
    """Open stdout, or a file beside the one asked for that takes its place when all went well."""
    if path is None:
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # whoever reads has enough; Python must not try again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        try:
            yield file
        except (DennError, KeyboardInterrupt):
            log.warning(f"what was written so far is in {beside}")
            raise
    beside.replace(path)

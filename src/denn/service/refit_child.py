"""The process in which a service refits its model: `python -m denn.service.refit_child FOLDER FORCE CREATED ADDRESS`.

The process inherits the lock of the folder from the service, and writes progress and result to standard output as JSON
lines. It exits when its standard input closes, so that it never outlives the service.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TextIO, TypeAlias

from denn import bundle
from denn.errors import BundleError, ConflictError, DennError, EncoderError, NoRoomError, StoreError
from denn.machine import lower_priority
from denn.refitting import refit_locked
from denn.service.telemetry import trace
from denn.stores.address import of_model
from denn.types import Stage

NICE = 10  # lower the priority, so that requests go first
PAUSE = 0.2  # seconds between two reports of the same stage
Kind: TypeAlias = Literal["shown", "datastore", "room", "folder", "bug"]
KINDS: Sequence[
    tuple[type[Exception], Kind]
] = (  # kinds of errors; only messages of the kind "shown" are safe to show, the others may name paths
    (NoRoomError, "room"),
    (ConflictError, "shown"),
    (StoreError, "datastore"),
    (BundleError, "folder"),
    (EncoderError, "folder"),
    (OSError, "folder"),
    (DennError, "shown"),
    (Exception, "bug"),
)


class Lines:
    """Report progress as JSON lines."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._reported = 0.0

    def say(self, **facts: object) -> None:
        """Write a line."""
        print(json.dumps(facts), file=self._file, flush=True)

    def start(self, stage: Stage) -> None:
        """Report the stage that begins."""
        self.say(stage=stage.what, total=stage.total, unit=stage.unit)

    def advance(self, done: int, **values: object) -> None:
        """Report the progress of the stage, at most every PAUSE seconds."""
        if time.monotonic() - self._reported > PAUSE:
            self._reported = time.monotonic()
            self.say(done=done)

    def note(self, message: str) -> None:
        """Ignore notes, because the result contains the same facts."""

    def fail(self, error: Exception) -> None:
        """Report an error."""
        kind = kind_of(error)
        if kind == "bug":  # or out of memory; the log gets the traceback without the message, which may contain texts
            self.say(kind=kind, error=type(error).__name__, trace="".join(trace(error)))
        else:
            self.say(kind=kind, error=str(error))


def main(folder: Path, force: bool, created: str, address: str) -> None:
    """Refit the model if it is still the one that is served, and report the outcome or the error."""
    lines = started()
    try:
        check_served(folder, created, address)
        outcome = refit_locked(folder, force=force, progress=lines)
        lines.say(taken=outcome.taken, facts=outcome.facts)
    except Exception as error:  # the service reports any error of this process
        lines.fail(error)


def check_served(folder: Path, created: str, address: str) -> None:
    """Raise a ConflictError if a folder no longer contains the model that is served, with its datastore."""
    if (bundle.read_card(folder).created, str(of_model(folder))) != (created, address):
        raise ConflictError(
            "The folder now contains another model than the one served, or uses another datastore. Restart the "
            "service to use it."
        )


def started() -> Lines:
    """Prepare a process that works for the service: it ends with the service, yields to it, and reports lines."""
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    lower_priority(NICE)
    lines = Lines(os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # for anything that libraries print
    return lines


def kind_of(error: Exception) -> Kind:
    """Return the kind of an error."""
    return next(kind for kinds, kind in KINDS if isinstance(error, kinds))


def _end_with_the_service() -> None:
    while os.read(0, 1):  # returns when the service ends; sys.stdin would hold a lock at exit
        pass
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "True", *sys.argv[3:])

"""The process in which a service refits its model: `python -m denn.service.refit_child FOLDER FORCE CREATED ADDRESS`.

The service holds the lock of the folder, and lets the process inherit it. Progress and result go to standard output as
lines of JSON. The process ends when its standard input does, so that it never outlives the service, however that ends.
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
from denn.machine import step_back
from denn.refitting import refit_locked
from denn.service.telemetry import trace
from denn.stores.address import of_model
from denn.types import Stage

NICE = 10  # by which answers go before the refit
PAUSE = 0.2  # seconds between two reports of the same stage
Kind: TypeAlias = Literal["told", "datastore", "room", "folder", "fault"]
KINDS: Sequence[tuple[type[Exception], Kind]] = (  # of errors; the sentences of all but the first may name places
    (NoRoomError, "room"),
    (ConflictError, "told"),
    (StoreError, "datastore"),
    (BundleError, "folder"),
    (EncoderError, "folder"),
    (OSError, "folder"),
    (DennError, "told"),
    (Exception, "fault"),
)


class Lines:
    """Progress as lines of JSON."""

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
        """Report how far the stage is, every now and then."""
        if time.monotonic() - self._reported > PAUSE:
            self._reported = time.monotonic()
            self.say(done=done)

    def note(self, message: str) -> None:
        """Leave out what the result says as well."""


def main(folder: Path, force: bool, created: str, address: str) -> None:
    """Refit the model that was trained then and uses this datastore, and report the outcome or the error."""
    threading.Thread(target=_end_with_the_service, daemon=True).start()
    step_back(NICE)
    lines = Lines(os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever libraries print
    try:
        if (bundle.read_card(folder).created, str(of_model(folder))) != (created, address):
            raise ConflictError(
                "The folder holds another model than the one that is served, or names another datastore. Restart the "
                "service to use it."
            )
        outcome = refit_locked(folder, force=force, progress=lines)
        lines.say(taken=outcome.taken, facts=outcome.facts)
    except Exception as error:
        kind = kind_of(error)
        if kind == "fault":  # of our own, or no memory: the service's log gets the place, and no words
            lines.say(kind=kind, error=type(error).__name__, trace="".join(trace(error)))
        else:
            lines.say(kind=kind, error=str(error))


def kind_of(error: Exception) -> Kind:
    """Return of which kind an error is."""
    return next(kind for kinds, kind in KINDS if isinstance(error, kinds))


def _end_with_the_service() -> None:
    while os.read(0, 1):  # nothing comes before the service ends; sys.stdin would be locked when this process ends
        pass
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "True", *sys.argv[3:])

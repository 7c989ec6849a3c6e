"""The command line: `main` and how it ends."""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from denn.errors import DennError

if TYPE_CHECKING:
    from denn.stores.trust import UntrustedError


begun = time.monotonic()  # of the command, in which Python's own start counts
COLLECT_AFTER = 100_000  # new objects; after every 700, as Python does it, a tenth of the time of imports goes into it


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 for what the user can mend, 1 for our own faults, 130 when interrupted."""
    from denn.cli.output import drop_stdout, flush_stdout
    from denn.cli.show import complain, listen

    global begun
    begun = time.monotonic() - (time.process_time() if arguments is None else 0.0)
    if arguments is None:  # the process is ours
        gc.set_threshold(COLLECT_AFTER)
    sys.excepthook = _fault  # what is caught nowhere is our own fault, and Python then exits with 1
    listen()
    try:
        try:
            _run(arguments)
        finally:
            flush_stdout()  # a full disk is found out here, where it can be said
    except (DennError, OSError, MemoryError, RuntimeError) as error:
        sentence = mendable(error)
        if sentence is None:
            raise
        drop_stdout()
        complain(sentence)
        sys.exit(2)


def _run(arguments: Sequence[str] | None) -> None:
    """Run a command; again where a person allows the datastore that a model names."""
    from denn.cli.app import command
    from denn.stores.trust import UntrustedError

    given = sys.argv[1:] if arguments is None else arguments
    try:
        command(given)(given, prog_name="denn")
    except UntrustedError as error:
        _ask_to_trust(error)
        command(given)(given, prog_name="denn")


def _ask_to_trust(error: UntrustedError) -> None:
    """Let a person at a terminal allow the datastore that a model names; the error stands in any other case."""
    import typer

    from denn.stores.trust import trust

    what = f"The model {error.folder} uses the datastore {error.address!r}. Opening it may send your database password."
    if not sys.stdin.isatty() or not typer.confirm(f"{what}\nDo you trust this address?", err=True):
        raise error
    trust(error.address)


def mendable(error: BaseException) -> str | None:
    """Return the sentence for an error that the user can mend, None for any other."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, OSError):
        return f"{error.strerror or error}."
    if isinstance(error, DennError):
        return str(error)
    # Torch says the second, or on a CPU the third.
    said = isinstance(error, MemoryError), type(error).__name__ == "OutOfMemoryError", "allocate memory" in str(error)
    if any(said):
        return "The memory is used up. Give other parameters, such as --set batch_size=8 or --set max_length=128."
    return None


def _fault(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Say that the fault is ours, with the traceback where it was asked for."""
    from denn.cli.show import complain, is_verbose

    if is_verbose():
        traceback.print_exception(kind, error, where)
    sentence = str(error).split("\n", 1)[0] or "no more is known"
    more = "" if is_verbose() else ", with what the same command says with --verbose"
    complain(f"This is a fault of denn itself ({kind.__name__}: {sentence}); please report it{more}.")

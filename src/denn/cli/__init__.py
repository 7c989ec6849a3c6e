"""The command line: `main` and how it ends."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from denn.errors import DennError

if TYPE_CHECKING:
    from denn.stores.trust import UntrustedError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 for what the user can mend, 1 for our own faults, 130 when interrupted."""
    from denn.cli.app import command
    from denn.cli.show import complain, listen
    from denn.stores.trust import UntrustedError

    sys.excepthook = _fault  # what is caught nowhere is our own fault, and Python then exits with 1
    listen()
    try:
        try:
            command()(arguments, prog_name="denn")
        except UntrustedError as error:
            _ask_to_trust(error)
            command()(arguments, prog_name="denn")
    except (DennError, OSError, MemoryError, RuntimeError) as error:
        sentence = _mendable(error)
        if sentence is None:
            raise
        complain(sentence)
        sys.exit(2)


def _ask_to_trust(error: UntrustedError) -> None:
    """Let a person at a terminal allow the datastore that a model names; the error stands in any other case."""
    import typer

    from denn.stores.trust import trust

    what = f"The model {error.folder} uses the datastore {error.address!r}. Opening it may send your database password."
    if not sys.stdin.isatty() or not typer.confirm(f"{what}\nDo you trust this address?", err=True):
        raise error
    trust(error.address)


def _mendable(error: BaseException) -> str | None:
    """Return the sentence for an error that the user can mend, None for any other."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, DennError | OSError):
        return str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the second is torch's
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

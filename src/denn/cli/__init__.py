"""The command line: `main` and its exit codes."""

from __future__ import annotations

import gc
import io
import sys
import time
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from denn.errors import DennError

if TYPE_CHECKING:
    from denn.stores.trust import UntrustedError


begun = time.monotonic()  # start of the command, including Python's own start-up
COLLECT_AFTER = 100_000  # new objects; Python's default of 700 spends a tenth of the import time on collections


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 for success, 2 for errors a user can fix, 1 for bugs in denn, 130 when interrupted."""
    from denn.cli.output import drop_stdout, flush_stdout
    from denn.cli.show import complain, listen

    global begun
    begun = time.monotonic() - (time.process_time() if arguments is None else 0.0)
    if arguments is None:  # called as a program, not by a test
        gc.set_threshold(COLLECT_AFTER)
        _write_utf8()
    sys.excepthook = _bug  # an uncaught error is a bug in denn, and Python exits with 1
    listen()
    try:
        try:
            _run(arguments)
        finally:
            flush_stdout()  # detects a full disk while the error can still be reported
    except (DennError, OSError, MemoryError, RuntimeError) as error:
        sentence = user_message(error)
        if sentence is None:
            raise
        drop_stdout()
        complain(sentence)
        sys.exit(2)


def _write_utf8() -> None:
    """Write results in UTF-8 whatever the locale says; texts and labels may be in any language."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors=sys.stdout.errors)


def _run(arguments: Sequence[str] | None) -> None:
    """Run a command, and run it again if the user trusts the datastore that the model names."""
    from denn.cli.app import command
    from denn.stores.trust import UntrustedError

    given = sys.argv[1:] if arguments is None else arguments
    try:
        command(given)(given, prog_name="denn")
    except UntrustedError as error:
        _ask_to_trust(error)
        command(given)(given, prog_name="denn")


def _ask_to_trust(error: UntrustedError) -> None:
    """Ask at a terminal whether to trust the datastore that a model names; raise the error otherwise."""
    import typer

    from denn.stores.trust import trust

    what = f"The model {error.folder} uses the datastore {error.address!r}. Opening it may send your database password."
    if not sys.stdin.isatty() or not typer.confirm(f"{what}\nDo you trust this address?", err=True):
        raise error
    trust(error.address)


def user_message(error: BaseException) -> str | None:
    """Return the message for an error that the user can fix, or None for any other error."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, OSError):
        return f"{error.strerror or error}."
    if isinstance(error, DennError):
        return str(error)
    # Torch raises the second kind on a GPU and the third on a CPU.
    signs = isinstance(error, MemoryError), type(error).__name__ == "OutOfMemoryError", "allocate memory" in str(error)
    if any(signs):
        return "Out of memory. Try smaller batches or shorter texts: --set batch_size=8 or --set max_length=128."
    return None


def _bug(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Report a bug in denn, with the traceback if --verbose was given."""
    from denn.cli.show import complain, is_verbose

    if is_verbose():
        traceback.print_exception(kind, error, where)
    sentence = str(error).split("\n", 1)[0] or "no message"
    more = "" if is_verbose() else ", with the output of the same command and --verbose"
    complain(f"This is a bug in denn ({kind.__name__}: {sentence}). Please report it{more}.")

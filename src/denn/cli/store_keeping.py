"""`denn store`: history, disk space, copies and address of a datastore."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose
from denn.cli.store_options import LARGEST, Address, By, Yes, address_of, check_agreed, opened, whose
from denn.wording import counted

log = logging.getLogger(__name__)

SHOWN = ("number", "action", "documents", "source", "ids", "undoes", "undone", "undoable")


def history(
    model: Address,
    id: Annotated[str | None, typer.Option("--id", help="Show only changes to this document.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, max=LARGEST, help="Maximum number of changes to show; 0 shows all.")
    ] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """List changes with their time and author, newest first."""
    from denn.cli.show import console

    with opened(model, read_only=True) as store:
        changes = store.history(limit or None, id)
    if as_json:
        for change in changes:
            row = {name: getattr(change, name) for name in SHOWN}
            typer.echo(json.dumps(row | {"time": change.time.isoformat()}, ensure_ascii=False))
        return
    for change in changes:
        when = change.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        by = f" by {change.source}" if change.source else ""
        noun = "document" if change.documents == 1 else "documents"
        undone = " (undone)" if change.undone else ""
        console().print(f"{change.number:>6}  {when}  {change.action:<8} {change.documents:>7} {noun}{by}{undone}")


def undo(
    model: Address,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", min=1, max=LARGEST, help="Number of the change in `denn store history`.")
    ],
    yes: Yes = False,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Revert a change.

    The revert is recorded as a new change, so it can be undone too.
    """
    with opened(model) as store:
        touched = next((change.documents for change in store.history() if change.number == number), 0)
        check_agreed(store, touched, "revert a change to", yes=yes, look=" in `denn store history`")
        restored = store.undo(number, source=whose(by))
        log.info(f"restored {counted(restored, 'document')}; the datastore holds {len(store):,}")


def vacuum(
    model: Address,
    keep: Annotated[
        float | None,
        typer.Option("--keep", metavar="DAYS", help="Discard history older than this many days; default: keep all."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Reclaim disk space.

    Clears the space of removed and forgotten documents, and deletes unused labels.
    """
    from denn.stores.rules import CENTURY

    if keep is not None and not 0 <= keep <= CENTURY.days:  # also true for NaN
        raise typer.BadParameter(f"--keep must be a number of days from 0 to {CENTURY.days:,}, not {keep:g}")
    with opened(model) as store:
        before = store.info()["bytes"]
        store.vacuum(None if keep is None else timedelta(days=keep))
        after = store.info()["bytes"]
        log.info(f"the datastore takes {_megabytes(after)} (before: {_megabytes(before)})")


def index(model: Address, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Build the approximate search index now.

    Large datastores build it automatically.
    """
    from denn.errors import StoreError
    from denn.stores.embedded.store import EmbeddedStore

    with opened(model) as store:
        if not isinstance(store, EmbeddedStore):
            raise StoreError(f"{model} is a database, which maintains its own index. Give a datastore in a file.")
        store.build_index()
        facts = store.info()
    log.info(", ".join(f"{name} {value}" for name, value in facts.items() if name not in ("path", "bytes")))


def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Model folder or its name on the Hugging Face hub, or datastore address to copy from.",
            parser=address_of,
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="New file, or postgresql://host/database?schema=name.")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Copy a datastore to a new one, and verify the copy.

    A copy from one file to another includes the history. To or from a database, the copy starts a new history, without
    labels that were added after training and that no document has or rejects.
    """
    from denn.cli.progress import watching
    from denn.cli.show import interruptible
    from denn.stores.address import create_store, kind_of
    from denn.stores.copying import copy as copy_store
    from denn.stores.copying import copy_whole
    from denn.stores.embedded.store import EmbeddedStore

    if kind_of(target) == "memory":
        raise typer.BadParameter("memory: would not outlive this command. Give a new file or postgresql://… as DST")
    with opened(source, read_only=True) as old, watching() as progress:
        with interruptible("interrupted; the copy is incomplete"):
            if isinstance(old, EmbeddedStore) and kind_of(target) == "embedded":
                count = copy_whole(old.path, Path(target), progress)
                log.info(f"copied and verified {counted(count, 'document')} and the history")
                return
            with create_store(target, old.dimension, old.given_labels) as new, ExitStack() as unfinished:
                unfinished.callback(_discard, target)
                count = copy_store(old, new, progress)
                unfinished.pop_all()
    log.info(f"copied and verified {counted(count, 'document')}; the history was not copied")


def _discard(target: str) -> None:
    """Delete an incomplete copy, or warn if it is in a database."""
    from denn.stores.address import kind_of

    if kind_of(target) == "embedded":
        Path(target).unlink()
    else:
        log.warning(f"{target} holds an incomplete copy; drop it before you copy again")


def use(
    model: Model,
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Datastore address, or `own` for the one in the model folder.")
    ],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Switch a model to another datastore.

    The datastore must be a copy of the model's own, in a file or a database.
    """
    from denn.stores.address import use as use_store

    use_store(model, None if address == "own" else address)
    log.info(f"{model} now uses {'the datastore in its folder' if address == 'own' else address}")


def migrate(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="Address of the database: postgresql://host/database?schema=name.")
    ],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Upgrade the tables of a PostgreSQL datastore.

    Run this as the owner of the tables.
    """
    from denn.errors import StoreError
    from denn.stores.address import kind_of

    if kind_of(address) != "postgres":
        raise StoreError(
            f"{address!r} is not a postgresql:// address. Only databases need this; files are upgraded when opened."
        )
    from denn.stores.postgres.store import PostgresStore

    steps = PostgresStore.migrate(address)
    log.info(f"applied {counted(steps, 'migration')}; the tables are up to date")


def _megabytes(count: object) -> str:
    return f"{float(str(count)) / 1e6:.1f} MB"

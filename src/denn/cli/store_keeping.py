"""`denn store`: the history of a datastore, its space, its copies, and where a model looks for it."""

from __future__ import annotations

import json
import logging
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose
from denn.cli.store_options import Address, By, Yes, check_agreed, opened, whose

log = logging.getLogger(__name__)

MOST_DAYS = 36_525  # a century, which no history is older than


def history(
    model: Address,
    id: Annotated[str | None, typer.Option("--id", help="Only what touched this document.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="At most so many, the newest; 0 for all.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """List what was changed when and by whom, newest first."""
    from denn.cli.show import console

    with opened(model, read_only=True) as store:
        changes = store.history(limit or None, id)
    if as_json:
        for change in changes:
            row = {name: getattr(change, name) for name in ("number", "action", "documents", "source")}
            typer.echo(json.dumps(row | {"time": change.time.isoformat()}, ensure_ascii=False))
        return
    for change in changes:
        when = change.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        by = f" by {change.source}" if change.source else ""
        console().print(f"{change.number:>6}  {when}  {change.action:<8} {change.documents:>7} documents{by}")


def undo(
    model: Address,
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="The change's number in the history.")],
    yes: Yes = False,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Bring the documents that a change touched to where they were before it; that can be undone too."""
    with opened(model) as store:
        touched = next((change.documents for change in store.history() if change.number == number), 0)
        check_agreed(store, touched, "undo the change of", yes=yes, look=" in `denn store history`")
        log.info(f"{store.undo(number, source=whose(by))} documents are as they were; the datastore holds {len(store)}")


def vacuum(
    model: Address,
    keep: Annotated[
        float | None,
        typer.Option("--keep", metavar="DAYS", help="How long changes stay undoable; for ever unless given."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Clear what removed and forgotten documents left on the disk, and labels that no document carries any more."""
    if keep is not None and not 0 <= keep <= MOST_DAYS:  # nan is not either
        raise typer.BadParameter(f"got --keep {keep:g}, expected a number of days from 0 to {MOST_DAYS:,}")
    with opened(model) as store:
        before = store.info()["bytes"]
        store.vacuum(None if keep is None else timedelta(days=keep))
        after = store.info()["bytes"]
        log.info(f"the datastore takes {_megabytes(after)}, before {_megabytes(before)}")


def index(model: Address, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """Build the approximate index of a store in a file now, whatever its size; a large one builds it by itself."""
    from denn.errors import StoreError
    from denn.stores.embedded.store import EmbeddedStore

    with opened(model) as store:
        if not isinstance(store, EmbeddedStore):
            raise StoreError(f"got {model}, expected a store in a file; a database keeps its index by itself.")
        store.build_index()
        facts = store.info()
    log.info(", ".join(f"{name} {value}" for name, value in facts.items() if name not in ("path", "bytes")))


def copy(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model's folder, or the address of a datastore.")],
    target: Annotated[
        str, typer.Argument(metavar="DST", help="A new file, or postgresql://host/database?schema=name.")
    ],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Copy all documents of a datastore into a new one of any kind, and compare the two."""
    from denn.cli.progress import watching
    from denn.cli.show import interruptible
    from denn.stores.address import create_store
    from denn.stores.copying import copy as copy_store

    with opened(source, read_only=True) as old, create_store(target, old.dimension, old.labels) as new:
        with ExitStack() as unfinished:
            unfinished.callback(_discard, target)
            with watching() as progress, interruptible("interrupted; the copy is not whole"):
                count = copy_store(old, new, progress)
            unfinished.pop_all()
    log.info(f"copied {count} documents and compared them; the history stays with the original")


def _discard(target: str) -> None:
    """Take a copy away that is not whole, or say that it is there."""
    from denn.stores.address import kind_of

    if kind_of(target) == "embedded":
        Path(target).unlink()
    else:
        log.warning(f"what is in {target} is no whole copy; drop it before the next.")


def use(
    model: Model,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="A datastore, or `own` for the one in the folder.")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Let a model use another datastore: a copy of its own, in a file or in a database."""
    from denn.stores.address import use as use_store

    use_store(model, None if address == "own" else address)
    log.info(f"{model} uses {'the datastore in its folder' if address == 'own' else address} from now on")


def migrate(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="postgresql://host/database?schema=name")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Bring the tables of a shared datastore, made by an older version, up to date; for their owner."""
    from denn.errors import StoreError
    from denn.stores.address import kind_of

    if kind_of(address) != "postgres":
        raise StoreError(f"got {address!r}, expected postgresql://…: a file is brought up to date when it is opened.")
    from denn.stores.postgres.store import PostgresStore

    log.info(f"{PostgresStore.migrate(address)} steps were to be taken; the tables are up to date")


def _megabytes(count: object) -> str:
    return f"{float(str(count)) / 1e6:.1f} MB"

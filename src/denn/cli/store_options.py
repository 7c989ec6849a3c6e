"""Options that the `denn store` commands share: datastore, documents, author."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denn.wording import counted

if TYPE_CHECKING:
    from denn.datastore import Datastore
    from denn.types import Where, Which
    from denn.vocabulary import Vocabulary

MANY = 1000  # documents; a command asks before changing more than this many
SHARE = 0.1  # share of the datastore; a command asks before changing more
FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]

Address = Annotated[str, typer.Argument(metavar="MODEL", help="Model folder or datastore address.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Document ids.")]
IdFile = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="File of document ids, one per line.")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", help="Select documents with this label; repeat it to match any of several."),
]
Text = Annotated[str | None, typer.Option("--text", help="Select documents whose text contains this.")]
Source = Annotated[str | None, typer.Option("--source", help="Select documents last changed by this author.")]
Since = Annotated[
    datetime | None,
    typer.Option(
        formats=FORMATS,
        metavar="TIME",
        help="Select documents last changed at this time or later, such as 2026-01-31 or 2026-01-31T12:00.",
    ),
]
Before = Annotated[
    datetime | None,
    typer.Option(formats=FORMATS, metavar="TIME", help="Select documents last changed before this time."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show matching documents without changing anything.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Change many documents without asking.")]
By = Annotated[str | None, typer.Option("--by", help="Author to record in the history; default: your login name.")]


def whose(by: str | None) -> str:
    """Return the author to record in the history."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # the user has no name, as in some containers
        return ""


def chosen(
    ids: Sequence[str] | None,
    file: Path | None,
    label: Sequence[str] | None,
    text: str | None,
    source: str | None,
    since: datetime | None,
    before: datetime | None,
    *,
    everything: bool = False,
) -> list[str] | Where:
    """Return the ids or the filter given; raise if there is neither, unless `everything` is allowed."""
    from denn.types import Where

    for name, values in (("an ID", ids), ("--label", label), ("--text", [text]), ("--source", [source])):
        if "" in (values or ()):
            raise typer.BadParameter(
                f"{name} is empty. Check that your shell variables are set, give a value, or omit it"
            )
    named = list(ids or [])
    if file is not None:
        named += [line for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if line]
    described = Where(tuple(label or ()), text, source, since, before)
    if (named or file is not None) and not described.matches_everything:
        raise typer.BadParameter("give ids or filters (--label, --text, --source, --since, --before), not both")
    if named or file is not None:
        return named
    if described.matches_everything and not everything:
        raise typer.BadParameter(
            "no documents selected. Give an ID, --from FILE, --label, --text, --source, --since or --before"
        )
    return described


def vocabulary_of(model: str) -> Vocabulary:
    """Return the vocabulary of a model, or an empty one for a model without one or a datastore address."""
    from denn.bundle import read_card
    from denn.vocabulary import Vocabulary
    from denn.vocabulary_file import read_vocabulary

    folder = Path(model)
    return read_vocabulary(folder, read_card(folder).digests) if (folder / "bundle.json").is_file() else Vocabulary()


def ids_of(model: str, labels: Sequence[str] | None) -> tuple[str, ...]:
    """Return the ids of labels given by id or by name."""
    return vocabulary_of(model).ids(labels) if labels else ()


def agreed(store: Datastore, which: Which, verb: str, *, yes: bool, named: bool) -> list[str]:
    """Return the selected ids, after asking the user if there are many.

    Ids given one by one on the command line may be a large share of a small datastore, so only their number matters.
    """
    from denn.types import Where

    ids = store.select(which) if isinstance(which, Where) else list(dict.fromkeys(which))
    check_agreed(store, len(ids), verb, yes=yes, share=1.0 if named else SHARE)
    return ids


def check_agreed(
    store: Datastore, count: int, verb: str, *, yes: bool, share: float = SHARE, look: str = " first with --dry-run"
) -> None:
    """Ask before changing many documents; without a terminal, require --yes."""
    from denn.errors import StoreError

    total = len(store)
    if yes or (count <= MANY and count <= share * total):
        return
    what = f"This would {verb} {counted(count, 'document')}; the datastore holds {total:,}."
    if not sys.stdin.isatty():
        raise StoreError(f"{what} Nothing was changed. Pass --yes to proceed, or review them{look}.")
    if not typer.confirm(f"{what} Continue?", err=True):
        raise StoreError("Nothing was changed.")


@contextmanager
def opened(address: str, read_only: bool = False) -> Iterator[Datastore]:
    """Open the datastore of a model, or the one at an address."""
    from denn.cli.options import model_folder
    from denn.stores.address import open_store

    address = str(model_folder(address)) if "://" not in address else address
    if Path(address).is_dir():
        check_keeps_one(Path(address))
    with open_store(address, read_only) as store:
        yield store


def check_keeps_one(folder: Path) -> None:
    """Raise if the method of a model has no datastore."""
    from denn.bundle import read
    from denn.errors import StoreError

    if not (folder / "store").is_dir():
        method = read(folder)[0].method
        raise StoreError(f"{folder} has no datastore, because its method {method!r} does not use one.")

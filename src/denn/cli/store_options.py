"""What the commands of `denn store` share: which store, which documents, who asks."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from denn.protocols import Datastore
    from denn.types import Where, Which
    from denn.vocabulary import Vocabulary

MANY = 1000  # documents, above which a command asks before it changes them
SHARE = 0.1  # of the datastore, likewise
FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]

Address = Annotated[
    str, typer.Argument(metavar="MODEL", help="The folder of a trained model, or the address of a datastore.")
]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The documents' ids.")]
IdFile = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="A file with an id on each line.")]
Label = Annotated[list[str] | None, typer.Option("--label", help="Those with this label; of several, with any.")]
Text = Annotated[str | None, typer.Option("--text", help="Those whose text contains this.")]
Source = Annotated[str | None, typer.Option("--source", help="Those that were last changed by this source.")]
Since = Annotated[datetime | None, typer.Option(formats=FORMATS, help="Those that were last changed then or later.")]
Before = Annotated[datetime | None, typer.Option(formats=FORMATS, help="Those that were last changed earlier.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the documents that are meant, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before changing many documents.")]
By = Annotated[str | None, typer.Option("--by", help="Who the history names for this; your login name unless given.")]


def whose(by: str | None) -> str:
    """Return the name that goes into the history."""
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name, as in some containers
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
    """Return ids, or what the options describe; nothing at all is an error unless `everything` may be meant."""
    from denn.types import Where

    for name, values in (("an ID", ids), ("--label", label), ("--text", [text]), ("--source", [source])):
        if "" in (values or ()):
            raise typer.BadParameter(f"{name} is empty. Is a shell variable not set? Give a value, or leave it out")
    named = list(ids or [])
    if file is not None:
        named += [line for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if line]
    described = Where(tuple(label or ()), text, source, since, before)
    if (named or file is not None) and not described.matches_everything:
        raise typer.BadParameter("give either ids or --label, --text, --source, --since, --before, not both")
    if named or file is not None:
        return named
    if described.matches_everything and not everything:
        raise typer.BadParameter(
            "say which documents: an ID, --from FILE, --label, --text, --source, --since, --before"
        )
    return described


def vocabulary_of(model: str) -> Vocabulary:
    """Return the vocabulary of a model, an empty one if it has none or if this is the address of a datastore."""
    from denn.bundle import read_card
    from denn.vocabulary import Vocabulary
    from denn.vocabulary_file import read_vocabulary

    folder = Path(model)
    return read_vocabulary(folder, read_card(folder).digests) if (folder / "bundle.json").is_file() else Vocabulary()


def ids_of(model: str, labels: Sequence[str] | None) -> tuple[str, ...]:
    """Return the ids of labels that are given by ids or names."""
    return vocabulary_of(model).ids(labels) if labels else ()


def agreed(store: Datastore, which: Which, verb: str, *, yes: bool, named: bool) -> list[str]:
    """Return the ids that are meant, once the user agrees to change them if they are many.

    Documents that were named one by one on the command line may be a large share of a small store.
    """
    from denn.types import Where

    ids = store.select(which) if isinstance(which, Where) else list(dict.fromkeys(which))
    check_agreed(store, len(ids), verb, yes=yes, share=1.0 if named else SHARE)
    return ids


def check_agreed(
    store: Datastore, count: int, verb: str, *, yes: bool, share: float = SHARE, look: str = " first with --dry-run"
) -> None:
    """Ask on a terminal before many documents change; elsewhere --yes is required."""
    from denn.errors import StoreError

    total = len(store)
    if yes or (count <= MANY and count <= share * total):
        return
    what = f"This would {verb} {count} documents; the datastore holds {total}."
    if not sys.stdin.isatty():
        raise StoreError(f"{what} Nothing was changed: pass --yes if you mean it, or see them{look}.")
    if not typer.confirm(f"{what} Continue?", err=True):
        raise StoreError("Nothing was changed.")


@contextmanager
def opened(address: str, read_only: bool = False) -> Iterator[Datastore]:
    """Open the store of a model, or at an address."""
    from denn.cli.options import model_folder
    from denn.stores.address import open_store

    address = str(model_folder(address)) if "://" not in address else address
    if Path(address).is_dir():
        check_keeps_one(Path(address))
    with open_store(address, read_only) as store:
        yield store


def check_keeps_one(folder: Path) -> None:
    """Refuse a model whose method has no datastore."""
    from denn.bundle import read
    from denn.errors import StoreError

    if not (folder / "store").is_dir():
        method = read(folder)[0].method
        raise StoreError(f"{folder} is a model of the method {method!r}, which keeps no datastore.")

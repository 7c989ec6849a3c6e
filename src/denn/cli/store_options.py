"""Options that the `denn store` commands share: datastore, documents, author."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denn.cli.options import confirm, model_folder
from denn.wording import counted

if TYPE_CHECKING:
    from denn.datastore import Datastore
    from denn.types import Where, Which
    from denn.vocabulary import Vocabulary

LARGEST = 2**53 - 1  # the service does not accept larger numbers either
FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]


def address_of(text: str) -> str:
    """Return the address or file of a datastore, or the folder of a model, downloaded if it is named as on the hub."""
    return text if "://" in text or text.endswith(".sqlite") else str(model_folder(text))


Address = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model folder or its name on the Hugging Face hub, or datastore address.",
        parser=address_of,
    ),
]
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
        named += ids_in(file)
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


def ids_in(file: Path) -> list[str]:
    """Read document ids from a file, one per line."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file} is not encoded in UTF-8. Save it as UTF-8, with one id per line") from error
    return [line for line in text.split("\n") if line]


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
    check_agreed(store, len(ids), verb, yes=yes, named=named)
    return ids


def check_agreed(
    store: Datastore, count: int, verb: str, *, yes: bool, named: bool = False, look: str = " first with --dry-run"
) -> None:
    """Ask before changing many documents; without a terminal, require --yes."""
    from denn.stores.rules import SHARE, is_large

    total = len(store)
    if not yes and is_large(count, total, 1.0 if named else SHARE):
        what = f"This would {verb} {counted(count, 'document')}; the datastore holds {total:,}."
        confirm(what, alternative=f", or review them{look}")


@contextmanager
def opened(address: str, read_only: bool = False) -> Iterator[Datastore]:
    """Open the datastore of a model, or the one at an address."""
    from denn.stores.address import open_store

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

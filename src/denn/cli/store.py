"""`denn store`: documents into and out of a model's datastore, without training."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denn.cli.options import IdColumn, LabelsColumn, Model, Quiet, Separator, SkipBad, TextColumn, Verbose
from denn.errors import StoreError

if TYPE_CHECKING:
    import denn

log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="Change the documents that a model takes as evidence.")

BATCH = 256  # documents that become durable together
SHOWN = 10  # labels named in one sentence


@app.command()
def add(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Labelled documents.")],
    text_column: TextColumn = "text",
    labels_column: LabelsColumn = "labels",
    id_column: IdColumn = "id",
    separator: Separator = None,
    skip_bad: SkipBad = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Add documents, with labels old and new; one whose id is stored already takes its place."""
    from denn.cli.show import interruptible
    from denn.cli.sources import Reading, read_file

    given = secrets.token_hex(8)  # ids that the reader makes up start with this; the store makes better ones
    documents = read_file(file, Reading(text_column, labels_column, id_column, separator, skip_bad), part=given)
    documents = [replace(d, id=None) if str(d.id).startswith(given) else d for d in documents]
    with _opened(model) as (loaded, store), interruptible("interrupted; what was reported as added stays"):
        before, known = len(store), len(store.labels)
        for start in range(0, len(documents), BATCH):
            loaded.add(documents[start : start + BATCH])
            log.info(f"added {min(start + BATCH, len(documents))} of {len(documents)} documents")
        replaced = len(documents) - (len(store) - before)
        log.info(f"The datastore holds {len(store)} documents; {replaced} of those added replaced older ones.")
        if fresh := store.labels[known:]:
            log.info(f"New labels: {_some(fresh)}.")


@app.command()
def remove(
    model: Model,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The documents' ids.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A file with an id on each line.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Remove documents by their ids, all or none."""
    wanted = list(ids or [])
    if source is not None:
        lines = source.read_text(encoding="utf-8", errors="replace").split("\n")
        wanted += [line for line in lines if line]
    if not wanted:
        raise typer.BadParameter("give at least one ID, or --from FILE")
    with _opened(model) as (_, store):
        log.info(f"removed {store.remove(wanted)} documents; the datastore holds {len(store)}")


@app.command()
def relabel(
    model: Model,
    id: Annotated[str, typer.Argument(metavar="ID")],
    labels: Annotated[list[str], typer.Argument(metavar="LABEL...")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Give a document other labels in the place of those it has."""
    from denn.data.rows import parse_labels

    with _opened(model) as (_, store):
        known = len(store.labels)
        store.relabel(id, parse_labels(labels))
        log.info(f"{id} has the labels {', '.join(store.get([id])[0].labels)}")
        if fresh := store.labels[known:]:
            log.info(f"New labels: {_some(fresh)}.")


@app.command()
def info(
    model: Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say what the datastore holds."""
    from denn.cli.show import console

    with _opened(model) as (loaded, store):
        facts = store.info() | {"new_labels": list(store.labels[len(loaded.labels) :])}
        counts = store.label_counts()
    if as_json:
        typer.echo(json.dumps(facts | {"label_counts": counts}))
        return
    say = console().print
    say(f"{facts['documents']} documents, {facts['labels']} labels, {facts['bytes'] / 1e6:.1f} MB on the disk")
    if facts["new_labels"]:
        say(f"Labels that came after the training: {_some(facts['new_labels'])}")
    common = sorted(counts, key=lambda name: -counts[name])
    say(f"Most frequent: {_some([f'{name} ({counts[name]})' for name in common])}")


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[denn.Model, Any]]:
    """Load a model and its datastore."""
    from denn.model import load

    with load(folder) as model:
        if not hasattr(model.method, "store"):
            raise StoreError(f"{folder} is a model of the method {model.card.method!r}, which keeps no datastore.")
        yield model, model.method.store


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(islice(names, SHOWN)) + more

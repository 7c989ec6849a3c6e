"""`denn store`: documents into and out of a model's datastore, without training."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from denn.cli.options import Model, Quiet, Verbose
from denn.cli.sources import Reading, read_file, with_reading
from denn.cli.store_options import (
    Address,
    Before,
    By,
    DryRun,
    IdFile,
    Ids,
    Label,
    Since,
    Source,
    Text,
    Yes,
    agreed,
    check_keeps_one,
    chosen,
    ids_of,
    opened,
    vocabulary_of,
    whose,
)

log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="Change the documents that a model takes as evidence.")

BATCH = 256  # documents that become durable together
SHOWN = 10  # labels named in one sentence


@app.command()
@with_reading
def add(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Labelled documents.")],
    *,
    reading: Reading,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Add documents, with labels old and new; one whose id is stored already takes its place."""
    from denn.cli.show import interruptible
    from denn.model import load

    check_keeps_one(model)
    given = secrets.token_hex(8)  # ids that the reader makes up start with this; the store makes better ones
    documents = read_file(file, reading, part=given)
    documents = [replace(d, id=None) if str(d.id).startswith(given) else d for d in documents]
    with load(model) as loaded, interruptible("interrupted; what was reported as added stays"):
        store = loaded.store
        before, known = len(store), len(store.labels)
        for start in range(0, len(documents), BATCH):
            loaded.add(documents[start : start + BATCH], source=whose(by))
            log.info(f"added {min(start + BATCH, len(documents))} of {len(documents)} documents")
        replaced = len(documents) - (len(store) - before)
        log.info(f"The datastore holds {len(store)} documents; {replaced} of those added replaced older ones.")
        if fresh := store.labels[known:]:
            log.info(f"New labels: {_some(fresh)}.")
        if warning := loaded.never_given(label for document in documents for label in document.labels):
            log.warning(warning)


@app.command()
def remove(
    model: Address,
    ids: Ids = None,
    source_file: IdFile = None,
    label: Label = None,
    text: Text = None,
    source: Source = None,
    since: Since = None,
    before: Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Remove documents by their ids or by what they are like, all or none."""
    which = chosen(ids, source_file, ids_of(model, label), text, source, since, before)
    with opened(model) as store:
        if dry_run:
            _show_only(store, which)
            return
        meant = agreed(store, which, "remove", yes=yes, named=source_file is None and bool(ids))
        count = store.remove(meant, source=whose(by))
        log.info(f"removed {count} documents; the datastore holds {len(store)}")


@app.command()
def relabel(
    model: Address,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The document, or say which by options.")] = None,
    labels: Annotated[list[str] | None, typer.Argument(metavar="[LABEL]...", help="All labels it shall have.")] = None,
    give: Annotated[list[str] | None, typer.Option("--add", metavar="LABEL", help="A label to give besides.")] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", metavar="LABEL", help="A label to take away.")] = None,
    reject: Annotated[
        list[str] | None, typer.Option("--reject", metavar="LABEL", help="A label to take away and store as rejected.")
    ] = None,
    source_file: IdFile = None,
    label: Label = None,
    text: Text = None,
    source: Source = None,
    since: Since = None,
    before: Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Replace all labels, or add, remove and reject some with --add, --drop and --reject."""
    from denn.data.rows import parse_labels

    if any(not label.strip() for some in (labels, give, drop, reject) for label in some or ()):
        raise typer.BadParameter("a label is empty. Is a shell variable not set? Give a name, or leave it out")
    if not labels and not give and not drop and not reject:
        raise typer.BadParameter("give the labels after the ID, or --add, --drop or --reject LABEL")
    which = chosen(None if id is None else [id], source_file, ids_of(model, label), text, source, since, before)
    with opened(model) as store:
        if dry_run:
            _show_only(store, which)
            return
        known = len(store.labels)
        changed = store.relabel(
            agreed(store, which, "relabel", yes=yes, named=source_file is None and id is not None),
            ids_of(model, parse_labels(labels)) if labels else None,
            add=ids_of(model, parse_labels(give or [])),
            drop=ids_of(model, parse_labels(drop or [])),
            reject=ids_of(model, parse_labels(reject or [])),
            source=whose(by),
        )
        if id is not None:
            (document,) = store.get([id])
            labels_now = f"the labels {', '.join(document.labels)}" if document.labels else "no labels"
            rejected = f" and rejects {', '.join(document.rejected)}" if document.rejected else ""
            log.info(f"{id} has {labels_now}{rejected}")
        log.info(f"relabelled {changed} documents")
        if fresh := store.labels[known:]:
            log.info(f"New labels: {_some(fresh)}.")


@app.command()
def forget(
    model: Address,
    ids: Ids = None,
    source_file: IdFile = None,
    label: Label = None,
    text: Text = None,
    source: Source = None,
    since: Since = None,
    before: Before = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Remove documents for good: text, labels and vector leave the store and its history, only their ids stay known.

    Documents that the model keeps for validation count too. The space they had is overwritten by `denn store vacuum`.
    Classifier and words forget them with the next `denn refit`; the encoder stays as it is.
    """
    from denn.types import Where
    from denn.validation import forget as forget_everywhere
    from denn.validation import is_known, matching

    which = chosen(ids, source_file, ids_of(model, label), text, source, since, before)
    folder = Path(model) if (Path(model) / "bundle.json").is_file() else None
    with opened(model) as store:
        kept = sorted(matching(folder, which))
        if not isinstance(which, Where):
            which = [id for id in which if id not in kept or is_known(store, id)]
        if dry_run:
            _show_only(store, which)
            if kept:
                log.info(f"Kept for validation, and meant too: {_some(kept)}")
            return
        meant = agreed(store, which, "forget", yes=yes, named=source_file is None and bool(ids))
        count = forget_everywhere(folder, store, [*meant, *kept], source=whose(by))
        log.info(f"forgot {count} documents; the datastore holds {len(store)}")
        log.info(f"Run `denn store vacuum {model}` to clear what is left of them on the disk.")


@app.command("list")
def list_documents(
    model: Address,
    ids: Ids = None,
    source_file: IdFile = None,
    label: Label = None,
    text: Text = None,
    source: Source = None,
    since: Since = None,
    before: Before = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Print documents as JSON lines, oldest first: all, or those that are asked for."""
    which = chosen(ids, source_file, ids_of(model, label), text, source, since, before, everything=True)
    with opened(model, read_only=True) as store:
        _show_only(store, which)


@app.command()
def info(
    model: Address,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say what the datastore holds and how it is searched."""
    from denn.bundle import read_card, read_labels
    from denn.cli.show import console

    folder = Path(model)
    learnt = read_card(folder).learnt if (folder / "bundle.json").is_file() else ""
    known = read_labels(folder / learnt) if (folder / "labels.txt").is_file() else None
    with opened(model, read_only=True) as store:
        facts: dict[str, Any] = store.info()
        facts["new_labels"] = [] if known is None else [name for name in store.labels if name not in known]
        counts = store.label_counts()
    if as_json:
        typer.echo(json.dumps(facts | {"label_counts": counts}))
        return
    say, called = console().print, vocabulary_of(model).name
    say(f"{facts['documents']} documents, {facts['labels']} labels, {facts['bytes'] / 1e6:.1f} MB on the disk")
    said = {key: value for key, value in facts.items() if key not in SAID and value is not None}
    say(f"A store of the kind {facts['kind']}: " + ", ".join(f"{key} {value}" for key, value in said.items()))
    if facts["new_labels"]:
        new = _some([*map(called, facts["new_labels"])])
        say(f"Labels that came after the {'refit' if learnt else 'training'}: {new}")
    common = sorted(counts, key=lambda name: -counts[name])
    say(f"Most frequent: {_some([f'{called(name)} ({counts[name]})' for name in common])}")


SAID = ("kind", "documents", "labels", "bytes", "new_labels")


def _show_only(store: Any, which: Any) -> None:
    """Print the documents that are meant as JSON lines."""
    from denn.types import Where

    ids = store.select(which) if isinstance(which, Where) else list(which)
    for start in range(0, len(ids), BATCH):
        for document in store.get(ids[start : start + BATCH]):
            row = {"id": document.id, "labels": list(document.labels), "text": document.text}
            row |= {"rejected": list(document.rejected)} if document.rejected else {}
            typer.echo(json.dumps(row, ensure_ascii=False))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(islice(names, SHOWN)) + more

"""`denn store`: add, change and remove documents in a model's datastore, without training."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denn.cli.options import Model, Quiet, Verbose
from denn.cli.sources import Reading, read_file, with_reading
from denn.cli.store_list import show_only
from denn.cli.store_options import (
    LARGEST,
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
from denn.wording import counted

if TYPE_CHECKING:
    from denn.vocabulary import Vocabulary

log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="Manage the documents that a model uses as evidence.")

BATCH = 256  # documents per transaction
SHOWN = 10  # maximum number of names in a sentence


@app.command()
@with_reading
def add(
    model: Model,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of labelled documents.")],
    *,
    reading: Reading,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Add documents, with known or new labels.

    A document replaces the stored one with the same id.
    """
    from denn.cli.show import interruptible
    from denn.model import load

    check_keeps_one(model)
    documents = read_file(file, reading, part=None)  # the store assigns missing ids
    with load(model) as loaded, interruptible("interrupted; the documents reported as added are stored"):
        store = loaded.store
        before, known = len(store), len(store.labels)
        for start in range(0, len(documents), BATCH):
            loaded.add(documents[start : start + BATCH], source=whose(by))
            log.info(f"added {min(start + BATCH, len(documents)):,} of {counted(len(documents), 'document')}")
        replaced = len(documents) - (len(store) - before)
        log.info(
            f"The datastore holds {counted(len(store), 'document')}; {replaced:,} of the added documents replaced "
            "older versions."
        )
        _report_new(model, store.labels[known:], loaded.vocabulary)
        if warning := loaded.label_warning(label for document in documents for label in document.labels):
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
    """Remove documents by id or filter, all or none."""
    which = chosen(ids, source_file, ids_of(model, label), text, source, since, before)
    with opened(model) as store:
        if dry_run:
            show_only(store, which, vocabulary_of(model))
            return
        selected = agreed(store, which, "remove", yes=yes, named=source_file is None and bool(ids))
        count = store.remove(selected, source=whose(by))
        log.info(f"removed {counted(count, 'document')}; the datastore holds {len(store):,}")


@app.command()
def relabel(
    model: Address,
    id: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Document to relabel; or select documents with a filter.")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Argument(metavar="[LABEL]...", help="New labels; they replace all current ones.")
    ] = None,
    give: Annotated[list[str] | None, typer.Option("--add", metavar="LABEL", help="Label to add; repeatable.")] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="LABEL", help="Label to remove; repeatable.")
    ] = None,
    reject: Annotated[
        list[str] | None,
        typer.Option("--reject", metavar="LABEL", help="Label to remove and record as rejected; repeatable."),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Record that the labels are right, so that audits skip the documents.")
    ] = False,
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
    """Change the labels of documents.

    Replaces all labels, or adds, removes and rejects some with --add, --drop and --reject. `denn audit` skips documents
    whose labels were confirmed with --confirm until they change again.
    """
    from denn.data.rows import parse_labels

    if any(not label.strip() for some in (labels, give, drop, reject) for label in some or ()):
        raise typer.BadParameter("a label is empty. Check that your shell variables are set, give a label, or omit it")
    if not (labels or give or drop or reject or confirm):
        raise typer.BadParameter(
            "no labels given. Give them after the ID, or use --add, --drop or --reject LABEL, or --confirm"
        )
    which = chosen(None if id is None else [id], source_file, ids_of(model, label), text, source, since, before)
    vocabulary = vocabulary_of(model)
    with opened(model) as store:
        if dry_run:
            show_only(store, which, vocabulary)
            return
        known = len(store.labels)
        changed = store.relabel(
            agreed(store, which, "relabel", yes=yes, named=source_file is None and id is not None),
            vocabulary.ids(parse_labels(labels)) if labels else None,
            add=vocabulary.ids(parse_labels(give or [])),
            drop=vocabulary.ids(parse_labels(drop or [])),
            reject=vocabulary.ids(parse_labels(reject or [])),
            confirm=confirm,
            source=whose(by),
        )
        if id is not None:
            (document,) = store.get([id])
            now, rejects = (", ".join(map(vocabulary.name, some)) for some in (document.labels, document.rejected))
            labels_now = f"the labels {now}" if now else "no labels"
            rejected = f"; rejected: {rejects}" if rejects else ""
            log.info(f"{id} has {labels_now}{rejected}")
        log.info(f"{'confirmed' if confirm else 'relabelled'} {counted(changed, 'document')}")
        _report_new(Path(model), store.labels[known:], vocabulary)


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
    """Erase documents from the datastore and its history.

    Deletes texts, labels and embeddings, including those of the model's validation documents, and keeps only the ids.
    `denn store vacuum` overwrites their space on disk. The next `denn refit` removes them from the classifier and the
    words; the encoder does not change.
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
            show_only(store, which, vocabulary_of(model))
            if kept:
                log.info(f"Matching validation documents: {_some(kept)}")
            return
        selected = agreed(store, which, "forget", yes=yes, named=source_file is None and bool(ids))
        count = forget_everywhere(folder, store, [*selected, *kept], source=whose(by))
        log.info(f"forgot {counted(count, 'document')}; the datastore holds {len(store):,}")
        log.info(f"Run `denn store vacuum {model}` to overwrite their space on disk.")
        if folder is not None and (old := folder / "before-upgrade").exists():
            log.warning(f"{old} may still contain them. Delete this folder if the upgrade need not be undone.")


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
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="Select documents that have no labels and reject none.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=LARGEST, metavar="N", help="Maximum number of documents to print; default: all."),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Print all or selected documents as JSON lines, oldest first."""
    from dataclasses import replace

    which = chosen(ids, source_file, ids_of(model, label), text, source, since, before, everything=True)
    if unlabelled and isinstance(which, list):
        raise typer.BadParameter("give ids or filters (--unlabelled), not both")
    if not isinstance(which, list):
        which = replace(which, unlabelled=unlabelled)
    with opened(model, read_only=True) as store:
        show_only(store, which, vocabulary_of(model), limit)


@app.command()
def info(
    model: Address,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show the contents and the search settings of the datastore."""
    from denn.bundle import read_card, read_labels
    from denn.cli.show import console

    folder = Path(model)
    learnt = read_card(folder).learnt if (folder / "bundle.json").is_file() else ""
    known = read_labels(folder / learnt) if (folder / "labels.txt").is_file() else None
    with opened(model, read_only=True) as store:
        facts: dict[str, Any] = store.info()
        counts = store.label_counts()
        facts["new_labels"] = [] if known is None else [name for name in counts if counts[name] and name not in known]
    if as_json:
        typer.echo(json.dumps(facts | {"label_counts": counts}))
        return
    say, called = console().print, vocabulary_of(model).name
    documents, labels = counted(facts["documents"], "document"), counted(facts["labels"], "label")
    say(f"{documents}, {labels}, {facts['bytes'] / 1e6:.1f} MB on disk")
    others = {key: value for key, value in facts.items() if key not in LISTED and value is not None}
    say(f"Kind of datastore: {facts['kind']}; " + ", ".join(f"{key} {value}" for key, value in others.items()))
    if facts["new_labels"]:
        new = _some([*map(called, facts["new_labels"])])
        say(f"Labels added since the {'refit' if learnt else 'training'}: {new}")
    common = sorted(counts, key=lambda name: -counts[name])
    say(f"Most frequent labels: {_some([f'{called(name)} ({counts[name]})' for name in common])}")


LISTED = ("kind", "documents", "labels", "bytes", "new_labels")


def _report_new(folder: Path, labels: Sequence[str], vocabulary: Vocabulary) -> None:
    """Report labels that are new in the datastore, and warn of those that are not in the vocabulary."""
    from denn.bundle import read_labels
    from denn.registry import did_you_mean

    if labels:
        log.info(f"New labels: {_some([*map(vocabulary.name, labels)])}.")
    if not vocabulary or not all(label in vocabulary for label in read_labels(folder)):
        return  # a vocabulary that only renames some labels says nothing about others
    if missing := [label for label in labels if label not in vocabulary]:
        hint = did_you_mean(missing[0], (entry.name for entry in vocabulary)) if len(missing) == 1 else ""
        log.warning(f"not in the vocabulary, added without a name: {_some(missing)}.{hint}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(islice(names, SHOWN)) + more

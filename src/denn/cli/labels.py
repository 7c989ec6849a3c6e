"""`denn labels`: rename and merge labels."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose
from denn.cli.store_options import By, Yes, check_agreed, whose
from denn.wording import counted

log = logging.getLogger(__name__)
app = typer.Typer(help="Rename and merge labels.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def rename(
    model: Model,
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Label to rename, by id or name.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="New name.")],
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Give a label another name.

    Predictions do not change. The label keeps its id, so documents, files and other programs that use it keep working;
    tables and pages show the new name, and JSON has it in `names`.
    """
    from denn.model import load

    with load(model) as loaded:
        id = loaded.vocabulary.id(label)
        before = loaded.vocabulary.name(id)
        loaded.rename_label(label, name)
        documents = loaded.label_counts().get(id, 0)
    log.info(f"renamed {before} to {name} ({counted(documents, 'document')})")


@app.command()
def merge(
    model: Model,
    labels: Annotated[list[str], typer.Argument(metavar="LABEL...", help="Labels to merge, by id or name.")],
    into: Annotated[str, typer.Option("--into", metavar="LABEL", help="Label that replaces them.")],
    yes: Yes = False,
    by: By = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Merge labels into another one.

    Their documents get the other label instead, as one change that `denn store undo` reverts. Until a refit completes
    the merge, the other label gets the highest of their scores.
    """
    from denn.model import load
    from denn.types import Where

    with load(model) as loaded:
        where = Where(labels=loaded.vocabulary.ids(labels))
        check_agreed(loaded.store, len(loaded.store.select(where)), "relabel", yes=yes, look=" with `denn store list`")
        changed = loaded.merge_labels(labels, into, source=whose(by))
        kept = loaded.vocabulary.name(loaded.vocabulary.id(into))
    log.info(f"merged {', '.join(labels)} into {kept}: {counted(changed, 'document')} changed")
    log.info(f"Run `denn refit {model}` to complete the merge.")

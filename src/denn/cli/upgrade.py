"""`denn upgrade`: bring a model to the formats of this version, or back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose

if TYPE_CHECKING:
    from denn.upgrading import Formats

log = logging.getLogger(__name__)


def upgrade(
    model: Model,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would change without changing anything.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Undo the last upgrade.")] = False,
    discard_changes: Annotated[
        bool, typer.Option("--discard-changes", help="With --undo: discard datastore changes since the upgrade.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Upgrade a model from an earlier version of denn.

    Models from earlier versions also work without this. The upgrade keeps what it replaces, so that it can be undone.
    Upgrade a datastore in PostgreSQL with `denn store migrate`.
    """
    from denn import upgrading
    from denn.cli.progress import watching

    if undo:
        if dry_run:
            raise typer.BadParameter("--undo cannot be combined with --dry-run")
        log.info(f"{model} is back at {_named(upgrading.undo(model, discard=discard_changes))}")
        return
    if discard_changes:
        raise typer.BadParameter("--discard-changes needs --undo")
    if dry_run:
        found = upgrading.plan(model)
    else:
        with watching() as progress:
            found = upgrading.upgrade(model, progress)
    if not found.steps:
        log.info(f"{model} is up to date: {_named(found.after)}")
        return
    log.info(f"found {_named(found.before)}; " + ("an upgrade would change:" if dry_run else "upgraded:"))
    for step in found.steps:
        log.info(f"  {step}")
    if not dry_run:
        log.info(f"{Path(model) / upgrading.KEPT} contains what was replaced. Undo with `denn upgrade {model} --undo`.")


def _named(formats: Formats) -> str:
    return f"bundle format {formats.bundle}" + (f" and datastore format {formats.store}" if formats.store else "")

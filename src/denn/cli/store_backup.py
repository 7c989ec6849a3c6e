"""`denn store`: back up, restore and check a datastore."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import Quiet, Verbose, confirm
from denn.cli.store_options import Address, address_of
from denn.wording import counted

log = logging.getLogger(__name__)


def backup(
    model: Address,
    target: Annotated[Path, typer.Argument(metavar="DEST", help="New folder for the backup.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing backup.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Back up a datastore with its history, even while others use it.

    The backup is a checked snapshot of one moment. Back up a PostgreSQL datastore with pg_dump instead.
    """
    from denn.backups import back_up
    from denn.cli.progress import watching
    from denn.cli.show import interruptible

    with watching() as progress, interruptible("interrupted; no backup was written"):
        made = back_up(model, target, progress, overwrite=replace)
    log.info(f"backed up and checked {counted(made.documents, 'document')}, up to change {made.change}, in {target}")


def restore(
    model: Address,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of a backup.")],
    with_forgotten: Annotated[
        bool, typer.Option("--with-forgotten", help="Also bring back documents that were forgotten since the backup.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Replace the datastore without asking.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Replace a datastore with a backup.

    Changes since the backup are lost. Stop services that use the datastore first.
    """
    from denn.backup_checks import read_manifest
    from denn.backups import restore as restore_backup
    from denn.cli.progress import watching
    from denn.cli.show import interruptible

    found = read_manifest(source)
    what = f"the backup of {found.created} ({counted(found.documents, 'document')}, up to change {found.change})"
    if not yes:
        confirm(f"This would replace the datastore of {model} with {what}; later changes would be lost.")
    with watching() as progress, interruptible("interrupted; the datastore was not changed"):
        _, again = restore_backup(model, source, progress, with_forgotten=with_forgotten)
    log.info(f"restored {what}")
    if again:
        log.info(f"{counted(again, 'document')} forgotten since then stayed forgotten")


def check(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Model folder or its name on the Hugging Face hub, datastore address, or folder of a backup.",
            parser=address_of,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Check a model with its datastore, or a backup, for damage.

    Reads everything: the model's files, and the structure, documents, vectors, history and index of its datastore.
    Exits with code 2 if anything is damaged.
    """
    from denn.backup_checks import check as check_all
    from denn.cli.progress import watching
    from denn.cli.show import complain

    with watching() as progress:
        found = check_all(model, progress)
    if as_json:
        typer.echo(json.dumps({"ok": not found.problems, **found.facts, "problems": found.problems}))
    else:
        for problem in found.problems:
            complain(problem)
        if not found.problems:
            facts = ", ".join(f"{name} {value}" for name, value in found.facts.items())
            is_model = (Path(model) / "bundle.json").is_file()
            what = "The backup" if "backup" in found.facts else "The model" if is_model else "The datastore at"
            typer.echo(f"{what} {model} is intact: {facts or 'it has no datastore'}")
    if found.problems:
        raise typer.Exit(2)

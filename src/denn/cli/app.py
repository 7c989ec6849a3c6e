"""All commands of `denn`. Each imports what it needs when it runs, so that --help is fast."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from denn import __version__
from denn.cli import (
    audit,
    data,
    embed,
    evaluate,
    keys,
    labels,
    predict,
    push,
    queue,
    refit,
    report,
    serve,
    store,
    store_backup,
    store_keeping,
    train,
    upgrade,
)
from denn.cli.options import Quiet, Replace, Seed, Verbose, duration
from denn.errors import ConfigError
from denn.registry import COMMANDS, lookup

log = logging.getLogger(__name__)
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def command(arguments: Sequence[str]) -> Any:
    """Return the command group; other packages are searched for commands only if the name is not one of denn's own."""
    group: Any = typer.main.get_command(app)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    if asked not in group.commands:
        for name, made in _added(asked).items():
            group.commands.setdefault(name, made)
    return group


def _added(asked: str | None) -> Mapping[str, Any]:
    """Return the commands of other packages by name; raise if the requested one cannot be imported."""
    added = typer.Typer(rich_markup_mode=None)
    for name in COMMANDS:
        try:
            added.add_typer(lookup(COMMANDS, name, "command"), name=name)
        except ConfigError as error:
            if name == asked:
                raise
            log.warning(str(error))
    return typer.main.get_group(added).commands if added.registered_groups else {}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"denn {__version__}")
        raise typer.Exit


@app.callback()
def denn(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tag documents with multiple labels, and show the evidence for each label."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the model and all results of the demo.")] = Path("demo"),
    time_budget: Annotated[str, typer.Option(metavar="TIME", help="Training time, such as 90s, 5m or 1h30m.")] = "4m",
    documents: Annotated[int, typer.Option(min=100, help="Maximum number of packages to train on.")] = 3000,
    serve_it: Annotated[
        bool,
        typer.Option(
            "--serve", help="Serve the model afterwards with editing enabled; skip training if it already exists."
        ),
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --serve.")] = 8000,
    seed: Seed = None,
    replace: Replace = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train on Debian's packages and suggest missing tags."""
    from denn.cli.demo import run
    from denn.cli.show import is_quiet

    if not (serve_it and (out / "model" / "bundle.json").exists()):
        budget = duration(time_budget)
        run(out, budget=budget, documents=documents, seed=seed or 0, replace=replace, quiet=is_quiet())
    if serve_it:
        serve.serve(out / "model", port=port, teach=True, log="none")


app.command()(train.train)
app.command()(refit.refit)
app.command()(evaluate.evaluate)
app.command()(predict.predict)
app.command()(embed.embed)
app.command()(queue.queue)
app.command()(audit.audit)
app.command()(report.report)
app.command()(serve.serve)
app.command()(push.push)
app.command()(upgrade.upgrade)
for keeping in (
    store_keeping.history,
    store_keeping.undo,
    store_keeping.vacuum,
    store_keeping.index,
    store_keeping.copy,
    store_keeping.use,
    store_keeping.migrate,
    store_backup.backup,
    store_backup.restore,
    store_backup.check,
):
    store.app.command()(keeping)
app.add_typer(store.app, name="store")
app.add_typer(labels.app, name="labels")
app.add_typer(keys.app, name="keys")
app.add_typer(data.app, name="data")

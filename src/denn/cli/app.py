"""All commands of `denn`, wired; each imports what it needs when it runs, so that help comes at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from denn import __version__
from denn.cli import audit, data, evaluate, predict, push, queue, refit, report, serve, store, store_keeping, train
from denn.cli.options import Quiet, Replace, Seed, Verbose, duration
from denn.errors import ConfigError
from denn.registry import COMMANDS, lookup

log = logging.getLogger(__name__)
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def command(arguments: Sequence[str]) -> Any:
    """Return what `main` calls; other packages are asked for their commands unless one of denn's own is meant."""
    group: Any = typer.main.get_command(app)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    if asked not in group.commands:
        for name, made in _added(asked).items():
            group.commands.setdefault(name, made)
    return group


def _added(asked: str | None) -> Mapping[str, Any]:
    """Return the commands of other packages by name; one that cannot be imported is an error if it is asked for."""
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
        bool, typer.Option("--version", help="Say the version and exit.", callback=_version, is_eager=True)
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Tag documents with several labels each, and show the documents that speak for them."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for everything the demo makes.")] = Path("demo"),
    time_budget: Annotated[str, typer.Option(metavar="TIME", help="For the training: 90s, 5m, 1h30m.")] = "4m",
    documents: Annotated[int, typer.Option(min=100, help="How many packages to learn from, at most.")] = 3000,
    serve_it: Annotated[
        bool, typer.Option("--serve", help="Then serve the model, with writing on; at once where it is there.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="For --serve.")] = 8000,
    seed: Seed = 0,
    replace: Replace = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Learn Debian's packages and suggest tags for those without."""
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
app.command()(queue.queue)
app.command()(audit.audit)
app.command()(report.report)
app.command()(serve.serve)
app.command()(push.push)
for keeping in (
    store_keeping.history,
    store_keeping.undo,
    store_keeping.vacuum,
    store_keeping.index,
    store_keeping.copy,
    store_keeping.use,
    store_keeping.migrate,
):
    store.app.command()(keeping)
app.add_typer(store.app, name="store")
app.add_typer(serve.keys, name="keys")
app.add_typer(data.app, name="data")

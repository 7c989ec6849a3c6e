"""`denn data`: the corpora that are known by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import DataDir, Quiet, Verbose

log = logging.getLogger(__name__)
app = typer.Typer(no_args_is_help=True, help="List and fetch the corpora known by name.")


@app.command("list")
def show_list(data_dir: DataDir = None, quiet: Quiet = False, verbose: Verbose = False) -> None:
    """List the known corpora, their sizes, and where they are or come from."""
    from denn.cli.show import console, table
    from denn.cli.sources import data_folder
    from denn.data.known import KNOWN
    from denn.registry import CORPORA

    folder = data_folder(data_dir)
    rows = []
    for name in CORPORA:
        known = KNOWN.get(name)
        sizes = (known.train, known.valid, known.test, known.labels) if known else ()
        numbers = [f"{size:,}" if size else "-" for size in sizes] or ["?"] * 4
        where = "here" if (folder / name).is_dir() else known.get if known else ""
        rows.append([name, *numbers, where])
    table(["name", "train", "valid", "test", "labels", "where"], rows, words=(0, 5))
    say = console().print
    say("valid -: a tenth of train is split off.")
    say(f"Each is looked for in a folder of its name in {folder} (--data-dir or DENN_DATA).")


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `denn data list`.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write it; NAME.jsonl here.")] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write a corpus that can be fetched as one file of JSON lines."""
    from denn.cli.output import writing
    from denn.cli.sources import data_folder, files_of
    from denn.data.debian import load_debian
    from denn.errors import DataError
    from denn.registry import CORPORA, lookup

    lookup(CORPORA, name, "corpus")
    folder = data_folder(data_dir) / name
    if name != "debian":
        raise DataError(f"{name} cannot be fetched by denn. Put {files_of(name)} into {folder}.")
    tagged, untagged = load_debian(folder)
    path = out or Path(f"{name}.jsonl")
    with writing(path) as file:
        for document in tagged:
            row = {"id": document.id, "text": document.text, "labels": document.labels}
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    log.info(f"{path} has {len(tagged)} packages with tags; {len(untagged)} others have none.")
    log.info(f"Next: denn train {path} --out model --time-budget 5m")

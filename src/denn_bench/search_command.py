"""`denn bench search`: try combinations of settings on validation."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import DataDir, Quiet, Verbose, finite

log = logging.getLogger("denn.bench")  # below the logger that the command line shows


def search(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="Name from `denn data list`.")],
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a recipe file, without .toml.")],
    choices: Annotated[
        list[str], typer.Option("--try", metavar="KEY=VALUE,VALUE", help="Values to try; repeat for more parameters.")
    ],
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of every combination.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0.001, max=1, callback=finite, help="Share of the training documents.")
    ] = 1.0,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Output file, one JSON line per combination.")] = Path(
        "results/search.jsonl"
    ),
    recipes_dir: Annotated[
        Path, typer.Option("--recipes", metavar="DIR", help="Folder with <corpus>/<recipe>.toml files.")
    ] = Path("recipes"),
    work: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for unfinished training runs; default: the user's cache.")
    ] = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train every combination of some settings of a recipe, and print their scores on validation, best first.

    The test split is never scored. Combinations in the output file are skipped: run the same command again to resume.
    """
    from denn.cli.output import check_file
    from denn.cli.progress import watching
    from denn.cli.sources import Reading, data_folder, open_corpus
    from denn.config import check_seed, parse_settings
    from denn.errors import ConfigError, DataError
    from denn_bench.run import digest, on_share, plan, take_share
    from denn_bench.search import attempt, combinations, known, table

    check_seed(seed)
    wanted = {}
    for key, values in ((one.partition("=")[0], one.partition("=")[2]) for one in choices):
        if not key or not values:
            raise ConfigError(f"Got --try {key!r}, expected a parameter and its values, such as alpha=0.01,0.1.")
        wanted[key] = [parse_settings([f"{key}={value}"])[key] for value in values.split(",")]
    check_file(out, "--out", make_folder=True)
    given, tried = parse_settings(settings or []), combinations(wanted)
    runs = [plan(recipes_dir, [corpus], [recipe], [seed], given | some)[0] for some in tried]
    documents = take_share(open_corpus(corpus, data_dir, Reading()), share)
    if not documents.valid:
        raise DataError(f"The corpus {corpus} has no validation split to choose settings on.")
    checksum, rows = digest(documents), []
    for number, (run, some) in enumerate(zip(runs, tried, strict=True)):
        run = replace(on_share(run, share), recipe=recipe)
        row = known(out, run, some, checksum)
        if row is None:
            with watching() as progress:
                folder = (work or data_folder(None) / "bench") / f"search-{number}"
                row = attempt(run, some, documents, checksum, out, folder, progress)
        shown = ", ".join(f"{name} = {value}" for name, value in some.items())
        log.info(f"{shown}: micro-F1 {100 * row['valid_micro_f1']:.2f} on validation")
        rows.append(row)
    typer.echo(table(rows))

"""`denn bench`: run experiments from recipes, and render tables and figures from their results."""

from __future__ import annotations

import logging
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import DataDir, Quiet, Verbose, finite
from denn.config import check_seed
from denn_bench.peers.command import app as peers
from denn_bench.search_command import search

log = logging.getLogger("denn.bench")  # below the logger that the command line shows
app = typer.Typer(no_args_is_help=True, help="Run experiments and render their results.")
app.add_typer(peers, name="peers")
app.command()(search)

Results = Annotated[Path, typer.Option(metavar="DIR", help="Folder with the results.")]


def _names(text: str) -> list[str]:
    """Split a list at commas."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in _names(text)]
    except ValueError as error:
        raise typer.BadParameter(f"got {text[:60]!r}, expected numbers such as 0,1,2") from error
    for seed in seeds:
        check_seed(seed)
    return seeds


@app.command()
def run(
    corpora: Annotated[str, typer.Argument(metavar="CORPUS[,CORPUS]", help="Names from `denn data list`.")],
    recipes: Annotated[str, typer.Argument(metavar="RECIPE[,RECIPE]", help="Names of recipe files, without .toml.")],
    seeds: Annotated[str, typer.Option(metavar="SEED[,SEED]", help="Random seeds.")] = "0",
    recipes_dir: Annotated[
        Path, typer.Option("--recipes", metavar="DIR", help="Folder with <corpus>/<recipe>.toml files.")
    ] = Path("recipes"),
    recipes_of: Annotated[
        str | None, typer.Option(metavar="CORPUS", help="Use this corpus's recipes; default: each corpus has its own.")
    ] = None,
    results: Results = Path("results"),
    work: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for models and unfinished training runs; default: the user's cache."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of every recipe.")
    ] = None,
    share: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=1,
            callback=finite,
            help="Share of the training documents; if below 1, it becomes part of the result's name.",
        ),
    ] = 1.0,
    sweeps: Annotated[bool, typer.Option("--sweeps", help="Also try other k, γ and datastore sizes.")] = False,
    scores: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to save the witnesses' scores in, for `denn bench combine`."),
    ] = None,
    keep_models: Annotated[bool, typer.Option("--keep-models", help="Keep the models in the work folder.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Discard unfinished training of these runs.")] = False,
    take_turns: Annotated[
        bool, typer.Option("--take-turns", help="Train one at a time if several of these commands run at once.")
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="Record that other processes use the GPU, so times are not comparable.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train and test every recipe on every corpus with every seed, and write one JSON file per run.

    Runs with a result are skipped. Run the same command again to resume.
    """
    from denn.cli.output import check_folder
    from denn.cli.show import complain, interruptible
    from denn.cli.sources import data_folder
    from denn.config import parse_settings
    from denn_bench.run import clear, on_share, plan
    from denn_bench.run_command import Options, do_all

    given = parse_settings(settings or [])
    runs = plan(recipes_dir, _names(corpora), _names(recipes), _seeds(seeds), given, recipes_of)
    runs = [on_share(one, share) for one in runs]
    folder = work or data_folder(None) / "bench"
    check_folder(results, "--results")
    check_folder(folder, "--work")
    if scores:
        check_folder(scores, "--scores")
    for one in runs if restart else ():
        clear(one, folder)
    options = Options(results, folder, keep_models, scores, sweeps, take_turns, shared)
    with interruptible("interrupted; run the same command again to resume"):
        failures = do_all(runs, data_dir, share, options)
    if failures:
        complain(f"{len(failures)} of {len(runs)} runs failed: {', '.join(failures)}. The others succeeded.")
        raise typer.Exit(1 if None in failures.values() else 2)


@app.command("time")
def time_recipes(
    corpora: Annotated[str, typer.Argument(metavar="CORPUS[,CORPUS]", help="Names from `denn data list`.")],
    recipes: Annotated[str, typer.Argument(metavar="RECIPE[,RECIPE]", help="Names of recipe files, without .toml.")],
    seconds: Annotated[float, typer.Option(min=1, callback=finite, help="Training time per recipe in seconds.")] = 10.0,
    recipes_dir: Annotated[
        Path, typer.Option("--recipes", metavar="DIR", help="Folder with <corpus>/<recipe>.toml files.")
    ] = Path("recipes"),
    results: Results = Path("results"),
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure how long an epoch and a text take for every recipe, with a short run on an otherwise idle machine.

    The tables show these times for results of `denn bench run --shared`. Recipes with a measurement are skipped.
    """
    from denn.cli.output import check_folder
    from denn.cli.progress import watching
    from denn.cli.sources import Reading, open_corpus
    from denn_bench.run import digest, plan
    from denn_bench.timing import measure_costs

    runs = plan(recipes_dir, _names(corpora), _names(recipes), [0])
    check_folder(results / "costs", "--results")
    for name, members in groupby(runs, key=lambda run: run.corpus):
        corpus = open_corpus(name, data_dir, Reading())
        checksum = digest(corpus)
        for one in members:
            if (results / "costs" / f"{one.name}.json").exists():
                log.info(f"{one.name}: already measured, skipped")
                continue
            with watching() as progress:
                spent = measure_costs(one, corpus, checksum, results / "costs", seconds, progress)["cost"]
            epoch, text = spent["epoch_seconds"], spent["inference_ms_per_text"]
            log.info(
                f"{one.name}: {'no epochs' if epoch is None else f'{epoch:.1f} s per epoch'}, {text:.2f} ms per text"
            )


@app.command()
def table(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the table, such as main-aapd; an unknown name lists all.")
    ],
    results: Results = Path("results"),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Print a table in Markdown, with the paper's numbers next to ours."""
    from denn_bench.result import read_all
    from denn_bench.tables import render

    typer.echo(render(name, read_all(results)), nl=False)


@app.command()
def page(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Markdown page with <!-- table: NAME --> … <!-- end -->.")
    ],
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail if a table is out of date.")] = False,
    results: Results = Path("results"),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Update every generated table of a page."""
    from denn.cli.output import check_file, writing
    from denn.errors import DataError
    from denn_bench.pages import fill
    from denn_bench.result import read_all

    if not check:
        check_file(file, "FILE")
    try:
        old = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"The page {file} cannot be read: {error.strerror}.") from error
    new = fill(old, read_all(results))
    if new == old:
        log.info(f"{file} is up to date")
    elif check:
        raise DataError(f"{file} is out of date. Run: denn bench page {file} --results {results}")
    else:
        with writing(file) as out:
            out.write(new.encode())


@app.command()
def figure(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the figure, such as k; an unknown name lists all.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder.")],
    results: Results = Path("results"),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Draw a figure as SVG and PNG with its data, and print the paths of the files."""
    from denn.cli.output import check_folder
    from denn_bench.figures import draw
    from denn_bench.result import read_all

    check_folder(out, "--out")
    for path in draw(name, read_all(results), out, results):
        typer.echo(path)


@app.command("map")
def embedding_map(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a model with a datastore.")],
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="Name from `denn data list`, or a file.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Output file; `denn bench figure map` reads results/<corpus>-map.json.")
    ],
    data_dir: DataDir = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Map test texts with one label set among training documents in two dimensions, for `denn bench figure map`."""
    from denn.cli.output import check_file
    from denn.cli.sources import Reading, open_corpus
    from denn_bench.map import run as make

    check_file(out, "--out", make_folder=True)
    make(model, open_corpus(corpus, data_dir, Reading()), out)
    log.info(f"Next: denn bench figure map --out figures --results {out.parent}")


@app.command()
def compare(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="Corpus of both systems.")],
    first: Annotated[str, typer.Argument(metavar="RECIPE[:PART]", help="First system, such as denn or denn:average.")],
    second: Annotated[
        str, typer.Argument(metavar="RECIPE[:PART]", help="Second system, such as bert or denn:classifier.")
    ],
    results: Results = Path("results"),
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Test whether the first system is significantly better than the second, over documents and over seeds."""
    from denn.errors import DataError
    from denn_bench.result import read_all, select
    from denn_bench.significance import compare as compared

    found = read_all(results)
    sides, parts = [], []
    for given in (first, second):
        recipe, _, part = given.partition(":")
        sides.append(select(found, corpus, recipe))
        parts.append(part or "final")
        if not sides[-1]:
            known = sorted({f"{result.recipe} on {result.corpus}" for result in select(found, corpus) or found})
            raise DataError(f"{results} has no result of {recipe} on {corpus}. Available: {', '.join(known)}.")
    typer.echo(compared(sides[0], sides[1], parts[0], parts[1]))


@app.command()
def combine(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder saved by `denn bench run --scores`.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file for all figures as JSON.")] = None,
    by_seed: Annotated[bool, typer.Option("--by-seed", help="Print each seed instead of the mean over seeds.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare combinations of witnesses on saved scores without training, and print a table in Markdown.

    Combinations are fitted and thresholds tuned on validation; the table shows test micro-F1 / macro-F1 in percent.
    A folder words-CORPUS-SEED adds the witness `words` to runs of that corpus that lack it.
    """
    from denn.cli.output import check_file, writing
    from denn.strict_json import dumps
    from denn_bench.combine import compare_all
    from denn_bench.combine import table as rendered

    check_file(out, "--out")
    found = compare_all(folder, log.info)
    if out:
        with writing(out) as file:
            file.write((dumps(found, f"The comparison {out}", indent=1) + "\n").encode())
    typer.echo(rendered(found["runs"], by_seed), nl=False)

"""`denn report`: one HTML page that shows what a model does well and badly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from denn.cli.options import DataDir, Model, Quiet, Verbose
from denn.cli.sources import Reading, open_corpus, open_documents, read_file, with_reading

log = logging.getLogger(__name__)


@with_reading
def report(
    model: Model,
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help="A file of labelled documents, or a name from `denn data list`.")
    ],
    part: Annotated[
        Literal["test", "valid"], typer.Option(help="Which part of a corpus known by name to report on.")
    ] = "test",
    valid: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Documents to tune thresholds on where k and γ are tried; not used if the combination is learnt.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    as_json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write all numbers of the page as one JSON object."),
    ] = None,
    data_dir: DataDir = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write one HTML page on a model: scores, curves, labels, errors and their neighbours."""
    from denn.cli import show
    from denn.cli.output import check_file, writing
    from denn.cli.progress import watching
    from denn.errors import ConfigError
    from denn.model import load
    from denn.registry import CORPORA
    from denn.report.numbers import findings_json
    from denn.report.page import warnings, write
    from denn.strict_json import dumps

    check_file(out, "--out", make_folder=True)
    check_file(as_json, "--json")
    with show.interruptible(f"interrupted; {out} is as it was"), load(model) as loaded:
        if corpus in CORPORA and not Path(corpus).is_file():
            whole = open_corpus(corpus, data_dir, reading, valid)
            documents, tuning = getattr(whole, part), whole.valid if part == "test" else ()
            name = f"{corpus}, {part} part"
        elif part == "valid":
            raise ConfigError(f"{corpus} is a file and has no parts; leave --part out, or give the file of that part.")
        else:
            documents = open_documents(corpus, data_dir, reading)
            tuning = read_file(valid, reading) if valid else ()
            name = Path(corpus).name
        with watching() as progress:
            found = write(out, loaded, name, documents, tuning, progress)
        if as_json is not None:
            with writing(as_json) as file:
                numbers = findings_json(found, loaded.card, name, loaded.vocabulary)
                file.write(dumps(numbers, "The report", ensure_ascii=False).encode() + b"\n")
    for sentence in warnings(found):
        log.warning(sentence)
    headline = found.evaluation.headline
    scores = f"micro F1 {100 * headline['micro_f1']:.1f} %, macro F1 {100 * headline['macro_f1']:.1f} %"
    typer.echo(f"{out}: {scores} on {len(documents):,} texts")

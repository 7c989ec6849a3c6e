"""`denn report`: write one HTML page on a model's strengths and weaknesses."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal

import typer

from denn.cli.options import DataDir, Model, Quiet, Verbose
from denn.cli.sources import Reading, open_corpus, open_documents, read_file, with_reading
from denn.wording import counted

log = logging.getLogger(__name__)


@with_reading
def report(
    model: Model,
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", help="File or folder of labelled documents, or corpus name from `denn data list`."
        ),
    ],
    part: Annotated[Literal["test", "valid"], typer.Option(help="Split of a known corpus to report on.")] = "test",
    valid: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Documents for tuning thresholds when trying other k and γ; not used if the combination is learnt.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Output file.")] = Path("report.html"),
    as_json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write all numbers of the report to a JSON file."),
    ] = None,
    data_dir: DataDir = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Write an HTML report on a model.

    The report shows scores, threshold curves, calibration, labels, confusions and the worst errors with their evidence.
    """
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
    with show.interruptible(f"interrupted; {out} was not changed"), load(model) as loaded:
        if corpus in CORPORA and not Path(corpus).is_file():
            whole = open_corpus(corpus, data_dir, reading, valid)
            documents, tuning = getattr(whole, part), whole.valid if part == "test" else ()
            name = f"{corpus}, {part} part"
        elif part == "valid":
            raise ConfigError(f"{corpus} is a file and has no parts. Omit --part, or give the file of that part.")
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
    scores = f"micro-F1 {100 * headline['micro_f1']:.1f} %, macro-F1 {100 * headline['macro_f1']:.1f} %"
    typer.echo(f"{out}: {scores} on {counted(len(documents), 'text')}")

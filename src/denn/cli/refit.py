"""`denn refit`: refit a model to the current documents of its datastore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose, duration
from denn.cli.sources import Reading, check_needed, read_file, with_reading


@with_reading
def refit(
    model: Model,
    valid: Annotated[
        Path | None, typer.Option(help="Validation file; default: the model's own validation documents.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Keep the refitted model even if it is worse.")] = False,
    time_budget: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Time limit, such as 90s, 5m or 1h30m; default: none."),
    ] = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Refit a model to the documents in its datastore.

    Updates classifier, words, combination and thresholds, which then also cover labels added since training. The
    encoder is not changed, so a refit takes seconds to minutes. If it is interrupted, the model does not change.
    """
    from denn.cli.progress import watching
    from denn.cli.show import interruptible
    from denn.refitting import refit as learn_again

    if valid is None:
        check_needed(reading, "--valid FILE")
    with interruptible("interrupted; the model was not changed"):
        documents = None if valid is None else read_file(valid, reading, part="valid")
        with watching() as progress:
            learn_again(model, valid=documents, force=force, time_budget=time_budget, progress=progress).close()

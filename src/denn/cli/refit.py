"""`denn refit`: learn from the documents that a model's datastore holds by now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from denn.cli.options import Model, Quiet, Verbose, duration
from denn.cli.sources import Reading, read_file, with_reading


@with_reading
def refit(
    model: Model,
    valid: Annotated[
        Path | None, typer.Option(help="File to validate on; default: the documents that the model keeps for that.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Use the refitted model even if it is worse.")] = False,
    time_budget: Annotated[
        float | None, typer.Option(parser=duration, metavar="TIME", help="Finish within this time: 90s, 5m or 1h30m.")
    ] = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Learn classifier, words, combination and thresholds again from the datastore.

    Labels that were added later get a classifier and words of their own. The encoder stays as it is, so this takes
    seconds to minutes. If interrupted, the model stays as it was.
    """
    from denn.cli.progress import watching
    from denn.cli.show import interruptible
    from denn.refitting import refit as learn_again

    with interruptible("interrupted; the model is as it was"):
        documents = None if valid is None else read_file(valid, reading, part="valid")
        with watching() as progress:
            learn_again(model, valid=documents, force=force, time_budget=time_budget, progress=progress).close()

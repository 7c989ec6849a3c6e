"""What `denn bench run` does with each run: do it unless it is done, and say how it went."""

from __future__ import annotations

import logging
from pathlib import Path

from denn.cli import mendable
from denn.cli.progress import watching
from denn.cli.show import complain, span
from denn.errors import DennError
from denn.types import Corpus
from denn_bench.run import Run, clear, finished, perform

log = logging.getLogger("denn.bench")  # below the logger that the command line shows
# What data, settings and machines make of a run; torch says RuntimeError to most, memory included.
FAILURES = (DennError, OSError, RuntimeError, ValueError, ArithmeticError, MemoryError)


def do_run(
    run: Run,
    corpus: Corpus,
    checksum: str,
    results: Path,
    work: Path,
    keep_models: bool,
    scores: Path | None,
    **options: bool,
) -> None:
    """Do one run, unless it is done, and say how it went."""
    done = finished(run, checksum, results)
    if done is not None:
        lacking = options["sweeps"] and done.data["recipe"]["method"] == "denn" and "sweeps" not in done.data
        log.info(f"{run.name} is in {results} already{', without sweeps; move it away to have them' * lacking}")
        if scores and len(done.data["thresholds"]) > 1 and not (scores / run.name).is_dir():
            log.info(f"{run.name} has no scores in {scores}; move its result away to have them")
        if not keep_models:
            clear(run, work)
        return
    log.info(f"{run.name} begins")
    with watching() as progress:
        result = perform(
            run, corpus, checksum, results, work, progress, keep_model=keep_models, scores=scores, **options
        )
    micro, macro = (100 * value for value in result.f1("final", "tuned"))
    log.info(
        f"{run.name}: micro/macro F1 {micro:.1f}/{macro:.1f} on {len(corpus.test)} test documents at the tuned "
        f"threshold, after {span(result.data['cost']['seconds'])}"
    )


def say_failure(name: str, error: Exception) -> str | None:
    """Say why a run failed, and return the sentence if the user can mend it."""
    sentence = mendable(error)
    complain(f"{name} failed: {sentence or f'{type(error).__name__}: {error}'}")
    log.debug("", exc_info=error)
    return sentence

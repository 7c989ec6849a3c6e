"""Perform the unfinished runs of `denn bench run`; a failure does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from denn.cli import user_message
from denn.cli.progress import watching
from denn.cli.show import complain
from denn.cli.sources import Reading, open_corpus
from denn.errors import DennError
from denn.types import Corpus
from denn.wording import span
from denn_bench.run import Run, clear, digest, finished, perform, take_share

log = logging.getLogger("denn.bench")  # below the logger that the command line shows
# Failures caused by data, settings or the machine; torch raises RuntimeError for most, including lack of memory.
FAILURES = (DennError, OSError, RuntimeError, ValueError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class Options:
    """Options shared by all runs of a command."""

    results: Path  # folder for the results
    work: Path  # folder for models and unfinished training runs
    keep_models: bool
    scores: Path | None  # folder for the witnesses' scores
    sweeps: bool
    take_turns: bool
    shared: bool


def do_all(runs: Sequence[Run], data_dir: Path | None, share: float, options: Options) -> dict[str, str | None]:
    """Perform runs, corpus by corpus; return the reason for each failure by name, None for an internal error."""
    failures: dict[str, str | None] = {}
    for name, members in groupby(runs, key=lambda run: run.corpus):
        try:
            corpus = take_share(open_corpus(name, data_dir, Reading()), share)
            checksum = digest(corpus)
        except FAILURES as error:
            failures |= dict.fromkeys((one.name for one in members), say_failure(name, error))
            continue
        for one in members:
            try:
                do_run(one, corpus, checksum, options)
            except FAILURES as error:
                failures[one.name] = say_failure(one.name, error)
    return failures


def do_run(run: Run, corpus: Corpus, checksum: str, options: Options) -> None:
    """Perform one run unless it is finished, and log the outcome."""
    done, results, scores = finished(run, checksum, options.results), options.results, options.scores
    if done is not None:
        lacking = options.sweeps and done.data["recipe"]["method"] == "denn" and "sweeps" not in done.data
        log.info(f"{run.name} is already in {results}{', without sweeps; move it away to run them' * lacking}")
        if scores and len(done.data["thresholds"]) > 1 and not (scores / run.name).is_dir():
            log.info(f"{run.name} has no scores in {scores}; move its result away to save them")
        if not options.keep_models:
            clear(run, options.work)
        return
    log.info(f"{run.name}: started")
    with watching() as progress:
        result = perform(
            run, corpus, checksum, results, options.work, progress, keep_model=options.keep_models,
            sweeps=options.sweeps, take_turns=options.take_turns, shared=options.shared, scores=scores,
        )  # fmt: skip
    micro, macro = (100 * value for value in result.f1("final", "tuned"))
    log.info(
        f"{run.name}: micro/macro-F1 {micro:.1f}/{macro:.1f} on {len(corpus.test)} test documents at the tuned "
        f"threshold, after {span(result.data['cost']['seconds'])}"
    )


def say_failure(name: str, error: Exception) -> str | None:
    """Report why a run failed, and return the message if the user can fix it."""
    sentence = user_message(error)
    complain(f"{name} failed: {sentence or f'{type(error).__name__}: {error}'}")
    log.debug("", exc_info=error)
    return sentence

"""Summaries of runs: mean ± standard deviation over seeds, Markdown tables, and captions that name the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from denn_bench.paper import OTHER_CORPORA, REVIEWS, TITLES, Printed
from denn_bench.result import Result
from denn_bench.significance import METRICS

HEADLINE = "tuned"  # the default threshold of every table
NOTHING = "-"
RISING = 0.04  # share by which validation F1 may rise in the last fifth of a run that counts as converged
STILL_RISING, RISING_A_LITTLE = "↑", 0.01
UNCONVERGED = "not trained to convergence"
COLLAPSED = 0.8  # a run that ends below this share of its best validation F1
OUTDATED = "†"
MARKS = {
    OUTDATED: "run before a review on 18 November 2026, after which the system has changed",
    UNCONVERGED: f"validation micro-F1 rose by more than {100 * RISING:.0f} % in the last fifth of the steps",
    STILL_RISING: f"validation micro-F1 rose by more than {100 * RISING_A_LITTLE:.0f} % in the last fifth of the steps",
}


@dataclass(frozen=True)
class Table:
    """A table in Markdown and the runs behind it."""

    text: str
    runs: Sequence[Result]


def mean_sd(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean, with the standard deviation if there are at least two values; "-" for no values."""
    if not values:
        return NOTHING
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):,.{digits}f}{spread}"


def percent(runs: Iterable[Result], part: str, metric: str, threshold: str = HEADLINE) -> str:
    """Return a metric on the test split in percent, over the seeds."""
    return mean_sd([100 * run.metric(part, threshold, metric) for run in runs])


def f1_percent(runs: Sequence[Result], part: str, threshold: str = HEADLINE) -> list[str]:
    """Return micro-F1, macro-F1 and their mean in percent, over the seeds."""
    scores = [[100 * run.metric(part, threshold, metric) for metric in METRICS] for run in runs]
    return [mean_sd(values) for values in ([s[0] for s in scores], [s[1] for s in scores], [fmean(s) for s in scores])]


def answer_percent(runs: Sequence[Result], metric: str) -> str:
    """Return a metric of the systems' own answers on the test split in percent, over the seeds."""
    return mean_sd([100 * run.metric(run.answer, HEADLINE, metric) for run in runs])


def rise(run: Result) -> float:
    """Return the share by which validation micro-F1 rose in the last fifth of the steps."""
    scores = validations(run)
    before = [score for step, score in scores if step <= 0.8 * scores[-1][0]]
    return max(score for _, score in scores) / max(before) - 1 if before and max(before) > 0 else 0.0


def still_rises(run: Result) -> bool:
    """Return whether a run ended so early that its score says little about the system."""
    return rise(run) > RISING


def collapse(run: Result) -> int | None:
    """Return the last step before a run broke down for good, if it did."""
    scores = validations(run)
    enough = COLLAPSED * max((score for _, score in scores), default=0.0)
    sound = [step for step, score in scores if score >= enough]
    return sound[-1] if scores and scores[-1][1] < enough else None


def budget_ended(run: Result) -> str | None:
    """Return how far a run got before its time budget ended it; older results do not say so themselves."""
    costs, planned = run.data["cost"], run.data["recipe"]["parameters"]
    said: str | None = costs.get("stopped_early")
    reached = costs.get("epochs")
    if "stopped_early" in costs or not planned.get("time_budget") or reached is None:
        return said
    return f"after {reached:.1f} of {planned['epochs']} epochs" if reached < planned["epochs"] else None


def validations(run: Result) -> list[tuple[int, float]]:
    """Return (step, validation micro-F1) of a run, in order."""
    history = run.data.get("history", [])
    scores = [(entry["step"], entry.get("tuned_micro_f1", entry.get("score"))) for entry in history]
    return [(step, score) for step, score in scores if score is not None]


def dated(recipe: str, name: str, runs: Iterable[Result]) -> str:
    """Mark the name of a system that has changed since one of its runs."""
    old = any(str(run.data["created"]) < REVIEWS.get(recipe, "") for run in runs)
    return f"{name} {OUTDATED}" if old else name


def rising(score: str, runs: Iterable[Result]) -> str:
    """Mark the score of a system that might still improve with more steps."""
    return f"{score} {STILL_RISING}" if any(rise(run) > RISING_A_LITTLE for run in runs) else score


def explained(table: str) -> list[str]:
    """Return a table and the meaning of each of its marks."""
    return [table, *(f"{mark}: {meaning}." for mark, meaning in MARKS.items() if mark in table)]


def measured(runs: Iterable[Result], value: Callable[[Result], float | None], digits: int = 1) -> str:
    """Return a measured value, over the runs that have it."""
    return mean_sd([found for run in runs if (found := value(run)) is not None], digits)


def printed(value: float | None) -> str:
    """Format a number as in the paper."""
    return NOTHING if value is None else f"{value:.1f}"


def pair(first: str, second: str) -> str:
    """Join two cells into one; "-" if both are empty."""
    return NOTHING if first == second == NOTHING else f"{first} / {second}"


def printed_f1(row: Printed | None) -> list[str]:
    """Return the paper's micro-F1, macro-F1 and their mean."""
    row = row or Printed()
    return [printed(value) for value in (row.micro_f1, row.macro_f1, row.average)]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table with text in its first column and numbers in the others."""
    rule = ["---", *(["--:"] * (len(header) - 1))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def title(corpus: str) -> str:
    """Return the name of a corpus as in the paper, or as its authors write it."""
    return {**TITLES, **OTHER_CORPORA}.get(corpus, corpus)


def corpora(results: Iterable[Result], recipes: Iterable[str], always: Iterable[str] = ()) -> list[str]:
    """Return the corpora with a run of one of the recipes, and those always shown, in the paper's order."""
    wanted = set(recipes)
    found = {result.corpus for result in results if result.recipe in wanted} | set(always)
    return [*(name for name in TITLES if name in found), *sorted(found - TITLES.keys())]


def seeds(runs: Iterable[Result]) -> str:
    """List the seeds of runs."""
    return ", ".join(str(seed) for seed in sorted({run.seed for run in runs})) or NOTHING


def caption(command: str, runs: Sequence[Result]) -> str:
    """Describe the source of a table: machines, dates, commits, seeds, and the command that generates it."""
    made = f"Generated by `{command}`."
    if not runs:
        return f"*No runs yet, only the paper's numbers. {made}*"
    machines = ", ".join(sorted({device(run) for run in runs}))
    dates = sorted(str(run.data["created"])[:10] for run in runs)
    period = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    commits = ", ".join(sorted({_short(run.data["commit"]) for run in runs}))
    unique = len({run.name for run in runs})
    return (
        f"*{unique} run{'s' if unique > 1 else ''} with seed{'s' if ',' in seeds(runs) else ''} {seeds(runs)}; "
        f"{machines}; {period}; commit{'s' if ',' in commits else ''} {commits}. "
        f"Mean ± standard deviation over seeds. {made}*"
    )


def device(run: Result) -> str:
    """Return the name of a run's GPU, or of its CPU if it has none."""
    return str(run.data["machine"]["gpu"] or run.data["machine"]["cpu"])


def _short(commit: str | None) -> str:
    """Truncate a commit to ten digits, and keep the mark of a modified tree."""
    number, plus, changes = (commit or "unknown").partition("+")
    return f"{number[:10]}{plus}{changes}"

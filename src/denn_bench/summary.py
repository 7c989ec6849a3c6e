"""Many runs in few words: mean ± standard deviation over seeds, Markdown tables, and where the numbers come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from denn_bench.paper import TITLES, Printed
from denn_bench.result import Result
from denn_bench.significance import METRICS

HEADLINE = "tuned"  # the threshold of every table that names no other
NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """A table in Markdown and the runs it was made from."""

    text: str
    runs: Sequence[Result]


def mean_sd(values: Sequence[float], digits: int = 1) -> str:
    """Return the mean, with the standard deviation where there are at least two values; "-" for none."""
    if not values:
        return NOTHING
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):,.{digits}f}{spread}"


def percent(runs: Iterable[Result], part: str, metric: str, threshold: str = HEADLINE) -> str:
    """Return a metric of the test part in percent, over the seeds."""
    return mean_sd([100 * run.metric(part, threshold, metric) for run in runs])


def f1_percent(runs: Sequence[Result], part: str, threshold: str = HEADLINE) -> list[str]:
    """Return micro-F1, macro-F1 and their mean in percent, over the seeds."""
    scores = [[100 * run.metric(part, threshold, metric) for metric in METRICS] for run in runs]
    return [mean_sd(values) for values in ([s[0] for s in scores], [s[1] for s in scores], [fmean(s) for s in scores])]


def measured(runs: Iterable[Result], value: Callable[[Result], float | None], digits: int = 1) -> str:
    """Return what was measured in the runs, over those where it was."""
    return mean_sd([found for run in runs if (found := value(run)) is not None], digits)


def printed(value: float | None) -> str:
    """Return a number as the paper prints it."""
    return NOTHING if value is None else f"{value:.1f}"


def pair(first: str, second: str) -> str:
    """Join two cells into one; "-" where both are empty."""
    return NOTHING if first == second == NOTHING else f"{first} / {second}"


def printed_f1(row: Printed | None) -> list[str]:
    """Return the paper's micro-F1, macro-F1 and their mean."""
    row = row or Printed()
    return [printed(value) for value in (row.micro_f1, row.macro_f1, row.average)]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a Markdown table; its first column is text, the others are numbers."""
    rule = ["---", *(["--:"] * (len(header) - 1))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def title(corpus: str) -> str:
    """Return the name of a corpus as the paper writes it."""
    return TITLES.get(corpus, corpus)


def corpora(results: Iterable[Result], recipes: Iterable[str], always: Iterable[str] = ()) -> list[str]:
    """Return the corpora with a run of one of the recipes, and those to be shown always: the paper's order first."""
    wanted = set(recipes)
    found = {result.corpus for result in results if result.recipe in wanted} | set(always)
    return [*(name for name in TITLES if name in found), *sorted(found - TITLES.keys())]


def seeds(runs: Iterable[Result]) -> str:
    """List the seeds of runs."""
    return ", ".join(str(seed) for seed in sorted({run.seed for run in runs})) or NOTHING


def caption(command: str, runs: Sequence[Result]) -> str:
    """Say where the numbers of a table come from: machines, dates, commits, seeds, and the command that makes it."""
    made = f"Made by `{command}`."
    if not runs:
        return f"*No runs yet; the paper's numbers alone. {made}*"
    machines = ", ".join(sorted({device(run) for run in runs}))
    dates = sorted(str(run.data["created"])[:10] for run in runs)
    period = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    commits = ", ".join(sorted({_short(run.data["commit"]) for run in runs}))
    unique = len({run.name for run in runs})
    return (
        f"*{unique} run{'s' if unique > 1 else ''} with seed{'s' if ',' in seeds(runs) else ''} {seeds(runs)}; "
        f"{machines}; {period}; commit {commits}. Mean ± standard deviation over seeds. {made}*"
    )


def device(run: Result) -> str:
    """Name the machine of a run by its accelerator, or else by its processor."""
    return str(run.data["machine"]["gpu"] or run.data["machine"]["cpu"])


def _short(commit: str | None) -> str:
    """Cut a commit to ten digits, and keep the mark of a changed tree."""
    number, plus, changes = (commit or "unknown").partition("+")
    return f"{number[:10]}{plus}{changes}"

"""Turn rows of peers into a Markdown table, and insert it into a page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from denn.errors import DataError
from denn_bench.paper import TITLES
from denn_bench.peers.catalogue import PEERS
from denn_bench.peers.runs import CPU, Row, run_of, stands_for
from denn_bench.summary import NOTHING, mean_sd

PLACE = re.compile(r"<!-- peers -->\n.*?<!-- end -->", re.DOTALL)
NAMES = {"reuters21578": "Reuters-21578", "goemotions": "GoEmotions", "debian": "Debian packages", **TITLES}
MIB = 1 << 20


def render(rows: Sequence[Row]) -> str:
    """Return one table per machine, GPUs last; variations of corpora are for figures."""
    rows = [row for row in rows if not run_of(row).variation]
    if not rows:
        raise DataError("There are no runs of peers. Start with `denn bench peers run`.")
    machines: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        machines.setdefault((run_of(row).device, run_of(row).processor), []).append(row)
    ordered = sorted(machines, key=lambda machine: machine[0] != CPU)
    return "\n".join(_table(machines[machine]) for machine in ordered)


def _table(rows: Sequence[Row]) -> str:
    """Return a table by corpus, with the best micro-F1 of each time limit in bold, and failures below it.

    If denn was measured with other time limits only, nothing is bold.
    """
    limits = sorted({row["minutes"] for row in rows})
    f1 = [f"F1 after {limit:g} min" for limit in limits]
    head = ["Corpus", "System", *f1, "trained in s", "texts/s", "memory MiB", "disk MiB"]
    lines = [_line(head), _line(["---"] * len(head))]
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        of_corpus = [row for row in rows if row["corpus"] == corpus]
        best = {limit: _best(of_corpus, limit) for limit in limits}
        for peer in (name for name in PEERS if any(row["peer"] == name for row in of_corpus)):
            own = [row for row in of_corpus if row["peer"] == peer]
            lines.append(_line([NAMES.get(corpus, corpus), PEERS[peer].title, *_cells(own, limits, best)]))
    return "\n".join([*lines, "", *_failures(rows), _caption(rows)]) + "\n"


def fill(page: str, rows: Sequence[Row]) -> str:
    """Return the page with an updated table."""
    if not PLACE.search(page):
        raise DataError("The page has no place for the table. Expected <!-- peers --> and <!-- end -->.")
    return PLACE.sub(lambda _: f"<!-- peers -->\n{render(rows)}<!-- end -->", page)


def at(rows: Iterable[Row], limit: float) -> list[Row]:
    """Return a peer's rows that hold for a time limit, one per seed: its own, or the one with the nearest limit."""
    found: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: abs(float(row["minutes"]) - limit)):
        if stands_for(row, limit):
            found.setdefault(row["seed"], row)
    return [found[seed] for seed in sorted(found)]


def _best(rows: Sequence[Row], limit: float) -> float:
    """Return the best micro-F1 of a time limit; infinity, so that nothing is bold, if denn has other limits only."""
    of_peers = {peer: at([row for row in rows if row["peer"] == peer], limit) for peer in {row["peer"] for row in rows}}
    if of_peers.get("denn") == []:
        return math.inf
    return max((_mean(found, "micro_f1") for found in map(_done, of_peers.values()) if found), default=0.0)


def _done(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row["failure"]]


def _mean(rows: Sequence[Row], name: str) -> float:
    return fmean(float(row[name]) for row in rows)


def _cells(rows: Sequence[Row], limits: Sequence[float], best: dict[float, float]) -> list[str]:
    scores, seconds = [], []
    for limit in limits:
        there = at(rows, limit)
        done = _done(there)
        scores.append(_scores(done, best[limit]) if done else "failed" if there else NOTHING)
        seconds.append(f"{_mean(done, 'train_seconds'):.0f}" if done else NOTHING)
    last = next((done for limit in reversed(limits) if (done := _done(at(rows, limit)))), [])

    def shown(value: Callable[[Row], float]) -> str:
        return mean_sd([value(row) for row in last], 0)

    return [
        *scores,
        " / ".join(seconds),
        shown(lambda row: row["texts_per_second"]),
        shown(lambda row: row["memory_bytes"] / MIB),
        shown(lambda row: row["disk_bytes"] / MIB),
    ]


def _scores(rows: Sequence[Row], best: float) -> str:
    micro, macro = (mean_sd([100 * row[name] for row in rows]) for name in ("micro_f1", "macro_f1"))
    is_best = round(_mean(rows, "micro_f1"), 3) >= round(best, 3)  # at the precision of the table
    return f"**{micro}** / {macro}" if is_best else f"{micro} / {macro}"


def _failures(rows: Iterable[Row]) -> list[str]:
    lines = [
        f"- {PEERS[row['peer']].title} on {NAMES.get(row['corpus'], row['corpus'])}, {row['minutes']:g} min: "
        f"{row['failure']}"
        for row in rows
        if row["failure"]
    ]
    return ["Failed:", "", *lines, ""] if lines else []


def _caption(rows: Sequence[Row]) -> str:
    def listed(values: Iterable[object]) -> str:
        return ", ".join(sorted({str(value) for value in values}))

    dates, seeds = sorted({row["date"] for row in rows}), {row["seed"] for row in rows}
    others = [100 * row["others"] for row in rows if "others" in row] or [0]
    device = run_of(rows[0]).device
    on = "" if device == CPU else f"{device} and "
    runs = len({run_of(row) for row in rows})
    return (
        f"*{runs} run{'s' * (runs > 1)} with seed{'s' * (len(seeds) > 1)} {listed(seeds)} on "
        f"{on}{listed(row['cores'] for row in rows)} cores of {listed(run_of(row).processor for row in rows)}; "
        f"{' to '.join(dict.fromkeys((dates[0], dates[-1])))}; other processes took "
        f"{' to '.join(dict.fromkeys(f'{end(others):.0f}' for end in (min, max)))} % of the CPU. "
        "Generated by `denn bench peers table`.*"
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

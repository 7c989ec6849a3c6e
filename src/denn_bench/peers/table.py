"""Turn rows of peers into Markdown tables, F1 at a glance and details by machine, and insert them into a page."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from denn.errors import DataError
from denn_bench.paper import TITLES
from denn_bench.peers.catalogue import PEERS
from denn_bench.peers.runs import CPU, Row, run_of, stands_for
from denn_bench.summary import NOTHING, mean_sd

PLACE = re.compile(r"<!-- peers: (?P<section>overview|machines) -->\n.*?<!-- end -->", re.DOTALL)
NAMES = {"reuters21578": "Reuters-21578", "goemotions": "GoEmotions", "debian": "Debian packages", **TITLES}
MIB = 1 << 20
ELSEWHERE = "†"  # marks a cell of another machine than most of its column


def render(rows: Sequence[Row]) -> str:
    """Return F1 of all systems, then one table per machine."""
    return f"{overview(rows)}\n{machines(rows)}"


def overview(rows: Sequence[Row]) -> str:
    """Return F1 of every system on every corpus, for each device and time limit.

    A column shows the machine with the most runs on its corpus. Others fill its gaps, with a mark.
    """
    rows = _unvaried(rows)
    found = {row["corpus"] for row in rows}
    corpora = [*(name for name in NAMES if name in found), *sorted(found - NAMES.keys())]
    head = ["Time", "System", *(NAMES.get(corpus, corpus) for corpus in corpora)]
    lines = [_line(head), _line(["---"] * len(head))]
    for device in _cpu_first({run_of(row).device for row in rows}):
        on_device = [row for row in rows if run_of(row).device == device]
        for limit in sorted({row["minutes"] for row in on_device}):
            time = f"{limit:g} min" + (f", {device}" if device != CPU else "")
            columns = [_column([row for row in on_device if row["corpus"] == corpus], limit) for corpus in corpora]
            for name, peer in PEERS.items():
                cells = [column.get(name, NOTHING) for column in columns]
                if set(cells) != {NOTHING}:
                    lines.append(_line([time, peer.title, *cells]))
    note = f"*Micro-F1 / macro-F1. {ELSEWHERE}: measured on another machine than the rest of the column.*"
    return "\n".join([*lines, "", note]) + "\n"


def machines(rows: Sequence[Row]) -> str:
    """Return F1, time, speed, memory and disk in one table per machine, GPUs last."""
    by_machine: dict[tuple[str, str], list[Row]] = {}
    for row in _unvaried(rows):
        by_machine.setdefault((run_of(row).device, run_of(row).processor), []).append(row)
    return "\n".join(
        _table(of_machine)
        for device in _cpu_first({device for device, _ in by_machine})
        for (its_device, _), of_machine in by_machine.items()
        if its_device == device
    )


def _unvaried(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of whole corpora; variations are for figures."""
    found = [row for row in rows if not run_of(row).variation]
    if not found:
        raise DataError("There are no runs of peers. Start with `denn bench peers run`.")
    return found


def _cpu_first(devices: Iterable[str]) -> list[str]:
    return sorted(devices, key=lambda device: (device != CPU, device))


def _column(rows: Sequence[Row], limit: float) -> Mapping[str, str]:
    """Return the cells of a corpus by system; the best micro-F1 is bold if there is one of denn to compare with."""
    processors = [name for name, _ in Counter(run_of(row).processor for row in rows).most_common()]
    found: dict[str, tuple[list[Row], str]] = {}
    for processor in processors:
        for peer in PEERS.keys() - found.keys():
            own = [row for row in rows if row["peer"] == peer and run_of(row).processor == processor]
            if there := at(own, limit):
                found[peer] = _done(there), ELSEWHERE * (processor != processors[0])
    best = max((_mean(done, "micro_f1") for done, _ in found.values() if done), default=0.0)
    best = best if "denn" in found else math.inf
    return {peer: _scores(done, best) + mark if done else "failed" for peer, (done, mark) in found.items()}


def _table(rows: Sequence[Row]) -> str:
    """Return the table of a machine by corpus, and failures below it."""
    limits = sorted({row["minutes"] for row in rows})
    f1 = [f"F1 after {limit:g} min" for limit in limits]
    head = ["Corpus", "System", *f1, "trained in s", "texts/s", "memory MiB", "disk MiB"]
    lines = [_line(head), _line(["---"] * len(head))]
    for corpus in dict.fromkeys(row["corpus"] for row in rows):
        of_corpus = [row for row in rows if row["corpus"] == corpus]
        for peer in (name for name in PEERS if any(row["peer"] == name for row in of_corpus)):
            own = [row for row in of_corpus if row["peer"] == peer]
            lines.append(_line([NAMES.get(corpus, corpus), PEERS[peer].title, *_cells(own, limits)]))
    return "\n".join([*lines, "", *_failures(rows), _caption(rows)]) + "\n"


def fill(page: str, rows: Sequence[Row]) -> str:
    """Return the page with updated tables."""
    sections = {"overview": overview(rows), "machines": machines(rows)}
    if {place["section"] for place in PLACE.finditer(page)} != set(sections):
        raise DataError(
            "The page has no place for the tables. Expected <!-- peers: overview --> and <!-- peers: machines -->, "
            "each followed by <!-- end -->."
        )
    return PLACE.sub(lambda m: f"<!-- peers: {m['section']} -->\n{sections[m['section']]}<!-- end -->", page)


def at(rows: Iterable[Row], limit: float) -> list[Row]:
    """Return a peer's rows that hold for a time limit, one per seed: its own, or the one with the nearest limit."""
    found: dict[int, Row] = {}
    for row in sorted(rows, key=lambda row: abs(float(row["minutes"]) - limit)):
        if stands_for(row, limit):
            found.setdefault(row["seed"], row)
    return [found[seed] for seed in sorted(found)]


def _done(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if not row["failure"]]


def _mean(rows: Sequence[Row], name: str) -> float:
    return fmean(float(row[name]) for row in rows)


def _cells(rows: Sequence[Row], limits: Sequence[float]) -> list[str]:
    scores, seconds = [], []
    for limit in limits:
        there = at(rows, limit)
        done = _done(there)
        scores.append(_scores(done) if done else "failed" if there else NOTHING)
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


def _scores(rows: Sequence[Row], best: float = math.inf) -> str:
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

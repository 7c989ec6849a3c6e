"""Run a child process within time limits, and measure the memory of it and its children."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.5  # seconds between two checks
GRACE = 0.1, 10.0  # share of the time limit, and seconds, that training may exceed it by
SCORING = 3600.0  # time limit of scoring in seconds
KIB = 1024
STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a child process."""

    failure: str | None  # one line; None on success
    peak_bytes: int
    others: float  # share of the run's CPU time that other processes took


def watch(
    command: Sequence[str], environment: Mapping[str, str], out: Path, seconds: float, cores: Sequence[int]
) -> Outcome:
    """Run a runner on these cores: it writes trained.json within the time limit, then scored.json, or failure.txt."""
    begun, peak, late, before = time.monotonic(), 0, None, (core_seconds(cores), _own_seconds())
    with (out / "log.txt").open("wb") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environment,
            start_new_session=True, cwd=out,
        )  # fmt: skip
    try:
        while child.poll() is None:
            peak = max(peak, memory(child.pid))
            limit = seconds + GRACE[0] * seconds + GRACE[1]
            if (out / "trained.json").exists():
                limit += SCORING
            if time.monotonic() - begun > limit:
                late = "scoring took too long" if limit > SCORING else f"not trained after {seconds:.0f} seconds"
                break
            time.sleep(INTERVAL)
    finally:
        _end(child)
    foreign = core_seconds(cores) - before[0] - (_own_seconds() - before[1])
    others = foreign / (time.monotonic() - begun) / len(cores)
    return Outcome(late or _failure(child, out), peak, round(min(max(others, 0.0), 1.0), 3))


def memory(pid: int) -> int:
    """Return the memory of a process and its descendants in bytes; shared pages count once."""
    pids = list(descendants(pid))
    if len(pids) == 1:
        return _field(pid, "status", "VmHWM")  # the peak so far
    return sum(_field(one, "smaps_rollup", "Pss") for one in pids)


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))
    except OSError:  # it has ended, or this is not Linux
        return


def core_seconds(cores: Sequence[int]) -> float:
    """Return the busy time of these cores in seconds since the machine started; 0 if unknown."""
    try:
        lines = [line.split() for line in STAT.read_text().splitlines()]
    except OSError:
        return 0.0
    names = {f"cpu{core}" for core in cores}
    ticks = 0
    for line in lines:
        if line[:1] and line[0] in names:
            user, nice, system, _, _, irq, softirq, steal = map(int, line[1:9])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Return the CPU time of this process and its finished children."""
    return sum(os.times()[:4])


def _field(pid: int, file: str, name: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * KIB
    except OSError:
        pass
    return 0


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child and everything it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _failure(child: subprocess.Popen[bytes], out: Path) -> str | None:
    if child.returncode == 0 and (out / "scored.json").exists():
        return None
    written = out / "failure.txt"
    if written.exists():
        return written.read_text(encoding="utf-8")
    if child.returncode == -signal.SIGKILL:
        return "killed, probably because memory ran out"
    last = (out / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit code {child.returncode}: {last[-1] if last else 'no message'}"

"""Run long work of the service in a separate process, which reports progress and result as JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from denn.service.problems import UNAVAILABLE, UNUSABLE
from denn.service.refit_child import Kind
from denn.witnesses.sparse_linear import available_cores

State: TypeAlias = Literal["never", "running", "done", "kept", "failed"]
PRINTED = 2000  # bytes of a process's output to log
LONGEST = 2**26  # bytes of a line
SHOWN: Mapping[Kind, str] = {  # shown instead of messages that may name paths, which go to the log
    "datastore": UNAVAILABLE,
    "room": "There is not enough disk space for the refitted model. Free some, then start the refit again.",
    "folder": UNUSABLE,
}


@dataclass
class Work:
    """Work in a separate process, running or finished."""

    state: State = "never"
    stage: str | None = None  # while it runs
    done: int | None = None  # units of the stage
    total: int | None = None
    unit: str | None = None
    started: str | None = None
    ended: str | None = None
    by: str | None = None  # name of the key
    sentence: str | None = None

    def show(self, line: Mapping[str, Any]) -> None:
        """Take over the progress that the process reports in a line."""
        if "stage" in line:
            self.stage, self.total, self.unit, self.done = line["stage"], line["total"], line["unit"], None
        elif "done" in line:
            self.done = line["done"]


async def run_child(
    command: Sequence[str],
    what: str,
    show: Callable[[Mapping[str, Any]], None],
    ends: str,
    pass_fds: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Run a process, show its lines, and return the last one; kill the process when this task ends.

    The last line has the key `ends`, or `error` and its `kind`; `what` names the work in messages.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        pass_fds=pass_fds,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(_threads())},
        limit=LONGEST,
    )
    result: dict[str, Any] = {}
    assert process.stdout is not None and process.stderr is not None
    printed = asyncio.create_task(_last_of(process.stderr))
    try:
        async for line in process.stdout:
            result = json.loads(line)
            show(result)
        text, code = await printed, await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        printed.cancel()
    if not {ends, "error"} & result.keys():
        result = {"kind": "shown", "error": _early(what, code)}
    return result if ends in result else {**result, "printed": text.decode(errors="replace")}


def shown_error(result: Mapping[str, Any], what: str, folder: Path, name: str) -> str:
    """Return the sentence about an error that users may see, with the model's name instead of its folder."""
    if result["kind"] == "bug":
        return f"The {what} failed. See the service log."
    sentence: str = SHOWN.get(result["kind"], result["error"])
    return sentence.replace(str(folder), name)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


async def _last_of(stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end and return the last PRINTED bytes."""
    kept = b""
    while piece := await stream.read(2**16):
        kept = (kept + piece)[-PRINTED:]
    return kept


def _early(what: str, code: int) -> str:
    """Return a message for a process that ended without a result."""
    if code == -9:  # SIGKILL, which Windows lacks
        return f"The {what} process was killed, perhaps for lack of memory."
    return f"The {what} process ended early (exit status {code}). See the service log."


def _threads() -> int:
    """Return the number of threads for a process: all cores but one, which is left for requests."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    free = max(1, available_cores() - 1)
    return min(free, int(given)) if given.isdecimal() and int(given) else free

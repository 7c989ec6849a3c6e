"""Refits of the served model, each in a process of its own while the service goes on answering."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

from denn.errors import BundleError, ConflictError, DennError
from denn.model import Model
from denn.refitting import describe
from denn.service.changes import Changes, learnt_until
from denn.service.engine import Engine
from denn.service.problems import SENTENCES, Refusal
from denn.service.refit_child import Kind
from denn.service.renewal import Renewal
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.service.threads import BriefThreads
from denn.stores.address import of_model
from denn.validation import changing
from denn.witnesses.sparse_linear import available_cores

log = logging.getLogger("denn.service")

State: TypeAlias = Literal["never", "running", "done", "kept", "failed"]
EVERY = 2.0  # seconds between two looks at the number of changes
CHILD = (sys.executable, "-P", "-m", "denn.service.refit_child")
COUNTING = 5.0  # seconds that the number of changes may take
BY_ITSELF = "--refit-every"
TOLD: Mapping[Kind, str] = {  # instead of sentences that name places, which go to the log
    "datastore": SENTENCES[503],
    "room": "There is no room to write the refitted model. Make room, then start the refit again.",
    "folder": "The folder of the model cannot be used. The log has more.",
    "fault": "The refit failed. The log has more.",
}
PRINTED = 2000  # bytes of what a process printed that go to the log
LOGGED = ("error", "trace", "printed")  # of what a process said
FIGURES = ("metric", "before", "after", "standard_error", "documents", "held_out", "labels", "seconds")


@dataclass
class Refit:
    """One refit, running or over."""

    state: State = "never"
    stage: str | None = None  # while it runs
    done: int | None = None  # units of the stage
    total: int | None = None
    unit: str | None = None
    started: str | None = None
    ended: str | None = None
    by: str | None = None  # the name of a key; None if another process ran it
    sentence: str | None = None
    figures: Mapping[str, object] | None = None


class Refits:
    """Starts refits when asked to, or after so many changes, one at a time, and remembers the last one."""

    def __init__(self, engine: Engine, renewal: Renewal, settings: Settings, telemetry: Telemetry) -> None:
        self._engine, self._renewal, self._settings, self._telemetry = engine, renewal, settings, telemetry
        model = engine.model
        self._address = str(of_model(_folder(model))) if model.method.can_refit and model.folder else ""
        self._last = Refit()
        self._after: object = None  # what the model's card said of refits when the last one ended
        self._changes = Changes()
        self._counting = BriefThreads(1, "denn-changes")
        self._tried = (-1, 0)  # what the model had learnt until then, and how many changes there were since
        self._running: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to count changes if that may start a refit, inside a running event loop."""
        if self._settings.refit_every is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(self._settings.refit_every))

    async def stop(self) -> None:
        """End the refit that is running, which leaves the model as it was."""
        for task in (self._watching, self._running):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._counting.rest(COUNTING)  # the datastore may never answer

    async def begin(self, by: str, force: bool = False) -> None:
        """Start a refit; a refusal if one is running."""
        self._check()
        model, changed = self._engine.model, await self._changed()
        if self._last.state == "running":
            raise Refusal(409, "A refit is running already. Wait until it is done, then try again.")
        lock, failure = ExitStack(), None
        try:
            held = lock.enter_context(changing(_folder(model)))
        except BundleError as error:
            held, failure = (), str(error)
        self._tried = (learnt_until(model.card), changed)
        self._last = Refit("running", stage="starting", started=_now(), by=by)
        log.info("refit started", extra={"facts": {"by": by, "force": force}})
        if failure is not None:
            return self._end({"kind": "told", "error": failure}, model.card.refitted)
        self._running = asyncio.get_running_loop().create_task(self._run(lock, held, force))
        self._running.add_done_callback(lambda _: lock.close())  # also if it never began

    async def status(self) -> dict[str, Any]:
        """Describe the refit that is running, else the last one, whoever ran it."""
        self._check()
        changed: int | None = None
        with suppress(DennError, TimeoutError):  # the datastore may be away; the rest can be told all the same
            async with asyncio.timeout(COUNTING):
                changed = await self._changed()
        refitted, last = self._engine.model.card.refitted, self._last
        if last.state != "running" and refitted is not None and refitted != self._after:  # another process ran it
            last = Refit("done", ended=refitted["time"], sentence=describe(refitted), figures=_figures(refitted))
        return {**asdict(last), "changed_documents": changed}

    def _check(self) -> None:
        """Raise an error if the model cannot be refitted."""
        model = self._engine.model
        if not model.method.can_refit:
            raise ConflictError(
                f"A model of the method {model.card.method!r} cannot be refitted, expected 'denn'. Train again instead."
            )

    async def _changed(self) -> int:
        """Count the changes since the last refit."""
        model = self._engine.model
        return await self._counting.run(lambda: self._changes.count(model.store, model.card))

    async def _watch(self, every: int) -> None:
        """Start a refit after so many changes since the last one, whether that one came to something or not."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self._renewal.look()  # another process may just have learnt the changes
                changed, (start, before) = await self._changed(), self._tried
                if start == learnt_until(self._engine.model.card):
                    changed -= before
                if changed >= every and self._last.state != "running":
                    await self.begin(BY_ITSELF)
            except DennError:  # the datastore may be away; then the next look counts
                continue
            except Exception:  # a fault of our own: it is told, and the next look may go better
                log.exception("the changes since the last refit could not be counted")

    async def _run(self, lock: ExitStack, held: tuple[int, ...], force: bool) -> None:
        """Run a refit in a process, switch to what it learnt, and remember how it ended."""
        before = self._engine.model.card.refitted
        try:
            with lock:
                said = await self._watched(held, force)
            await self._renewal.look()
        except Exception:  # a fault of our own
            log.exception("a refit could not be run")
            said = {"kind": "fault", "error": "The refit could not be run."}
        self._end(said, before)

    def _end(self, said: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        """Remember how a refit ended: by what its process said, and by what the service has switched to since."""
        said = _seen(said, before, self._engine.model.card.refitted)
        state, sentence = _ended(said)
        sentence = sentence.replace(str(_folder(self._engine.model)), self._settings.name)  # where it is, is not told
        figures = _figures(said["facts"]) if "facts" in said else None
        begun = self._last
        self._last = Refit(state, started=begun.started, ended=_now(), by=begun.by, sentence=sentence, figures=figures)
        self._after = self._engine.model.card.refitted
        self._telemetry.refits.labels(state).inc()
        facts = {"by": begun.by, "sentence": sentence, **{name: said[name] for name in LOGGED if said.get(name)}}
        log.log(logging.WARNING if state == "failed" else logging.INFO, f"refit {state}", extra={"facts": facts})

    async def _watched(self, lock: tuple[int, ...], force: bool) -> dict[str, Any]:
        """Run the process, show its progress, and return the last thing it said; it ends with this task."""
        model = self._engine.model
        process = await asyncio.create_subprocess_exec(
            *CHILD,
            str(_folder(model)),
            str(force),
            model.card.created,
            self._address,
            pass_fds=lock,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": str(_threads())},
        )
        said: dict[str, Any] = {}
        assert process.stdout is not None and process.stderr is not None
        printed = asyncio.create_task(_last_of(process.stderr))
        try:
            async for line in process.stdout:
                said = json.loads(line)
                self._show(said)
            text, code = await printed, await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            printed.cancel()
        if not {"facts", "error"} & said.keys():
            said = {"kind": "told", "error": _early(code)}
        return said if "facts" in said else {**said, "printed": text.decode(errors="replace")}

    def _show(self, said: Mapping[str, Any]) -> None:
        if "stage" in said:
            self._last.stage, self._last.total, self._last.unit = said["stage"], said["total"], said["unit"]
            self._last.done = None
        elif "done" in said:
            self._last.done = said["done"]


def _folder(model: Model) -> Path:
    assert model.folder is not None
    return model.folder.resolve()


async def _last_of(stream: asyncio.StreamReader) -> bytes:
    """Read a stream to its end, and return the last part."""
    kept = b""
    while piece := await stream.read(2**16):
        kept = (kept + piece)[-PRINTED:]
    return kept


def _seen(
    said: Mapping[str, Any], before: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return what a process said, unless what was served before and is served now speaks against it."""
    if said.get("taken") and said["facts"] != now:
        return {"kind": "told", "error": "The service could not switch to the refitted model. The log has more."}
    if "error" in said and now is not None and now != before:  # the process ended badly, but after its last step
        return {"taken": True, "facts": now}
    return said


def _ended(said: Mapping[str, Any]) -> tuple[State, str]:
    """Return how a refit ended, and the sentence that says so."""
    if "error" in said:
        return "failed", TOLD.get(said["kind"], said["error"])
    if said["taken"]:
        return "done", describe(said["facts"])
    return "kept", f"{describe(said['facts'])} The refit is worse, so the model stays as it was."


def _early(code: int) -> str:
    """Say that a process ended without a result."""
    if code == -9:  # SIGKILL, which Windows lacks
        return "The process of the refit was killed; memory may be short."
    return f"The process of the refit ended early (exit status {code}). The log has more."


def _figures(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: facts.get(name) for name in FIGURES}


def _threads() -> int:
    """Return how many threads a refit may use: one less than there are processors, so that answers come quickly."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    free = max(1, available_cores() - 1)
    return min(free, int(given)) if given.isdecimal() and int(given) else free


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

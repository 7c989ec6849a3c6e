"""Refit the served model in a separate process while the service keeps answering."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from denn.errors import BundleError, ConflictError, DennError
from denn.refitting import describe
from denn.service.changes import Changes, learnt_until
from denn.service.child import State, Work, now, run_child, shown_error
from denn.service.engine import Engine
from denn.service.problems import Refusal
from denn.service.renewal import Renewal
from denn.service.served import address_of, folder_of
from denn.service.settings import Settings
from denn.service.telemetry import Telemetry
from denn.service.threads import BriefThreads
from denn.validation import changing

log = logging.getLogger("denn.service")

EVERY = 2.0  # seconds between two counts of the changes
CHILD = (sys.executable, "-P", "-m", "denn.service.refit_child")
COUNTING = 5.0  # timeout in seconds for counting the changes
BY_ITSELF = "--refit-every"
LOGGED = ("error", "trace", "printed")  # fields of a process's result to log
FIGURES = ("metric", "before", "after", "standard_error", "documents", "held_out", "labels", "seconds")


@dataclass
class Refit(Work):
    """A refit, running or finished; `by` is None if another process ran it."""

    figures: Mapping[str, object] | None = None


class Refits:
    """Run refits one at a time, on request or after a number of changes, and remember the last one."""

    def __init__(self, engine: Engine, renewal: Renewal, settings: Settings, telemetry: Telemetry) -> None:
        self._engine, self._renewal, self._settings, self._telemetry = engine, renewal, settings, telemetry
        self._address = address_of(engine.model)
        self._last = Refit()
        self._after: object = None  # refit facts in the model's card when the last one ended
        self._changes = Changes()
        self._counting = BriefThreads(1, "denn-changes")
        self._tried = (-1, 0)  # at the last attempt: last change used by the model, and number of changes since
        self._running: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start counting changes if they may trigger a refit, inside a running event loop."""
        if self._settings.refit_every is not None:
            self._watching = asyncio.get_running_loop().create_task(self._watch(self._settings.refit_every))

    async def stop(self) -> None:
        """Stop a running refit, which leaves the model unchanged."""
        for task in (self._watching, self._running):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._counting.rest(COUNTING)  # in case the datastore never answers

    async def begin(self, by: str, force: bool = False) -> None:
        """Start a refit, or raise a refusal if one is running."""
        self._check()
        model, changed = self._engine.model, await self._changed()
        if self._last.state == "running":
            raise Refusal(409, "A refit is already running. Try again when it is done.")
        lock, failure = ExitStack(), None
        try:
            held = lock.enter_context(changing(folder_of(model)))
        except BundleError as error:
            held, failure = (), str(error)
        self._tried = (learnt_until(model.card), changed)
        self._last = Refit("running", stage="starting", started=now(), by=by)
        log.info("refit started", extra={"facts": {"by": by, "force": force}})
        if failure is not None:
            return self._end({"kind": "shown", "error": failure}, model.card.refitted)
        self._running = asyncio.get_running_loop().create_task(self._run(lock, held, force))
        self._running.add_done_callback(lambda _: lock.close())  # even if it never started

    async def status(self) -> dict[str, Any]:
        """Describe the running refit, or the last one, whichever process ran it."""
        self._check()
        refitted, last = self._engine.model.card.refitted, self._last
        if last.state != "running" and refitted is not None and refitted != self._after:  # another process ran it
            last = Refit("done", ended=refitted["time"], sentence=describe(refitted), figures=_figures(refitted))
        changed: int | None = None  # counted for the same model, even if another one is served meanwhile
        with suppress(DennError, TimeoutError):  # the datastore may be unavailable; report the rest anyway
            async with asyncio.timeout(COUNTING):
                changed = await self._changed()
        return {**asdict(last), "changed_documents": changed}

    def _check(self) -> None:
        """Raise an error if the model cannot be refitted."""
        model = self._engine.model
        if not model.method.can_refit:
            raise ConflictError(
                f"Only models of the method 'denn' can be refitted, not {model.card.method!r}. Train it again instead."
            )

    async def _changed(self) -> int:
        """Count the changes since the last refit."""
        model = self._engine.model
        return await self._counting.run(lambda: self._changes.count(model.store, model.card))

    async def _watch(self, every: int) -> None:
        """Start a refit after `every` changes since the last attempt."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self._renewal.look()  # another process may have just refitted the model
                changed, (start, before) = await self._changed(), self._tried
                if start == learnt_until(self._engine.model.card):
                    changed -= before
                if changed >= every and self._last.state != "running":
                    await self.begin(BY_ITSELF)
            except DennError:  # the datastore may be unavailable; count again next time
                continue
            except Exception:  # a bug: log it, and try again
                log.exception("could not count the changes since the last refit")

    async def _run(self, lock: ExitStack, held: tuple[int, ...], force: bool) -> None:
        """Run a refit in a process, switch to the refitted model, and remember the outcome."""
        before = self._engine.model.card.refitted
        try:
            with lock:
                result = await self._watched(held, force)
            await self._renewal.look()
        except Exception:  # a bug
            log.exception("could not run the refit")
            result = {"kind": "bug", "error": "Could not run the refit."}
        self._end(result, before)

    def _end(self, result: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        """Record the outcome of a refit, from its process's result and the model now served."""
        result = _seen(result, before, self._engine.model.card.refitted)
        state, sentence = _ended(result, folder_of(self._engine.model), self._settings.name)
        figures = _figures(result["facts"]) if "facts" in result else None
        begun = self._last
        self._last = Refit(state, started=begun.started, ended=now(), by=begun.by, sentence=sentence, figures=figures)
        self._after = self._engine.model.card.refitted
        self._telemetry.refits.labels(state).inc()
        facts = {"by": begun.by, "sentence": sentence, **{name: result[name] for name in LOGGED if result.get(name)}}
        log.log(logging.WARNING if state == "failed" else logging.INFO, f"refit {state}", extra={"facts": facts})

    async def _watched(self, lock: tuple[int, ...], force: bool) -> dict[str, Any]:
        """Run the process, show its progress, and return its result; kill it when this task ends."""
        model = self._engine.model
        command = (*CHILD, str(folder_of(model)), str(force), model.card.created, self._address)
        return await run_child(command, "refit", self._last.show, "facts", lock)


def _seen(
    result: Mapping[str, Any], before: Mapping[str, Any] | None, now: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the result of a process, corrected if the model now served contradicts it."""
    if result.get("taken") and result["facts"] != now:
        return {"kind": "shown", "error": "The service could not switch to the refitted model. See the service log."}
    if "error" in result and now is not None and now != before:  # the process failed after its last step
        return {"taken": True, "facts": now}
    return result


def _ended(result: Mapping[str, Any], folder: Path, name: str) -> tuple[State, str]:
    """Return the state of a finished refit of the model with this folder and name, and a sentence about it."""
    if "error" in result:
        return "failed", shown_error(result, "refit", folder, name)
    if result["taken"]:
        return "done", describe(result["facts"])
    return "kept", f"{describe(result['facts'])} The refit is worse, so the model was not changed."


def _figures(facts: Mapping[str, object]) -> dict[str, object]:
    return {name: facts.get(name) for name in FIGURES}

"""Audit the datastore in a separate process, and remember which suspects are still to be decided."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Container, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from denn.model import Model
from denn.service.child import State, Work, now, run_child, shown_error
from denn.service.engine import Engine
from denn.service.problems import Refusal
from denn.service.served import address_of, folder_of
from denn.service.settings import Settings
from denn.types import Where
from denn.wording import counted

log = logging.getLogger("denn.service")

CHILD = (sys.executable, "-P", "-m", "denn.service.audit_child")


class Audits:
    """Run audits one at a time, and keep the suspects of the last one in memory."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self._engine, self._settings = engine, settings
        self.last = Work()
        self._suspects: list[dict[str, Any]] = []
        self._running: asyncio.Task[None] | None = None
        self._address = address_of(engine.model)

    async def stop(self) -> None:
        """Stop a running audit."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running

    def begin(self, by: str, count: int) -> None:
        """Start an audit, or raise a refusal if one is running."""
        model = self._engine.model
        _ = model.store  # raises if there is none
        if self.last.state == "running":
            raise Refusal(409, "An audit is already running. Try again when it is done.")
        self.last = Work("running", stage="starting", started=now(), by=by)
        log.info("audit started", extra={"facts": {"by": by}})
        folder = folder_of(model)
        command = (*CHILD, str(count), str(folder), model.card.created, self._address)
        self._running = asyncio.get_running_loop().create_task(self._run(command, folder))

    @property
    def has_suspects(self) -> bool:
        """Whether the last audit found suspects; while one runs, there are none to decide."""
        return bool(self._suspects) and self.last.state != "running"

    def pending(self, model: Model) -> list[dict[str, Any]]:
        """Return the suspects whose documents have not changed and were not confirmed since the audit.

        Doubts about labels that were merged in the meantime are left out.
        """
        store, merged = model.store, model.merges()
        suspects = [one for suspect in self._suspects if (one := _without(suspect, merged))]
        known = {one.id: one for one in store.get([one["id"] for one in suspects], missing_ok=True)}
        confirmed = set(store.select(Where(action="confirm"))) if suspects else set()
        return [
            suspect
            for suspect in suspects
            if (document := known.get(suspect["id"])) is not None
            and suspect["id"] not in confirmed
            and (list(document.labels), list(document.rejected)) == (suspect["labels"], suspect["rejected"])
        ]

    async def _run(self, command: Sequence[str], folder: Path) -> None:
        try:
            result = await run_child(command, "audit", self.last.show, "suspects")
        except Exception:  # a bug
            log.exception("could not run the audit")
            result = {"kind": "bug", "error": "Could not run the audit."}
        begun = self.last
        if "error" in result:
            ended: State = "failed"
            sentence = shown_error(result, "audit", folder, self._settings.name)
        else:
            ended, self._suspects = "done", result["suspects"]
            sentence = f"{counted(len(self._suspects), 'document')} with labels that look wrong."
        self.last = Work(ended, started=begun.started, ended=now(), by=begun.by, sentence=sentence)
        facts = {"by": begun.by, **{name: result[name] for name in ("error", "trace", "printed") if result.get(name)}}
        log.log(logging.WARNING if ended == "failed" else logging.INFO, f"audit {ended}", extra={"facts": facts})


def _without(suspect: dict[str, Any], labels: Container[str]) -> dict[str, Any] | None:
    """Return a suspect without doubts about some labels, or None if no other doubt is left."""
    kept = {kind: [doubt for doubt in suspect[kind] if doubt["label"] not in labels] for kind in ("add", "drop")}
    return suspect | kept if any(kept.values()) else None

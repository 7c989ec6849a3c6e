"""Switch the service to a refitted model or to renamed labels, whichever process changed them."""

from __future__ import annotations

import asyncio
import logging

from denn import bundle
from denn.errors import BundleError, DennError
from denn.model import Model
from denn.renewing import renew
from denn.service.engine import Engine
from denn.service.served import address_of
from denn.service.threads import BriefThreads

log = logging.getLogger("denn.service")

EVERY = 1.0  # seconds between two checks


class Renewal:
    """Watch the folder of the engine's model, and reload what other processes change: by a refit, or its labels."""

    def __init__(self, engine: Engine, every: float = EVERY) -> None:
        self._engine, self._every = engine, every
        self._folder, self._address = engine.model.folder, address_of(engine.model)
        self._seen: object = None  # signature of the last bundle.json checked
        self._told: object = None  # signature of the last bundle.json whose failure was logged
        self._looking = asyncio.Lock()
        self._thread = BriefThreads(1, "denn-renew")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching, inside a running event loop."""
        if self._folder is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
        await self._thread.rest()

    async def look(self) -> None:
        """Switch to what has changed in the folder since the last check."""
        async with self._looking:
            model = await self._thread.run(self._renewed)
            if model is not None:
                before, after = self._engine.model.card.refitted, model.card.refitted
                await self._engine.switch(model)
                done = "label names read again" if before == after else "switched to the refitted model"
                log.info(done, extra={"facts": {"refitted": after}})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.look()
            except Exception:  # a bug: log it, and keep the old model
                log.exception("could not load what has changed in the model's folder")

    def _renewed(self) -> Model | None:
        """Return the new model, or None to keep the old one."""
        assert self._folder is not None
        found = bundle.signature(self._folder)
        if found == self._seen:
            return None
        try:
            model = renew(self._engine.model)
            if model is not None and address_of(model) != self._address:
                raise BundleError(f"{self._folder} now uses another datastore. Restart the service to use it.")
        except (DennError, OSError) as error:
            if isinstance(error, BundleError):  # other errors may be temporary
                self._seen = found
            if self._told != found:
                self._told = found
                log.warning("the service keeps the model that is loaded: %s", error)
            return None
        self._seen = found
        return model

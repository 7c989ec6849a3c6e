"""Take up refits: whoever refits the model that is served, the service switches to the result."""

from __future__ import annotations

import asyncio
import logging

from denn import bundle
from denn.errors import BundleError, DennError
from denn.model import Model
from denn.renewing import renew
from denn.service.engine import Engine
from denn.service.threads import BriefThreads
from denn.stores.address import of_model

log = logging.getLogger("denn.service")

EVERY = 1.0  # seconds between two looks


class Renewal:
    """Watches the folder of the engine's model, and renews the model when a refit has changed it."""

    def __init__(self, engine: Engine, every: float = EVERY) -> None:
        self._engine, self._every = engine, every
        model = engine.model
        self._folder = model.folder if model.method.can_refit else None
        self._address = of_model(self._folder) if self._folder else None
        self._seen: object = None  # the bundle.json that needs no second look
        self._told: object = None  # the one whose failure is in the log
        self._looking = asyncio.Lock()
        self._thread = BriefThreads(1, "denn-renew")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch, inside a running event loop."""
        if self._folder is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
        await self._thread.rest()

    async def look(self) -> None:
        """Switch to what a refit has learnt, if one has changed the folder since the last look."""
        async with self._looking:
            model = await self._thread.run(self._renewed)
            if model is not None:
                await self._engine.switch(model)
                log.info("switched to the refitted model", extra={"facts": {"refitted": model.card.refitted}})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.look()
            except Exception:  # a fault of our own: it is told, and the old model answers
                log.exception("the refitted model could not be loaded")

    def _renewed(self) -> Model | None:
        """Return the new model, None if the old one is to stay."""
        assert self._folder is not None
        found = bundle.signature(self._folder)
        if found == self._seen:
            return None
        try:
            model = renew(self._engine.model)
            if model is not None and of_model(self._folder) != self._address:
                raise BundleError(f"{self._folder} uses another datastore now.")
        except (DennError, OSError) as error:
            if isinstance(error, BundleError):  # else it may go better next time
                self._seen = found
            if self._told != found:
                self._told = found
                log.warning("The model that was loaded stays in use until the service is restarted: %s", error)
            return None
        self._seen = found
        return model

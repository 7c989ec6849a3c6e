"""The keys of a running service, read again when their file changes, and what a request may do with one of them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from denn.errors import ConfigError
from denn.service.key_file import read_keys
from denn.service.keys import Key, Keys, Right
from denn.service.problems import Refusal
from denn.service.rates import Allowance, close_bill, open_bill, whole_seconds
from denn.service.threads import BriefThreads
from denn.wording import counted

log = logging.getLogger("denn.service")

EVERY = 1.0  # seconds between two checks
BEARER = {"WWW-Authenticate": "Bearer"}
SEND = "Send it as 'Authorization: Bearer KEY'."
UNKNOWN = "This key is not valid. Check that it is complete, or ask for a new one."


@dataclass(frozen=True)
class Access:
    """What a request may do."""

    name: str = ""  # name of its key, or empty without one
    rights: tuple[Right, ...] = ()
    key: Key | None = None  # if it is active
    why_not: str = ""  # the reason why the key that was sent gives no access

    def check(self, right: Right) -> None:
        """Raise a refusal if this right is missing."""
        if right in self.rights:
            return
        if self.key is not None:
            raise Refusal(403, f"The key '{self.name}' does not have the right to {right}. Use another key.")
        what = "A key is required." if right == "read" else f"A key with the right to {right} is required."
        raise Refusal(401, self.why_not or f"{what} {SEND}", BEARER)


class KeyRing:
    """The keys that are in force: those given at the start, and those of a file, which may change."""

    def __init__(self, given: Keys, file: Path | None = None, every: float = EVERY) -> None:
        self._given, self._file, self._every = given, file, every
        self._seen = self._signature()  # of the last file that was read
        self._told: object = None  # of the last file whose error was logged
        self.keys = given if file is None else given + read_keys(file)
        self._guards_reading = self.keys.guard_reading
        self._allowances: dict[str, Allowance] = {}  # by digest
        self._thread = BriefThreads(1, "denn-keys")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching the file, inside a running event loop."""
        if self._file is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
        await self._thread.rest(self._every)

    def access(self, given: str | None) -> Access:
        """Return what a request with this key may do."""
        return self._access(self.keys.find(given), UNKNOWN if given else "")

    def check_again(self, access: Access) -> None:
        """Raise a refusal if the key of a long request has expired or was revoked since the request began."""
        if access.key is not None:
            now = next((key for key in self.keys.known if key.digest == access.key.digest), None)
            self._access(now, UNKNOWN).check("read")

    def _access(self, key: Key | None, unknown: str) -> Access:
        everyone: tuple[Right, ...] = () if self._guards_reading else ("read",)
        if key is None:
            return Access(rights=everyone, why_not=unknown)
        if why_not := key.why_not():
            return Access(key.shown, everyone, why_not=why_not)
        return Access(key.shown, key.rights, key)

    def bill(self, access: Access) -> None:
        """Let a request pay for its texts; raise a refusal if its key has used up its limit."""
        close_bill()  # a connection may pass the context of an earlier request on
        key = access.key
        if key is None or key.per_minute is None:
            return
        allowance = self._allowances.get(key.digest)
        if allowance is None or allowance.per_minute != key.per_minute:
            allowance = self._allowances[key.digest] = Allowance(key.per_minute)
        if wait := allowance.wait():
            later = whole_seconds(wait)
            raise Refusal(
                429,
                f"The key '{access.name}' may send {counted(key.per_minute, 'text')} per minute. Try again in "
                f"{later} s.",
                {"Retry-After": str(later)},
            )
        open_bill(allowance)

    async def look(self) -> None:
        """Read the file again if it has changed; keep the keys if it is not valid."""
        if (found := await self._thread.run(self._changed)) is None:
            return
        before, self.keys = _active(self.keys), self._given + found
        # A file that lost its last key for reading, perhaps by mistake, does not make reading public.
        self._guards_reading |= self.keys.guard_reading
        now = _active(self.keys)
        self._allowances = {digest: left for digest, left in self._allowances.items() if digest in now}
        added = sorted(now[digest] for digest in now.keys() - before.keys())
        ended = sorted(before[digest] for digest in before.keys() - now.keys())
        facts = {"active": len(now), "added": added, "ended": ended}
        log.info("keys read again", extra={"facts": facts})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            try:
                await self.look()
            except Exception:  # a bug: log it, and keep the keys
                log.exception("could not read the keys again")

    def _changed(self) -> Keys | None:
        """Return the keys of the file if it has changed and is valid."""
        signature = self._signature()
        if self._file is None or signature == self._seen:
            return None
        try:
            found = read_keys(self._file)
        except ConfigError as error:
            if self._told != signature:
                self._told = signature
                log.warning("the last valid keys stay in force: %s", error)
            if not isinstance(error.__cause__, OSError):  # those may be temporary, so the next check tries again
                self._seen = signature
            return None
        self._seen = signature
        return found

    def _signature(self) -> object:
        """Return a value that changes with the file."""
        try:
            found = self._file.stat() if self._file is not None else None
        except OSError:
            return None
        return found and (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)  # ctime: permissions


def _active(keys: Keys) -> dict[str, str]:
    """Return the names of the keys that can be used now, by digest."""
    return {key.digest: key.shown for key in keys.known if key.state() == "active"}

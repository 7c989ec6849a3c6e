"""Limits on the texts that a key may send per minute."""

from __future__ import annotations

import asyncio
import math
import time
from contextvars import ContextVar

from denn.service.problems import Refusal
from denn.wording import counted

LONGEST_WAIT = 120.0  # seconds that a stream waits for its key's limit, because its body stays in memory


class Allowance:
    """The texts that a key may still send: it grows steadily up to the texts of one minute.

    A request is accepted if the allowance covers one text, and then pays for all its texts. So a batch may be larger
    than what is left, and the key waits correspondingly longer afterwards.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._left, self._at = float(per_minute), time.monotonic()

    def wait(self) -> float:
        """Return the number of seconds until the next text is allowed; 0 if it is allowed now."""
        now, per_second = time.monotonic(), self.per_minute / 60
        self._left = min(self.per_minute, self._left + per_second * (now - self._at))
        self._at = now
        return max(0.0, (1 - self._left) / per_second)

    def take(self, texts: int) -> None:
        """Pay for texts."""
        self._left -= texts


class Bill:
    """What one request has paid for: its first text on arrival, the others when they are processed."""

    def __init__(self, allowance: Allowance) -> None:
        allowance.take(1)
        self._allowance, self._prepaid = allowance, 1

    def charge(self, texts: int) -> None:
        """Pay for texts that are about to be processed."""
        self._allowance.take(texts - self._prepaid)
        self._prepaid = 0

    async def turn(self) -> None:
        """Wait until the next text is allowed; raise a refusal if that takes too long."""
        while wait := self._allowance.wait():
            if wait > LONGEST_WAIT:
                raise Refusal(
                    429,
                    f"The key may send {counted(self._allowance.per_minute, 'text')} per minute. Send the rest again "
                    f"in {whole_seconds(wait)} s.",
                )
            await asyncio.sleep(wait)


_bill: ContextVar[Bill | None] = ContextVar("bill", default=None)


def open_bill(allowance: Allowance) -> None:
    """Let the current request pay for its texts."""
    _bill.set(Bill(allowance))


def close_bill() -> None:
    """Let the current request pay nothing."""
    _bill.set(None)


def charge(texts: int) -> None:
    """Let the current request pay for texts, if its key has a limit."""
    if (bill := _bill.get()) is not None and texts:
        bill.charge(texts)


async def turn() -> None:
    """Wait until the current request may process more texts; for streams, which are slowed down and not refused."""
    if (bill := _bill.get()) is not None:
        await bill.turn()


def whole_seconds(wait: float) -> int:
    """Return a wait as a value for Retry-After."""
    return max(1, math.ceil(wait))

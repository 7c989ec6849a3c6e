"""A task that kills its worker."""

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass

from denn.errors import BundleError


@dataclass(frozen=True)
class Deadly:
    """Double numbers, but die at 3, and complain about 4; or when the worker starts."""

    broken: bool = False
    dead: bool = False

    @contextmanager
    def opened(self):
        if self.broken:
            raise BundleError("this model is broken.")
        if self.dead:
            os.kill(os.getpid(), signal.SIGKILL)
        yield self._double

    def _double(self, number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == 4:
            raise BundleError("four is bad.")
        return 2 * number, 1

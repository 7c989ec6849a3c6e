"""Names of what can be plugged in: name → "module:attribute", imported when asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from denn.errors import ConfigError

METHODS = {
    "bert": "denn.methods.bert:Bert",
    "denn": "denn.methods.denn:DENN",
    "dummy": "denn.methods.dummy:Dummy",
}

CORPORA = {
    "aapd": "denn.data.aapd:load",
    "aapd-extra": "denn.data.aapd:load_extra",
    "rcv1": "denn.data.rcv1:load",
    "amazon531": "denn.data.amazon531:load",
    "eurlex57k": "denn.data.eurlex57k:load",
    "reuters21578": "denn.data.reuters21578:load",
    "goemotions": "denn.data.goemotions:load",
    "debian": "denn.data.debian:load",
}


def lookup(table: dict[str, str], name: str, kind: str) -> Any:
    """Import what a table registers under a name; an unknown name lists the known ones."""
    if name not in table:
        raise ConfigError(f"Got the {kind} {name!r}, expected one of {', '.join(table)}.{did_you_mean(name, table)}")
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" where a known name is close, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""

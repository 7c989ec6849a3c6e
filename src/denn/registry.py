"""Names of plug-ins: denn's own, and those that installed packages add as entry points."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from denn.errors import ConfigError, DennError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Registry(Mapping[str, str]):
    """Name → "module:attribute", imported on demand; denn's own names win over entry points."""

    def __init__(self, group: str, own: dict[str, str]) -> None:
        self.group, self.own = group, own

    @cached_property
    def added(self) -> dict[str, EntryPoint]:
        """The entry points of installed packages; read on first use, because that is slow."""
        from importlib.metadata import entry_points

        return {point.name: point for point in sorted(entry_points(group=self.group), key=lambda point: point.name)}

    def __getitem__(self, name: str) -> str:
        return self.own[name] if name in self.own else self.added[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(chain(self.own, self.added)))

    def __len__(self) -> int:
        return len(list(iter(self)))


METHODS = Registry("denn.methods", {"denn": "denn.methods.denn:DENN"})

WITNESSES = Registry(
    "denn.witnesses",
    {
        "classifier": "denn.witnesses.classifier:ClassifierWitness",
        "neighbours": "denn.witnesses.neighbours:NeighboursWitness",
        "words": "denn.witnesses.words:Words",
    },
)

COMBINERS = Registry(
    "denn.combiners",
    {
        "learnt": "denn.combiners.learnt:Learnt",
        "average": "denn.combiners.average:Average",
        "confidence": "denn.combiners.confidence:Confidence",
    },
)

STORES = Registry(
    "denn.stores",
    {
        "embedded": "denn.stores.embedded.store:EmbeddedStore",
        "memory": "denn.stores.embedded.temporary:MemoryStore",
        "postgres": "denn.stores.postgres.store:PostgresStore",
    },
)

CORPORA = Registry(
    "denn.corpora",
    {
        "aapd": "denn.data.aapd:load",
        "aapd-extra": "denn.data.aapd:load_extra",
        "rcv1": "denn.data.rcv1:load",
        "amazon531": "denn.data.amazon531:load",
        "eurlex57k": "denn.data.eurlex57k:load",
        "reuters21578": "denn.data.reuters21578:load",
        "goemotions": "denn.data.goemotions:load",
        "debian": "denn.data.debian:load",
    },
)

COMMANDS = Registry("denn.commands", {})  # in addition to those of denn.cli.app


def lookup(table: Registry, name: str, kind: str) -> Any:
    """Import what a table registers under a name; the error for an unknown name lists the known ones."""
    if name not in table:
        raise ConfigError(f"Unknown {kind} {name!r}, expected one of {', '.join(table)}.{did_you_mean(name, table)}")
    if name in table.own:
        module, attribute = table.own[name].split(":")
        return getattr(import_module(module), attribute)
    point = table.added[name]
    try:
        return point.load()
    except DennError:
        raise
    except Exception as error:  # importing another package may raise anything
        package = point.dist.name if point.dist else point.module
        sentence = f"{type(error).__name__}: {str(error).split(chr(10), 1)[0]}"
        raise ConfigError(
            f"The {kind} {name!r} of the package {package!r} cannot be imported ({sentence}). Reinstall or uninstall "
            "the package."
        ) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" if a known name is close, otherwise nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""

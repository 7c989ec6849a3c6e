"""Names of what can be plugged in: name → "module:attribute", imported when asked for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from denn.errors import ConfigError

METHODS = {
    "denn": "denn.methods.denn:DENN",
    "knn": "denn.methods.knn:KNN",
    "bert": "denn.methods.bert:Bert",
    "scl": "denn.methods.scl:SCL",
    "jscl": "denn.methods.scl:JSCL",
    "br": "denn.methods.br:BR",
    "cc": "denn.methods.cc:CC",
    "mlknn": "denn.methods.mlknn:MLkNN",
    "leam": "denn.methods.leam:Leam",
    "exam": "denn.methods.exam:Exam",
    "lsan": "denn.methods.lsan:Lsan",
    "ldgn": "denn.methods.ldgn:Ldgn",
    "spanemo": "denn.methods.spanemo:SpanEmo",
    "core": "denn.methods.core_network:CORE",
    "laco-plcp": "denn.methods.laco:LacoPairs",
    "laco-clcp": "denn.methods.laco:LacoConditional",
    "seqtag": "denn.methods.seqtag:SeqTag",
    "seq2seq": "denn.methods.seq2seq:Seq2Seq",
    "sgm": "denn.methods.sgm:Sgm",
    "seq2set": "denn.methods.seq2set:Seq2Set",
    "ocd": "denn.methods.ocd:Ocd",
    "mlr": "denn.methods.mlr:MLR",
    "mlr-textcnn": "denn.methods.mlr:MLRTextCnn",
    "dummy": "denn.methods.dummy:Dummy",
}

STORES = {
    "embedded": "denn.stores.embedded:EmbeddedStore",
    "memory": "denn.stores.temporary:MemoryStore",
    "postgres": "denn.stores.postgres:PostgresStore",
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

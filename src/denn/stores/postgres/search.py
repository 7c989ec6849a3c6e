"""Search in PostgreSQL with one statement for many queries, exactly or with an index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from denn.errors import StoreError
from denn.prediction_types import Neighbours
from denn.stores.postgres.link import Connection, Vector
from denn.stores.postgres.schema import INDEX_FROM
from denn.stores.rejections import separate_rejected

OVERFETCH = 4  # the index has half precision: fetch this many times k, and rank them again by their full vectors
FEWEST = 50  # minimum number to fetch from the index
NARROWEST, WIDEST = 200, 1000  # candidates that one pass over the index keeps; the second is pgvector's maximum
NARROW = 50_000  # documents for which the narrowest pass finds 99.7 % of the 30 nearest
FRESH = 64  # last changed documents to compare as well: the index may have no path to a new, dissimilar one
SCAN_SHARE = 8  # scan all documents if the index would have to return more than one in this many

STATE = """
SELECT version, epoch, documents,
       EXISTS(SELECT FROM pg_index WHERE indexrelid = to_regclass('vectors_near') AND indisvalid),
       ARRAY(SELECT number FROM labels WHERE number > known.last ORDER BY number),
       ARRAY(SELECT name FROM labels WHERE number > known.last ORDER BY number)
FROM meta, LATERAL (SELECT CASE WHEN epoch = %(epoch)s THEN %(last)s ELSE 0 END) known(last)
"""

SEARCH = """
WITH fresh AS MATERIALIZED (
  SELECT row, embedding FROM (SELECT row FROM documents ORDER BY changed DESC LIMIT {fresh}) d JOIN vectors USING (row)
)
SELECT m.epoch, m.documents, cardinality(hidden.rows), found.distance,
       (SELECT id FROM documents d WHERE d.row = found.row),
       ARRAY(SELECT label FROM document_labels l WHERE l.row = found.row ORDER BY place)
FROM (SELECT epoch, documents FROM meta LIMIT 1) m
CROSS JOIN (SELECT ARRAY(SELECT row FROM documents WHERE sha256(id) = ANY(%(exclude)b::bytea[])) AS rows) hidden
LEFT JOIN unnest(%(queries)b::vector[]) WITH ORDINALITY q(query, place) ON true
LEFT JOIN LATERAL (
  SELECT near.row, near.embedding <#> q.query AS distance FROM ({candidates}) near
  WHERE q.query IS NOT NULL GROUP BY near.row, distance ORDER BY distance, near.row LIMIT {k}
) found ON true
ORDER BY q.place, found.distance, found.row
"""
ALL = "SELECT row, embedding FROM vectors v WHERE v.row <> ALL(hidden.rows)"
NEAREST = (
    f"({ALL} ORDER BY embedding::halfvec({{d}}) <#> q.query::halfvec({{d}}) LIMIT {{fetch}}) "
    "UNION ALL SELECT row, embedding FROM fresh WHERE row <> ALL(hidden.rows)"
)


_WIDTHS: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()


@dataclass(frozen=True)
class Labels:
    """Label names with the numbers under which they are stored, ascending; their positions are the columns."""

    numbers: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    @cached_property
    def number_of(self) -> dict[str, int]:
        """Map names to numbers."""
        return dict(zip(self.names, self.numbers, strict=True))

    @cached_property
    def column_of(self) -> dict[int, int]:
        """Map numbers to columns."""
        return {number: column for column, number in enumerate(self.numbers)}


@dataclass(frozen=True)
class State:
    """What a process remembers about a store."""

    version: int = -1
    epoch: int = -1
    documents: int = 0
    indexed: bool = False
    labels: Labels = Labels()

    def renewed(self, connection: Connection) -> State:
        """Return the current state."""
        row: Any = connection.execute("SELECT version, epoch FROM meta").fetchone()
        return self if row == (self.version, self.epoch) else self.reread(connection)

    def reread(self, connection: Connection) -> State:
        """Return the current state, reading only new labels."""
        known = {"epoch": self.epoch, "last": self.labels.numbers[-1] if self.labels.numbers else 0}
        row: Any = connection.execute(STATE, known, binary=True).fetchone()
        version, epoch, documents, indexed, numbers, names = row
        labels = self.labels if epoch == self.epoch else Labels()
        if numbers:
            new = (name.decode() for name in names)
            labels = Labels((*labels.numbers, *numbers), (*labels.names, *new))
        return State(version, epoch, documents, indexed, labels)


def by_index(documents: int, k: int) -> bool:
    """Return whether the index is worth using for k of this many documents."""
    return documents >= max(INDEX_FROM, SCAN_SHARE * max(FEWEST, OVERFETCH * k))


def width_for(documents: int) -> int:
    """Return how many candidates a pass over the index keeps for this many documents: √N keeps recall above 0.99."""
    wanted = NARROWEST * math.sqrt(documents / NARROW)
    return min(WIDEST, max(NARROWEST, 100 * math.ceil(wanted / 100)))


def widen(connection: Connection, documents: int) -> None:
    """Set the search width of a connection for the size of the store, and remember it."""
    if _WIDTHS.get(connection) != (width := width_for(documents)):
        connection.execute("SELECT set_config('hnsw.ef_search', %s, false)", (str(width),))
        _WIDTHS[connection] = width


def nearest(
    connection: Connection, state: State, documents: int, queries: Any, k: int, hidden: Sequence[bytes]
) -> tuple[Neighbours, State, int]:
    """Find the k nearest of the (n,d) unit queries; also return the state of the store and its size.

    `documents` is its size as last seen, and `hidden` are digests of ids. If the index returns too few, which can
    happen if much is hidden, all documents are scanned.
    """
    exact = not (state.indexed and by_index(documents, k))
    if not exact:
        widen(connection, documents)
    values = {"exclude": list(hidden), "queries": [Vector(query) for query in queries]}
    while True:
        rows = connection.execute(_statement(queries.shape[1], k, exact), values, binary=True).fetchall()
        epoch, documents, gone = rows[0][:3]
        width = min(k, documents - gone)
        found = [row for row in rows if row[3] is not None]
        if not exact and (len(found) < width * len(queries) or not by_index(documents, k)):
            exact = True
            continue
        if epoch != state.epoch:
            state = state.renewed(connection)
        try:
            return _neighbours(found, len(queries), width, state.labels), state, documents
        except KeyError as error:  # a label was added since the state was read, or removed between two statements
            known, state = state, state.reread(connection)
            if epoch == state.epoch and (state.epoch, state.labels) == (known.epoch, known.labels):
                raise StoreError(
                    "the datastore is damaged: a document has a label that does not exist. Restore it from a copy."
                ) from error


def _statement(dimension: int, k: int, exact: bool) -> str:
    # Numbers are written out, because the planner must know them to choose the index.
    candidates = ALL if exact else NEAREST.format(d=dimension, fetch=max(FEWEST, OVERFETCH * k))
    return SEARCH.format(candidates=candidates, k=k, fresh=0 if exact else FRESH)


def _neighbours(found: Sequence[tuple[Any, ...]], n: int, width: int, labels: Labels) -> Neighbours:
    # Without torch's operations, which cost more than the work on so few numbers.
    column_of = labels.column_of
    columns = [column_of[number] if number >= 0 else ~column_of[~number] for row in found for number in row[5]]
    distances = np.array([row[3] for row in found], np.float32)
    ids = [row[4].decode() for row in found]
    neighbours = Neighbours(
        tuple(tuple(ids[place * width : (place + 1) * width]) for place in range(n)),
        torch.from_numpy(np.clip(-distances, -1, 1).reshape(n, width)),
        torch.tensor([0, *accumulate(len(row[5]) for row in found)]),
        torch.tensor(columns, dtype=torch.int64),
        labels.names,
    )
    return separate_rejected(neighbours) if min(columns, default=0) < 0 else neighbours

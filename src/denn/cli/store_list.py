"""Print stored documents as JSON lines."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from denn.datastore import Datastore
    from denn.types import Which
    from denn.vocabulary import Vocabulary

log = logging.getLogger(__name__)

BATCH = 256  # documents read at once


def show_only(store: Datastore, which: Which, vocabulary: Vocabulary, limit: int | None = None) -> None:
    """Print the selected documents, at most `limit` of them, with the names of labels in the vocabulary."""
    from denn.data.rows import as_row
    from denn.types import Where

    ids = (store.select(which) if isinstance(which, Where) else list(which))[:limit]
    if not ids:
        log.info("No documents match.")
    for start in range(0, len(ids), BATCH):
        for document in store.get(ids[start : start + BATCH]):
            names = vocabulary.names((*document.labels, *document.rejected))
            row = as_row(document) | ({"names": names} if names else {})
            typer.echo(json.dumps(row, ensure_ascii=False))

"""Texts in batches that fit into memory when they are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from denn.errors import DataError

BATCH = 256  # texts scored at a time, fewer if there are very many labels
SCORES_BYTES = 256 * 2**20  # limit for the (texts × labels) matrices of a batch
MATRICES = 10  # float32 matrices of a batch: three witnesses, three combinations, and four for intermediate results


def batch_size(labels: int) -> int:
    """Return how many texts to score at a time with this many labels."""
    return max(1, min(BATCH, SCORES_BYTES // (4 * MATRICES * max(1, labels))))


def check_list(texts: object, call: str) -> None:
    """Reject a string, a table and a mapping, whose items are characters and column names instead of texts."""
    if isinstance(texts, str):
        raise DataError(f"Got one string, expected a list of texts. Write {call}([text]).")
    if hasattr(texts, "columns") or isinstance(texts, Mapping):
        raise DataError(
            f"Got a {type(texts).__name__}, expected a list of texts. Pass its texts: {call}(table['text'])."
        )


def in_batches(texts: Iterable[str], size: Callable[[], int]) -> Iterator[list[str]]:
    """Split texts into batches; raise a DataError for anything that is not a string.

    `size` is called for each batch, because labels may be added meanwhile.
    """
    iterator, before = iter(texts), 0
    while batch := list(islice(iterator, size())):
        for number, text in enumerate(batch, before + 1):
            if not isinstance(text, str):
                raise DataError(f"Text {number} is of type {type(text).__name__}, expected a string.")
        yield batch
        before += len(batch)

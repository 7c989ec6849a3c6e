"""The words that witnesses name for labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from denn.protocols import Witness
from denn.types import Support


def named_words(witnesses: Iterable[Witness], texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
    """Return the words that speak for some labels of each text, from the first witness that names any."""
    for witness in witnesses:
        if type(witness).support is Witness.support:
            continue  # it names none
        found = witness.support(texts, columns)
        if any(words for text in found for words in text):
            return found
    return [[[] for _ in some] for some in columns]

"""The words that support labels, according to the witnesses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from denn.prediction_types import Support
from denn.protocols import Witness


def named_words(witnesses: Iterable[Witness], texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
    """Return the words that support some labels of each text, from the first witness that provides any."""
    for witness in witnesses:
        if type(witness).support is Witness.support:
            continue  # it provides none
        found = witness.support(texts, columns)
        if any(words for text in found for words in text):
            return found
    return [[[] for _ in some] for some in columns]

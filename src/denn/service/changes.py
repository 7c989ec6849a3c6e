"""Count the documents changed since the last refit, from the history of the datastore."""

from __future__ import annotations

from typing import cast

from denn.bundle_card import Card
from denn.datastore import Datastore
from denn.stores.copying import SOURCE

TRAINING = 1  # number of the change that training makes


class Changes:
    """Count the documents changed since the last refit, reading each change once."""

    def __init__(self) -> None:
        self._start = self._seen = -1  # last change that the refit used, and last change counted
        self._total = 0

    def count(self, store: Datastore, card: Card) -> int:
        """Return the number of documents added, changed or removed; one that changed twice counts twice."""
        start = learnt_until(card)
        newest = store.history(1)
        number = newest[0].number if newest else 0
        if start != self._start or number < self._seen:  # another refit, or another datastore
            self._start, self._total = start, 0
            self._seen = start if start <= number else 0
        if number > self._seen:
            later = [change for change in store.history(number - self._seen) if change.number > self._seen]
            self._total += sum(change.documents for change in later if change.source != SOURCE)
            self._seen = max((change.number for change in later), default=number)
        return self._total


def learnt_until(card: Card) -> int:
    """Return the number of the last change that the model was trained or refitted on."""
    return cast(int, (card.refitted or {}).get("change", TRAINING))

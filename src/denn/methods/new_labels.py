"""Thresholds of labels that only the datastore knows, from its own documents, each judged without itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from denn.core.thresholds import GRID, tune_per_label
from denn.errors import StoreError
from denn.types import Datastore, Neighbours, Where

POSITIVES = 64  # documents of a label that are judged
RIVALS = 256  # documents without it that are judged beside them
TOLERANCE = 0.1  # by which share the number of its documents may change before a label is judged again


class Voting(Protocol):
    """A method whose stored documents vote."""

    parameters: Any  # with k, how many of them
    store: Datastore

    def search(self, embeddings: Tensor, k: int, own_ids: Sequence[str | None] | None = None) -> Neighbours:
        """Find the k nearest documents of embedded texts; `own_ids` names the stored document that each itself is."""
        ...

    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Let neighbours vote: (n,L)."""
        ...


class NewLabels:
    """The thresholds of labels without validation data, kept until the number of a label's documents has changed."""

    def __init__(self, method: Voting, fallbacks: Mapping[str, float]) -> None:
        self.method = method
        self.fallbacks = fallbacks  # score → the threshold of all labels, towards which a new one is drawn
        self._found: dict[str, tuple[int, Mapping[str, float]]] = {}  # label → its documents then, its thresholds

    def thresholds(self, votes: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return each score's (m,) thresholds for labels with these (n,m) votes.

        Those are looked for that can decide something; a label without a vote above the grid gets the fallback.
        """
        voted = (votes > GRID[0]).any(0).nonzero().flatten()
        counts = self.method.store.label_counts() if len(voted) else {}
        found = [self._thresholds(names[column], counts.get(names[column], 0)) for column in voted.tolist()]
        cuts = {}
        for score, fallback in self.fallbacks.items():
            cuts[score] = torch.full((len(names),), fallback, dtype=torch.float32)
            cuts[score][voted] = torch.tensor([cut[score] for cut in found], dtype=torch.float32)
        return cuts

    def _thresholds(self, name: str, count: int) -> Mapping[str, float]:
        """Return a label's thresholds, estimated anew where its number of documents is not what it was."""
        if count < 2:  # nobody can judge the only one
            return self.fallbacks
        then, cuts = self._found.get(name, (0, self.fallbacks))
        if abs(count - then) > TOLERANCE * then:
            try:
                cuts = self._estimate(name)
            except StoreError:  # a document went between two looks at the store: the next call tries again
                return cuts
            self._found[name] = count, cuts
        return cuts

    def _estimate(self, name: str) -> Mapping[str, float]:
        """Tune on documents of the label and on those without it that are nearest to them, each left out of its vote.

        A document that is judged stands for those of the label beside it that are not, or the rivals would seem to be
        more than they are. Rivals that are not judged need no stand-in: they are farther away than those that are, and
        the few votes that they get would make them wrong only at thresholds that those rule out.
        """
        store, k = self.method.store, self.method.parameters.k
        carriers = store.select(Where(labels=(name,)))
        positives = _spread(carriers, POSITIVES)
        rivals = _nearest(store.search(store.vectors(positives), k, carriers), RIVALS)
        judged = [*positives, *rivals]
        votes = self._votes(self.method.search(store.vectors(judged), k, judged), store.labels.index(name))
        if not (votes[: len(positives)] > GRID[0]).any():  # none finds another one: nothing to learn from
            return self.fallbacks
        stand_ins = torch.arange(len(carriers)) * len(positives) // len(carriers)
        votes = torch.cat([votes[stand_ins], votes[len(positives) :]])  # (c+r,1)
        gold = torch.arange(len(votes))[:, None] < len(carriers)
        return {score: float(tune_per_label(votes, gold, cut)) for score, cut in self.fallbacks.items()}

    def _votes(self, found: Neighbours, column: int) -> Tensor:
        """Return the (n,1) votes for one label, without those for all the others."""
        wanted = found.label_columns == column
        before = torch.nn.functional.pad(wanted.cumsum(0), (1, 0))  # wanted entries before each entry
        one = replace(found, offsets=before[found.offsets], label_columns=found.label_columns[wanted] - column)
        return self.method.votes(one, 1)


def _spread(ids: Sequence[str], limit: int) -> list[str]:
    """Return at most so many ids, evenly from oldest to newest."""
    return [ids[place * len(ids) // limit] for place in range(limit)] if len(ids) > limit else list(ids)


def _nearest(found: Neighbours, limit: int) -> list[str]:
    """Return the ids of at most so many neighbours, those first that are nearest to any of the queries."""
    nearest: dict[str, float] = {}
    for ids, row in zip(found.ids, found.similarity.tolist(), strict=True):
        for id, similarity in zip(ids, row, strict=False):
            nearest[id] = max(similarity, nearest.get(id, similarity))
    return sorted(nearest, key=lambda id: (-nearest[id], id))[:limit]

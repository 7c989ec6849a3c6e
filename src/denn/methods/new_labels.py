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
CLOSE, FAR = 128, 128  # documents without it that are judged beside them: the nearest, and some of the next ones
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

    def of(self, names: Sequence[str]) -> dict[str, float]:
        """Return the thresholds of some labels, whether anything votes for them or not."""
        counts = self.method.store.label_counts() if names else {}
        return {name: self._thresholds(name, counts.get(name, 0))["final"] for name in names}

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
        """Tune on documents of the label and on those near them without it, each left out of its own vote.

        Where there are too many to judge, one that is judged stands for those beside it that are not, or F1 would take
        them for fewer than they are. Of the others every near one counts: these are what a threshold goes wrong on.
        """
        store, k = self.method.store, self.method.parameters.k
        carriers = store.select(Where(labels=(name,)))
        others = _by_nearness(store.search(store.vectors(_spread(carriers, POSITIVES)), k, carriers))
        groups = [(carriers, POSITIVES), (others[:CLOSE], CLOSE), (others[CLOSE:], FAR)]
        samples = [_spread(ids, limit) for ids, limit in groups]
        judged = [id for sample in samples for id in sample]
        found = self.method.search(store.vectors(judged), k, judged)
        if name not in found.names:  # it went with its last document between two looks at the store
            return self.fallbacks
        votes = torch.split(self._votes(found, found.names.index(name)), [len(sample) for sample in samples])
        if not (votes[0] > GRID[0]).any():  # none finds another one: nothing to learn from
            return self.fallbacks
        every = torch.cat([_for_all(some, len(ids)) for some, (ids, _) in zip(votes, groups, strict=True)])
        gold = torch.arange(len(every))[:, None] < len(carriers)
        return {score: float(tune_per_label(every, gold, cut)) for score, cut in self.fallbacks.items()}

    def _votes(self, found: Neighbours, column: int) -> Tensor:
        """Return the (n,1) votes for one label, without those for all the others."""
        wanted = found.label_columns == column
        before = torch.nn.functional.pad(wanted.cumsum(0), (1, 0))  # wanted entries before each entry
        one = replace(found, offsets=before[found.offsets], label_columns=found.label_columns[wanted] - column)
        return self.method.votes(one, 1)


def _spread(ids: Sequence[str], limit: int) -> list[str]:
    """Return at most so many ids, evenly from oldest to newest."""
    return [ids[place * len(ids) // limit] for place in range(limit)] if len(ids) > limit else list(ids)


def _for_all(votes: Tensor, count: int) -> Tensor:
    """Return the votes of so many documents from those of the ones that `_spread` took, each for those beside it."""
    return votes[torch.arange(count) * len(votes) // max(1, count)]


def _by_nearness(found: Neighbours) -> list[str]:
    """Return the ids of all neighbours, those first that are nearest to any of the queries."""
    nearest: dict[str, float] = {}
    for ids, row in zip(found.ids, found.similarity.tolist(), strict=True):
        for id, similarity in zip(ids, row, strict=False):
            nearest[id] = max(similarity, nearest.get(id, similarity))
    return sorted(nearest, key=lambda id: (-nearest[id], id))

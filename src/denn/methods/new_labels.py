"""Estimate thresholds of labels that only the datastore knows, from its documents, each judged without itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from denn.core.thresholds import GRID, tune_new_label
from denn.errors import StoreError
from denn.methods.backlog import Backlog
from denn.prediction_types import Neighbours
from denn.protocols import Retriever
from denn.types import Where

POSITIVES = 64  # documents of a label to judge
CLOSE, FAR = 128, 128  # documents without it to judge: the nearest, and some of the next nearest
TOLERANCE = 0.1  # share by which the number of its documents may change before a label is judged again


class Allowance:
    """A budget of seconds: a burst at a time, and a share of the time in the long run."""

    def __init__(self, seconds: float, share: float) -> None:
        self._most, self._share = seconds, share
        self._left, self._seen = seconds, time.monotonic()

    def __bool__(self) -> bool:
        now = time.monotonic()
        self._left = min(self._most, self._left + self._share * (now - self._seen))
        self._seen = now
        return self._left > 0

    def spend(self, seconds: float) -> None:
        """Subtract the time spent, even if it is more than was left."""
        self._left -= seconds


class NewLabels:
    """The thresholds of labels without validation data, kept until the number of a label's documents changes.

    They are estimated on request, so that the result depends on the datastore alone. After `defer`, requests return
    what is known so far, and a thread estimates the rest.
    """

    def __init__(self, method: Retriever, fallbacks: Mapping[str, float]) -> None:
        self.method = method
        self.fallbacks = fallbacks  # score → the overall threshold, towards which a new one is shrunk
        self._found: dict[str, tuple[int, Mapping[str, float]]] = {}  # label → its documents then, its thresholds
        self._changing = threading.Condition()  # held to read or change _found and _estimating, not to estimate
        self._estimating: set[str] = set()
        self._backlog: Backlog | None = None
        self._allowance: Allowance | None = None

    def defer(self, seconds: float, share: float) -> None:
        """Estimate in the background, except for bursts of `seconds` and a `share` of the time in `thresholds`."""
        self._allowance = Allowance(seconds, share)
        self._backlog = Backlog(self._catch_up, "denn-thresholds")

    def close(self) -> None:
        """Stop background work."""
        if self._backlog is not None:
            self._backlog.close()

    def thresholds(self, votes: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return each score's (m,) thresholds for labels with these (n,m) votes.

        Only thresholds that can decide something are estimated; a label without a vote above the grid gets the
        fallback.
        """
        most = votes.amax(0) if len(votes) else votes.new_zeros(len(names))
        voted = (most > GRID[0]).nonzero().flatten()
        ranked = voted[most[voted].argsort(descending=True)].tolist()  # estimate labels with the highest votes first
        found = self._all([names[column] for column in ranked], self._allowance)
        thresholds = {}
        for score, fallback in self.fallbacks.items():
            thresholds[score] = torch.full((len(names),), fallback, dtype=torch.float32)
            thresholds[score][ranked] = torch.tensor([one[score] for one in found], dtype=torch.float32)
        return thresholds

    def of(self, names: Sequence[str]) -> dict[str, float]:
        """Return the thresholds of some labels, whether or not anything votes for them."""
        return {name: own["final"] for name, own in zip(names, self._all(names, None), strict=True)}

    def _all(self, names: Sequence[str], allowance: Allowance | None) -> list[Mapping[str, float]]:
        """Return the thresholds of labels: all of them, or, if deferred, as many as the allowance permits."""
        counts = self.method.store.label_counts() if names else {}
        if self._backlog is None:
            return [self._current(name, counts) for name in names]
        found, late = [], []
        for name in names:
            if self._is_known(name, counts):
                found.append(self._known(name, counts))
            elif allowance:
                begun = time.monotonic()
                found.append(self._current(name, counts))
                allowance.spend(time.monotonic() - begun)
            else:
                found.append(self._known(name, counts))
                late.append(name)
        self._backlog.put(late[::-1])  # the first one is next
        return found

    def _known(self, name: str, counts: Mapping[str, int]) -> Mapping[str, float]:
        """Return the latest estimate of the thresholds, or the fallbacks if there is none."""
        if counts.get(name, 0) < 2:  # a single document cannot be judged by others
            return self.fallbacks
        return self._found.get(name, (0, self.fallbacks))[1]

    def _is_known(self, name: str, counts: Mapping[str, int]) -> bool:
        """Return whether a label needs no estimate: its number of documents has hardly changed since the last one."""
        count, then = counts.get(name, 0), self._found.get(name, (0, None))[0]
        return count < 2 or abs(count - then) <= TOLERANCE * then

    def _current(self, name: str, counts: Mapping[str, int]) -> Mapping[str, float]:
        """Return a label's thresholds, estimating them again if necessary, but never in two threads at once."""
        with self._changing:
            self._changing.wait_for(lambda: name not in self._estimating)
            if self._is_known(name, counts):
                return self._known(name, counts)
            self._estimating.add(name)
        try:
            self._keep(name, self._estimate(name), counts)
        except StoreError:  # a document was removed between two reads of the store; the next call tries again
            pass
        finally:
            with self._changing:
                self._estimating.discard(name)
                self._changing.notify_all()
        return self._known(name, counts)

    def _keep(self, name: str, thresholds: Mapping[str, float], counts: Mapping[str, int]) -> None:
        """Keep an estimate, and drop labels that are no longer in the datastore."""
        with self._changing:
            self._found[name] = counts[name], thresholds
            for gone in self._found.keys() - counts.keys():
                del self._found[gone]

    def _catch_up(self, name: str) -> None:
        """Estimate one label, in the background."""
        self._current(name, self.method.store.label_counts())

    def _estimate(self, name: str) -> Mapping[str, float]:
        """Tune on documents of the label and on nearby documents without it, each excluded from its own vote.

        If there are too many to judge, each judged document stands for the unjudged ones around it; otherwise F1 would
        underestimate their number. Every close document without the label counts, because there a threshold goes wrong.
        """
        store, k = self.method.store, self.method.parameters.k
        carriers = store.select(Where(labels=(name,)))
        if not carriers:  # they were removed between two reads
            return self.fallbacks
        others = _by_nearness(store.search(store.vectors(_spread(carriers, POSITIVES)), k, carriers))
        groups = [(carriers, POSITIVES), (others[:CLOSE], CLOSE), (others[CLOSE:], FAR)]
        samples = [_spread(ids, limit) for ids, limit in groups]
        judged = [id for sample in samples for id in sample]
        found = self.method.search(store.vectors(judged), k, judged)
        if name not in found.names:  # it was removed with its last document between two reads of the store
            return self.fallbacks
        votes = torch.split(self._votes(found, found.names.index(name)), [len(sample) for sample in samples])
        if not (votes[0] > GRID[0]).any():  # no document finds another one, so there is nothing to learn from
            return self.fallbacks
        every = torch.cat([_for_all(some, len(ids)) for some, (ids, _) in zip(votes, groups, strict=True)])
        gold = torch.arange(len(every)) < len(carriers)
        return {score: tune_new_label(every[:, 0], gold, fallback) for score, fallback in self.fallbacks.items()}

    def _votes(self, found: Neighbours, column: int) -> Tensor:
        """Return the (n,1) votes for one label, without those for all the others."""
        offsets, columns = _only(column, found.offsets, found.label_columns)
        one = replace(found, offsets=offsets, label_columns=columns)
        if len(found.rejected_columns):
            offsets, columns = _only(column, found.rejected_offsets, found.rejected_columns)
            one = replace(one, rejected_offsets=offsets, rejected_columns=columns)
        return self.method.votes(one, 1)


def _only(column: int, offsets: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Keep only one of the sparse columns, which becomes the first."""
    wanted = columns == column
    before = torch.nn.functional.pad(wanted.cumsum(0), (1, 0))  # wanted entries before each entry
    return before[offsets], columns[wanted] - column


def _spread(ids: Sequence[str], limit: int) -> list[str]:
    """Return at most `limit` ids, evenly spaced from oldest to newest."""
    return [ids[place * len(ids) // limit] for place in range(limit)] if len(ids) > limit else list(ids)


def _for_all(votes: Tensor, count: int) -> Tensor:
    """Expand the votes of the documents that `_spread` chose to all `count` documents, each to those around it."""
    return votes[torch.arange(count) * len(votes) // max(1, count)]


def _by_nearness(found: Neighbours) -> list[str]:
    """Return the ids of all neighbours, those nearest to any of the queries first."""
    nearest: dict[str, float] = {}
    for ids, row in zip(found.ids, found.similarity.tolist(), strict=True):
        for id, similarity in zip(ids, row, strict=False):
            nearest[id] = max(similarity, nearest.get(id, similarity))
    return sorted(nearest, key=lambda id: (-nearest[id], id))

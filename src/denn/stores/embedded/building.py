"""Build an approximate index: centroids, codes, and the number of lists that a search must read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, TypeAlias

import torch
from torch import Tensor

from denn.stores.embedded import index_file
from denn.stores.embedded.approximate import TOP, Approximate, candidates, faiss
from denn.stores.embedded.centroids import Nearest, k_means
from denn.stores.embedded.mapped import MappedVectors

MINIMUM = 16  # documents; exact search is as good for fewer
LISTS_PER_ROOT = 4  # lists for each √N documents
MOST_LISTS = 65_536
PER_LIST = 40  # training vectors
ENCODER_SAMPLE = 20_000  # vectors that determine the ranges of the 8-bit codes
SAMPLE = 200  # stored vectors for measuring recall
GOAL = 0.998  # recall of the TOP nearest; for new texts it is a little lower
FEWEST_PROBES = 192  # or an eighth of the lists; see `_fewest_probes`
SEEN = 128  # nearest kept for each sample, so that ties at place TOP count as found
BLOCK = 32_768  # vectors read at a time

Read: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]  # ascending rows → those that exist, their vectors


@dataclass(frozen=True)
class Moment:
    """The state of a store that an index is built for."""

    version: int
    epoch: int
    stamp: int


def lists_for(documents: int) -> int:
    """Return the number of lists for this many documents."""
    return max(1, min(int(LISTS_PER_ROOT * documents**0.5), documents // 16, MOST_LISTS))


def _still_fits(old: int, lists: int, documents: int) -> bool:
    """Return whether old centroids fit a store of half to twice the size, most of which they were not trained on.

    Vectors that they were trained on are found too easily for a true recall.
    """
    return 0.7 < lists / old < 1.42 and documents > 2 * PER_LIST * lists


@torch.no_grad()
def build(
    rows: Tensor,
    read: Read,
    moment: Moment,
    file: BinaryIO,
    old: Approximate | None = None,
    check: Callable[[], None] = lambda: None,
) -> Approximate | None:
    """Index the documents of these ascending rows in a new file; return None if too few of them are left.

    The centroids of an index for a store of half to twice the size are reused, except after a vacuum: a centroid could
    be a forgotten vector. `check` is called between steps and may raise.
    """
    begun = time.perf_counter()
    generator = torch.Generator().manual_seed(moment.version)
    lists = lists_for(len(rows))
    again = old is not None and old.epoch == moment.epoch and _still_fits(old.ivf.nlist, lists, len(rows))
    wanted = max(ENCODER_SAMPLE, 0 if again else PER_LIST * lists)
    drawn = torch.randperm(len(rows), generator=generator)[:wanted]
    parts = []
    for part in torch.split(rows[drawn.sort().values], BLOCK):
        check()
        parts.append(read(part))
    known, training = (torch.cat(column) for column in zip(*parts, strict=True))
    if len(known) < min(MINIMUM, len(rows)) or len(rows) < MINIMUM:
        return None
    shuffled = torch.randperm(len(known), generator=generator)
    held = min(SAMPLE, len(known) // 4)  # the trial's vectors do not train centroids, just as new texts do not
    if old is not None and again:
        centroids = torch.from_numpy(old.ivf.quantizer.reconstruct_n(0, old.ivf.nlist))
    else:
        centroids = k_means(training[shuffled[held:]], lists, check)
    ivf = _empty(centroids, training[shuffled[:ENCODER_SAMPLE]])
    trial = Trial(known[shuffled[:held]], training[shuffled[:held]])
    del training, parts
    body = index_file.Body(file)
    covered = _fill(ivf, centroids, rows, read, body, trial, check)
    if len(covered) < MINIMUM:
        return None
    file.flush()
    vectors = MappedVectors(file, len(covered), centroids.shape[1], index_file.BLOCK)
    facts = (moment.version, moment.epoch, moment.stamp)
    index = Approximate(ivf, vectors, covered, *facts, probes=1, recall=0.0, sample=len(trial.rows), seconds=0.0)
    probes, recall = _fewest_probes(index, trial, check)
    index = replace(index, probes=probes, recall=recall, seconds=time.perf_counter() - begun)
    index_file.finish(index, body)
    return index


def _empty(centroids: Tensor, training: Tensor) -> Any:
    """Create an empty index of 8-bit codes."""
    library = faiss()
    quantizer = library.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids.numpy())
    kind, metric = library.ScalarQuantizer.QT_8bit, library.METRIC_INNER_PRODUCT
    ivf = library.IndexIVFScalarQuantizer(quantizer, centroids.shape[1], len(centroids), kind, metric)
    assigned = Nearest(centroids)(training)
    ivf.train_encoder(len(training), library.swig_ptr(training.numpy()), library.swig_ptr(assigned.numpy()))
    ivf.is_trained = True
    return ivf


def _fill(
    ivf: Any,
    centroids: Tensor,
    rows: Tensor,
    read: Read,
    body: index_file.Body,
    trial: Trial,
    check: Callable[[], None],
) -> Tensor:
    """Add the documents, writing their vectors and showing them to the trial; return the rows that still existed."""
    library = faiss()
    covered, count, nearest = [], 0, Nearest(centroids)
    for part in torch.split(rows, BLOCK):
        check()
        found, vectors = read(part)
        positions = torch.arange(count, count + len(found))
        arrays = (vectors.numpy(), positions.numpy(), nearest(vectors).numpy())
        ivf.add_core(len(found), *(library.swig_ptr(array) for array in arrays))
        body.write(vectors.numpy().astype("<f4", copy=False).data)
        trial.see(found, vectors, positions)
        covered.append(found)
        count += len(found)
    return torch.cat(covered)


class Trial:
    """Stored vectors used as queries, and their nearest others among the vectors shown."""

    def __init__(self, rows: Tensor, queries: Tensor) -> None:
        self.rows, self.queries = rows, queries
        self.similarity = torch.empty(len(rows), 0)
        self.positions = torch.empty(len(rows), 0, dtype=torch.int64)

    def see(self, rows: Tensor, vectors: Tensor, positions: Tensor) -> None:
        """Include more stored vectors."""
        scores = (self.queries @ vectors.T).masked_fill_(self.rows[:, None] == rows, -torch.inf)
        similarity = torch.cat([self.similarity, scores], 1)
        self.similarity, order = similarity.topk(min(SEEN, similarity.shape[1]), dim=1)
        self.positions = torch.cat([self.positions, positions.expand(len(scores), -1)], 1).gather(1, order)

    def recall(self, proposed: Tensor) -> float:
        """Return the share of the TOP nearest among the (n,c) proposed positions; ties with the last count."""
        top = min(TOP, int((self.similarity > -torch.inf).sum(1).min()))
        near = self.similarity >= self.similarity[:, top - 1 : top] - 1e-6
        found = (proposed[:, :, None] == self.positions[:, None, :]).any(1) & near
        return float(found.sum(1).clamp_(max=top).sum()) / (top * len(found))


def _fewest_probes(index: Approximate, trial: Trial, check: Callable[[], None]) -> tuple[int, float]:
    """Return the smallest number of lists, to an eighth, that reaches the goal, or all of them, and its recall.

    At least FEWEST_PROBES are searched: if stored documents are very similar, a few lists are enough for them, but not
    for a new text. With ten million vectors derived from real ones, 64 lists found 0.999 of the neighbours of stored
    documents and 0.959 of those of new texts; 192 found 0.988 of the latter.
    """

    def recall(probes: int) -> float:
        check()
        proposed = index.propose(trial.queries.numpy(), candidates(TOP) + 1, None, probes)  # + 1 for itself
        return trial.recall(torch.from_numpy(proposed))

    low = high = max(1, min(FEWEST_PROBES, index.ivf.nlist // 8))
    reached = recall(high)
    while reached < GOAL and high < index.ivf.nlist:
        low, high = high, min(2 * high, index.ivf.nlist)
        reached = recall(high)
    while high - low > max(1, math.ceil(high / 8)):
        middle = (low + high) // 2
        if (share := recall(middle)) < GOAL:
            low = middle
        else:
            high, reached = middle, share
    return high, reached

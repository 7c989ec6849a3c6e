"""ML-kNN: the labels of the nearest training documents by TF-IDF, weighted by how reliable they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from pydantic import PositiveFloat
from safetensors.numpy import save_file
from torch import Tensor

from denn.clock import Clock
from denn.errors import BundleError
from denn.prediction_types import Scores
from denn.protocols import Method, Progress
from denn.training.bounds import Neighbourhood
from denn.types import Corpus, Fitted, LabelSpace, Stage
from denn.untrusted import REMEDY, read_tensors
from denn_bench.core.mlknn import neighbour_histograms, posterior
from denn_bench.systems.tfidf import Matrix, Tfidf, TfidfParameters, array_types, from_arrays, in_threads, to_arrays

FILE = "neighbours.safetensors"
QUERIES = 64  # texts compared with all training documents at a time, by each thread
CELLS = 2**24  # maximum size of their dense rows
COUNTED = 1024  # training documents whose neighbours' labels are counted at a time


@dataclass(frozen=True, kw_only=True)
class MlknnParameters(TfidfParameters):
    """Parameters; the method is deterministic, and the seed exists because every method has one."""

    k: Neighbourhood = 10
    smoothing: PositiveFloat = 1.0  # s, added to every count


class MLkNN(Method):
    """The method of Zhang and Zhou, 2007. A document that shares no term with a text is not its neighbour."""

    Parameters = MlknnParameters
    features: Tfidf
    known: Matrix  # (N,V) float32
    labels: Matrix  # (N,L) int32 of ones
    with_label: Tensor  # (L,k+1)
    without_label: Tensor  # (L,k+1)

    def __init__(self, parameters: MlknnParameters) -> None:
        self.parameters = parameters
        self.names: tuple[str, ...] = ()

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Find the neighbours of every training document among the others, and count their labels."""
        from scipy.sparse import csr_matrix

        p, begun = self.parameters, time.monotonic()
        progress.start(Stage("reading words"))
        self.names = corpus.labels.names
        self.features, known = Tfidf.of([document.text for document in corpus.train], p)
        gold = corpus.labels.matrix(corpus.train)
        self.known, self.labels = known.astype("float32"), csr_matrix(gold.numpy(), dtype="int32")
        progress.start(Stage("finding neighbours", len(gold)))
        found = nearest(self.known, self.known, p.k, p.jobs, own=True, report=progress.advance)
        histograms = torch.zeros(2, len(self.names), p.k + 1, dtype=torch.int64)
        for start in range(0, len(gold), COUNTED):
            some = slice(start, start + COUNTED)
            histograms += torch.stack(neighbour_histograms(self._near(found[some]), gold[some], p.k))
        self.with_label, self.without_label = histograms
        return Fitted({"seconds": round(time.monotonic() - begun, 1), "terms": known.shape[1]}, corpus)

    def _near(self, found: Matrix) -> Tensor:
        """Return how many neighbours carry each label, (n,L) int64, from the (n,N) ones of `nearest`."""
        return torch.from_numpy((found @ self.labels).toarray()).long()

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts: (n,L)."""
        p = self.parameters
        found = nearest(self.features(texts).astype("float32"), self.known, p.k, p.jobs)
        chances = posterior(self._near(found), self.with_label, self.without_label, p.smoothing)
        return Scores(chances.float(), self.names)

    def save(self, folder: Path) -> None:
        """Save terms, training documents with their labels, and counts."""
        self.features.save(folder)
        counts = {"with_label": self.with_label.numpy(), "without_label": self.without_label.numpy()}
        save_file(to_arrays(self.known, "known") | to_arrays(self.labels, "labels") | counts, folder / FILE)

    @classmethod
    def load(cls, folder: Path, parameters: MlknnParameters, labels: LabelSpace) -> Self:
        """Load what `save` wrote."""
        self = cls(parameters)
        self.names, self.features = labels.names, Tfidf.load(folder, parameters)
        file, counts = folder / FILE, ("I64", (len(labels), parameters.k + 1))
        expected = array_types("known") | array_types("labels", "I32")
        arrays = read_tensors(file, expected | {"with_label": counts, "without_label": counts}, BundleError)
        self.known = from_arrays(arrays, "known", None, self.features.terms, file)
        self.labels = from_arrays(arrays, "labels", self.known.shape[0], len(labels), file)
        self.with_label, self.without_label = arrays["with_label"], arrays["without_label"]
        size = self.known.shape[0]
        if any(bool(((some < 0) | (some > size)).any()) for some in (self.with_label, self.without_label)):
            raise BundleError(f"{file} counts more documents than there are. {REMEDY}")
        if (self.labels.data != 1).any() or not self.labels.has_canonical_format:
            raise BundleError(f"{file}: a document carries a label more than once. {REMEDY}")
        return self


def nearest(
    queries: Matrix, known: Matrix, k: int, jobs: int | None, *, own: bool = False,
    report: Callable[[int], None] | None = None,
) -> Matrix:  # fmt: skip
    """Return (n,N) int32 ones at the k nearest of (N,V) rows by cosine similarity for each of (n,V) rows, of norm 1.

    Rows without a common term do not count. `own` means that the queries are the known rows; none is its own neighbour.
    """
    import numpy as np
    from scipy.sparse import csr_matrix, vstack

    size, (n, terms) = known.shape[0], queries.shape
    block = max(1, min(QUERIES, CELLS // max(1, terms)))
    k = min(k, size - own)

    def some(number: int) -> Matrix:
        start = number * block
        rows = queries[start : start + block].toarray()  # (b,V)
        # Nearly all pairs share a frequent term, so the product would take twice as long with sparse queries.
        cosine = torch.from_numpy(np.ascontiguousarray((known @ np.ascontiguousarray(rows.T)).T))  # (b,N)
        if own:
            cosine[torch.arange(len(rows)), start + torch.arange(len(rows))] = -1
        values, columns = cosine.topk(k)  # (b,k)
        place, rank = (values > 0).nonzero(as_tuple=True)
        ones = np.ones(len(place), dtype=np.int32)
        return csr_matrix((ones, (place.numpy(), columns[place, rank].numpy())), shape=(len(rows), size))

    blocks = []
    for number, found in enumerate(in_threads(some, -(-n // block), jobs), 1):
        blocks.append(found)
        if report:
            report(min(n, number * block))
    return vstack(blocks, format="csr")

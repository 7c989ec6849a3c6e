"""Binary relevance: TF-IDF with one linear support vector machine per label, a simple baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.numpy import save_file
from torch import Tensor

from denn.clock import Clock
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.errors import BundleError
from denn.prediction_types import Scores
from denn.protocols import Method, Progress
from denn.types import Corpus, Document, Fitted, LabelSpace, Stage
from denn.untrusted import read_tensors
from denn_bench.systems.linear import LinearParameters, by_term, decision_values, learn, sparse_row
from denn_bench.systems.tfidf import Matrix, Tfidf, array_types, from_arrays, in_threads, to_arrays

FILE = "machines.safetensors"
COSTS = (0.1, 1.0, 10.0)
GRID = tuple(step / 50 for step in range(-50, 51))  # decision values; 0 is the SVM's own threshold


@dataclass(frozen=True, kw_only=True)
class BrParameters(LinearParameters):
    """Parameters; the method is deterministic, and the seed exists because every method has one."""

    tune_cost: bool = False  # choose 0.1, 1 or 10 by micro-F1 on validation instead of `cost`


class BR(Method):
    """One independent SVM per label. Scores are sigmoids of decision values."""

    Parameters = BrParameters
    features: Tfidf
    weights: Matrix  # (V,L)
    bias: Any  # (L,)

    def __init__(self, parameters: BrParameters) -> None:
        self.parameters = parameters
        self.names: tuple[str, ...] = ()

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Train the SVMs, for several costs if the cost is tuned."""
        p, begun = self.parameters, time.monotonic()
        progress.start(Stage("reading words"))
        self.names = corpus.labels.names
        self.features, known = Tfidf.of([document.text for document in corpus.train], p)
        gold = corpus.labels.matrix(corpus.train)
        costs = COSTS if p.tune_cost and corpus.valid else (p.cost,)
        if p.tune_cost and not corpus.valid:
            progress.note(f"there is no validation split to tune the cost on, so it stays at {p.cost:g}")
        tried: dict[str, float] = {}
        for cost in costs:
            progress.start(Stage(f"learning labels at cost {cost:g}", len(self.names), "labels"))
            found = machines(known, gold, cost, p, progress.advance)
            score = self._judge(corpus, *found) if len(costs) > 1 else 0.0
            if score > max(tried.values(), default=-1.0):
                (self.weights, self.bias), chosen = found, cost
            tried[f"{cost:g}"] = score
        facts = {"cost": chosen, "terms": known.shape[1], "weights": int(self.weights.nnz)}
        tuning = {"valid_micro_f1": tried} if len(costs) > 1 else {}
        return Fitted({"seconds": round(time.monotonic() - begun, 1), **facts, **tuning}, corpus)

    def _judge(self, corpus: Corpus, weights: Matrix, bias: Any) -> float:
        """Return the micro-F1 on validation at its best threshold."""
        rows = self.features([document.text for document in corpus.valid])
        scores, gold = torch.sigmoid(decision_values(rows, weights, bias)), corpus.labels.matrix(corpus.valid)
        return multilabel_scores(decide(scores, tune_global(scores, gold)), gold)["micro_f1"]

    def decisions(self, texts: Sequence[str]) -> Tensor:
        """Return the (n,L) float32 decision values of texts; positive means yes."""
        return decision_values(self.features(texts), self.weights, self.bias).float()

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts: (n,L); a decision value of 0 becomes 0.5."""
        return Scores(torch.sigmoid(self.decisions(texts)), self.names)

    def save(self, folder: Path) -> None:
        """Save terms and SVMs."""
        self.features.save(folder)
        save_file(to_arrays(self.weights, "weights") | {"bias": self.bias}, folder / FILE)

    @classmethod
    def load(cls, folder: Path, parameters: BrParameters, labels: LabelSpace) -> Self:
        """Load what `save` wrote."""
        self = cls(parameters)
        self.names, self.features = labels.names, Tfidf.load(folder, parameters)
        expected = array_types("weights") | {"bias": ("F64", (len(labels),))}
        arrays = read_tensors(folder / FILE, expected, BundleError)
        self.weights = from_arrays(arrays, "weights", self.features.terms, len(labels), folder / FILE)
        self.bias = arrays["bias"].numpy()
        return self

    @classmethod
    def decision_scores(
        cls, train: Sequence[Document], texts: Sequence[str], labels: LabelSpace, *, cost: float = 1.0, jobs: int = 2
    ) -> Tensor:
        """Train one SVM per label and return the float32 (n,L) decision values of the texts; positive means yes."""
        self = cls(BrParameters(cost=cost, jobs=jobs, prune=0.0))
        self.features, known = Tfidf.of([document.text for document in train], self.parameters)
        self.weights, self.bias = machines(known, labels.matrix(train), cost, self.parameters)
        return self.decisions(texts)

    @staticmethod
    def tune_decision(scores: Tensor, gold: Tensor) -> float:
        """Return the decision value with the best micro-F1 on (n,L) scores of a validation split."""
        return tune_global(scores, gold, GRID)


def machines(
    known: Matrix, gold: Tensor, cost: float, parameters: LinearParameters, report: Callable[[int], None] | None = None
) -> tuple[Matrix, Any]:
    """Train one SVM per label of (N,L) bool on (N,V) rows: (V,L) weights and (L,) biases."""
    import numpy as np

    columns = gold.T.contiguous().numpy()

    def one(column: int) -> tuple[Matrix, float]:
        weights, bias = learn(known, columns[column], cost)
        return sparse_row(weights, parameters.prune), bias

    rows, biases = [], []
    for row, bias in in_threads(one, len(columns), parameters.jobs):
        rows.append(row)
        biases.append(bias)
        if report:
            report(len(rows))
    return by_term(rows, known.shape[1]), np.array(biases)

"""Classifier chains: TF-IDF with one linear SVM per label that sees the labels before it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from safetensors.numpy import save_file
from torch import Tensor

from denn.clock import Clock
from denn.errors import BundleError, ConfigError
from denn.prediction_types import Scores
from denn.protocols import Method, Progress
from denn.types import Corpus, Fitted, LabelSpace, Stage
from denn.untrusted import REMEDY, read_tensors
from denn_bench.core.chain import follow_chain
from denn_bench.systems.linear import LinearParameters, by_term, decision_values, learn, sparse_row
from denn_bench.systems.tfidf import Matrix, Tfidf, array_types, from_arrays, in_threads, to_arrays

FILE = "chains.safetensors"


@dataclass(frozen=True, kw_only=True)
class CcParameters(LinearParameters):
    """Parameters of classifier chains."""

    # more than one: an ensemble with random orders and bootstrap samples
    chains: Annotated[int, Field(ge=1, le=10_000)] = 1
    order: Literal["frequency", "random"] = "frequency"  # of a single chain: frequent labels first, or random
    label_weight: PositiveFloat = 0.3  # weight of a label feature; a text's features have norm 1
    max_labels: PositiveInt = 1000  # the SVMs of a chain decide one after the other


@dataclass(frozen=True)
class Chain:
    """The SVMs of one order."""

    order: Any  # (L,) int64, columns in decision order
    weights: Matrix  # (V,L)
    links: Any  # (L,L) float64; [i, j] is added to the decision value of label j if label i is set
    bias: Any  # (L,)

    def decisions(self, rows: Matrix) -> Tensor:
        """Return the (n,L) decision values of (n,V) rows, decided one after the other."""
        values = decision_values(rows, self.weights, self.bias)
        return follow_chain(values, torch.from_numpy(self.links), self.order.tolist())


class CC(Method):
    """Read's chains: true labels are features in training, predicted labels afterwards.

    The final score is the mean over chains of the sigmoids of decision values. It ranks labels, which the votes of few
    chains cannot, and is above 0.5 nearly always when the majority votes yes. The votes, which decide in the original
    ensemble, are a part.
    """

    Parameters = CcParameters
    features: Tfidf
    chains: list[Chain]

    def __init__(self, parameters: CcParameters) -> None:
        self.parameters = parameters
        self.names: tuple[str, ...] = ()

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Train the chains, one after the other."""
        import numpy as np

        p, begun, count = self.parameters, time.monotonic(), len(corpus.labels)
        if count > p.max_labels:
            raise ConfigError(
                f"Got {count} labels, expected at most max_labels = {p.max_labels} for a chain, whose SVMs decide "
                f"one after the other. Use the method 'br', or allow it with --set max_labels={count}."
            )
        progress.start(Stage("reading words"))
        self.names = corpus.labels.names
        self.features, known = Tfidf.of([document.text for document in corpus.train], p)
        gold = corpus.labels.matrix(corpus.train).numpy()
        chance = np.random.default_rng(p.seed)
        progress.start(Stage("learning labels", p.chains * count, "labels"))
        self.chains = []
        frequent_first = np.argsort(-gold.sum(0), kind="stable")
        for number in range(p.chains):
            order = chance.permutation(count) if p.chains > 1 or p.order == "random" else frequent_first
            rows = chance.integers(len(gold), size=len(gold)) if p.chains > 1 else slice(None)
            report = _from(number * count, progress.advance)
            self.chains.append(learn_chain(known[rows], gold[rows], order, p, report))
        facts = {
            "seconds": round(time.monotonic() - begun, 1),
            "terms": known.shape[1],
            "weights": sum(int(chain.weights.nnz) for chain in self.chains),
        }
        return Fitted(facts, corpus)

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts: (n,L), and the share of chains that vote yes if there are several."""
        rows = self.features(texts)
        decisions = torch.stack([chain.decisions(rows) for chain in self.chains])
        votes = {"votes": (decisions > 0).float().mean(0)} if len(self.chains) > 1 else {}
        return Scores(torch.sigmoid(decisions).mean(0).float(), self.names, votes)

    def save(self, folder: Path) -> None:
        """Save terms and chains."""
        self.features.save(folder)
        arrays: dict[str, Any] = {}
        for number, chain in enumerate(self.chains):
            arrays |= to_arrays(chain.weights, f"{number}.weights")
            arrays |= {f"{number}.{part}": getattr(chain, part) for part in ("order", "links", "bias")}
        save_file(arrays, folder / FILE)

    @classmethod
    def load(cls, folder: Path, parameters: CcParameters, labels: LabelSpace) -> Self:
        """Load what `save` wrote."""
        self = cls(parameters)
        self.names, self.features = labels.names, Tfidf.load(folder, parameters)
        count, file = len(labels), folder / FILE
        expected: dict[str, tuple[str, tuple[int | None, ...]]] = {}
        for number in range(parameters.chains):
            expected |= array_types(f"{number}.weights")
            expected |= {f"{number}.order": ("I64", (count,)), f"{number}.links": ("F64", (count, count))}
            expected |= {f"{number}.bias": ("F64", (count,))}
        arrays = read_tensors(file, expected, BundleError)
        self.chains = []
        for number in range(parameters.chains):
            order, links, bias = (arrays[f"{number}.{part}"].numpy() for part in ("order", "links", "bias"))
            if sorted(order.tolist()) != list(range(count)):
                raise BundleError(f"{file}: chain {number} does not decide every label once. {REMEDY}")
            weights = from_arrays(arrays, f"{number}.weights", self.features.terms, count, file)
            self.chains.append(Chain(order, weights, links, bias))
        return self


def learn_chain(
    known: Matrix, gold: Any, order: Any, parameters: CcParameters, report: Callable[[int], None] | None = None
) -> Chain:
    """Train a chain on (N,V) rows and (N,L) bool: the SVM at position j sees the true labels of earlier positions.

    Because these are known, the SVMs of a chain are trained in parallel.
    """
    import numpy as np
    from scipy.sparse import csr_matrix, hstack

    p, terms = parameters, known.shape[1]
    links, bias = np.zeros((len(order), len(order))), np.zeros(len(order))
    rows: dict[int, Matrix] = {}

    def one(place: int) -> tuple[Any, float]:
        before = csr_matrix(gold[:, order[:place]], dtype=np.float64) * p.label_weight
        return learn(hstack([known, before], format="csr"), gold[:, order[place]], p.cost)

    for place, (weights, offset) in enumerate(in_threads(one, len(order), p.jobs)):
        column = int(order[place])
        rows[column] = sparse_row(weights[:terms], p.prune)
        links[order[:place], column] = weights[terms:] * p.label_weight
        bias[column] = offset
        if report:
            report(place + 1)
    return Chain(order, by_term([rows[column] for column in range(len(order))], terms), links, bias)


def _from(start: int, report: Callable[[int], None]) -> Callable[[int], None]:
    """Report progress from an offset."""
    return lambda done: report(start + done)

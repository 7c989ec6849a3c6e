"""The words witness: one linear support vector machine per label, which shows the words that support it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from denn.errors import BundleError, DataError, TrainingError
from denn.prediction_types import Support
from denn.protocols import Progress, Retriever, Witness
from denn.types import Corpus, Document, LabelSpace, Stage
from denn.untrusted import REMEDY, first_line, header, read_lines, read_tensors
from denn.witnesses.calibration import Calibration
from denn.witnesses.ngrams import CHUNK, Floats, Integers, Matrix, Ngrams, WordTokens
from denn.witnesses.sparse_linear import Learner

TERMS, NUMBERS = "terms.txt", "words.safetensors"
HELD_OUT, HELD_OUT_LABELS = 2000, 150  # maximum documents and labels for choosing the cost and calibration
TRIED = 20_000  # maximum documents to learn from at each cost
EVERY_KIND = 10_000_000  # training tokens; with more, only words are terms, because the others take four times as long
EVERY_KIND_SECONDS = 6e-5  # per training token, to learn terms of every kind; with less, only words are terms
MOST_WORDS, MOST_ENDINGS, MOST_PAIRS = 200_000, 200_000, 200_000
COSTS = (1.0, 0.3, 0.1)  # in the order in which they are tried
LARGEST = 1e6  # largest number allowed in a file


class Words(Witness):
    """TF-IDF of words, of their beginnings and endings, and of pairs of words, times the weights of each label.

    A score is the calibrated probability of decision values x · w + b on held-out documents for labels this frequent.
    """

    name = "words"

    def __init__(self, ngrams: Ngrams, weights: Matrix, bias: Floats, calibration: Calibration) -> None:
        self.ngrams = ngrams
        self.weights = weights  # (V,L) float32, with values of float16 precision
        self.bias = bias  # (L,), NaN for labels that there was no time to learn
        self.calibration = calibration

    @classmethod
    def fit(cls, corpus: Corpus, method: Retriever, progress: Progress, seconds: float) -> Self | None:
        """Learn the words of the training documents; None, with a note, if there is too little time or text."""
        deadline = time.monotonic() + seconds
        try:
            return cls.learn(
                corpus.train, corpus.labels, seed=method.parameters.seed, progress=progress,
                seconds_left=lambda: deadline - time.monotonic(),
            )  # fmt: skip
        except (DataError, TrainingError) as reason:
            progress.note(f"the words could not be learnt: {first_line(reason)}")
            return None

    @classmethod
    def learn(
        cls,
        documents: Sequence[Document],
        labels: LabelSpace,
        *,
        seed: int,
        progress: Progress,
        seconds_left: Callable[[], float | None],
        cost: float | None = None,
        least: int = 2,
        negatives: int = 1000,
        prune: float = 0.05,
    ) -> Self:
        """Learn every label, frequent ones first; labels left when time runs out stay unknown.

        `cost` is C of the machines, by default the one of `COSTS` that predicts held-out documents best. A term must
        occur in at least `least` documents, a label is first learnt from `negatives` documents without it, and weights
        closer to 0 than `prune` are dropped.
        """

        def watch(done: int | None = None) -> None:
            if (left := seconds_left()) is not None and left <= 0:
                raise _too_late()
            if done is not None:
                progress.advance(done)

        progress.start(Stage("reading words", len(documents)))
        tokens = WordTokens.of((document.text for document in documents), watch)
        watch()
        progress.start(Stage("weighing words"))
        left = seconds_left()
        every = len(tokens.ids) <= EVERY_KIND and (left is None or left > EVERY_KIND_SECONDS * len(tokens.ids))
        ngrams = Ngrams.of(
            tokens,
            least=min(least, len(documents)),
            most_words=MOST_WORDS,
            most_endings=MOST_ENDINGS if every else 0,
            most_pairs=MOST_PAIRS if every else 0,
            watch=watch,
        )
        if not ngrams.words:
            raise DataError(
                f"No word occurs in {least} of the {len(documents)} training documents; expected texts with common "
                "words. Add more documents."
            )
        rows, gold = ngrams.learn(tokens, watch), gold_matrix(documents, labels)
        learner = Learner(rows, gold, COSTS[0], negatives, prune, seed, seconds_left)
        share = np.maximum(np.diff(gold.indptr), 0.5) / len(documents)
        order = np.argsort(-share, kind="stable")
        learner, calibration = _calibrated(learner, (cost,) if cost else COSTS, order, share, progress)
        progress.start(Stage("learning the words of labels", len(labels), "labels"))
        found = learner.learn(order, progress.advance)
        if not found.learnt.any():
            raise _too_late()
        if missing := int((~found.learnt).sum()):
            progress.note(f"there was no time to learn the words of the rarest labels, {missing:,} of {len(labels):,}")
        weights = found.weights
        weights.data = weights.data.astype(np.float16).astype(np.float32)  # the precision in which they are saved
        return cls(ngrams, weights, found.bias, calibration)

    @property
    def is_complete(self) -> bool:
        """Whether there was time to learn every label."""
        return not np.isnan(self.bias).any()

    def scores(self, texts: Sequence[str]) -> Tensor:
        """Return (n,L) float32 scores in [0,1]; NaN for labels that there was no time to learn."""
        parts = [texts[begin : begin + CHUNK] for begin in range(0, len(texts), CHUNK)]
        found = [self._decisions(self.ngrams.rows(WordTokens.of(part))) for part in parts]
        decisions = np.concatenate(found) if found else np.zeros((0, len(self.bias)), np.float32)
        return torch.sigmoid(torch.from_numpy(self.calibration(decisions)))

    def _decisions(self, rows: Matrix) -> Floats:
        decisions: Floats = (rows @ self.weights).toarray() + self.bias
        return decisions

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]], most: int = 5) -> Support:
        """Return the words and pairs of words that support labels of texts most, with their share of x · w.

        A word includes the shares of its beginnings and endings; what several words share is divided among them.
        """
        known = len(self.bias)  # labels added later have larger columns
        found = []
        for text, asked in zip(texts, columns, strict=True):
            named = self._support(text, np.array([column for column in asked if column < known], dtype=np.int64), most)
            found.append([named.pop(0) if column < known else [] for column in asked])
        return found

    def _support(self, text: str, asked: Integers, most: int) -> list[list[tuple[str, float]]]:
        tokens = WordTokens.of([text])
        row = self.ngrams.rows(tokens)
        terms, places, pairs_from = self.ngrams.entries(tokens, self.ngrams.columns(tokens.words))
        if not len(terms):
            return [[] for _ in asked]
        found, where, times = np.unique(terms, return_inverse=True, return_counts=True)  # `found` is row.indices
        weights = self.weights[found][:, asked].toarray() * (row.data / times.astype(np.float64))[:, None]  # by label
        groups = tokens.ids[places].astype(np.int64)  # the words, then the pairs
        groups[pairs_from:] = len(tokens.words) + terms[pairs_from:]
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        names, sums = groups[order[starts]], np.add.reduceat(weights[where[order]], starts)  # (groups, labels)
        best = np.argsort(-sums, axis=0, kind="stable")[:most] if len(names) <= most else _highest(sums, most)
        return [
            [(self._name(tokens, int(names[at])), float(sums[at, column])) for at in some if sums[at, column] > 0]
            for column, some in enumerate(best.T)
        ]

    def _name(self, tokens: WordTokens, group: int) -> str:
        if group < len(tokens.words):
            return tokens.words[group]
        return self.ngrams.pair(group - len(tokens.words))

    def knows_word(self, word: str) -> bool:
        """Return whether a word is one of the terms."""
        return self.ngrams.has_word(word)

    def save(self, folder: Path) -> None:
        """Write terms and numbers."""
        folder.mkdir(parents=True)
        n, w = self.ngrams, self.weights
        (folder / TERMS).write_text("\n".join([*n.words, *n.endings]), encoding="utf-8", newline="")
        arrays = {
            "idf": n.idf,
            "pairs": n.pairs,
            "bias": np.nan_to_num(self.bias),
            "learnt": ~np.isnan(self.bias),
            "curves": self.calibration.curves,
            "values": w.data.astype(np.float16),
            "labels": w.indices.astype(np.int32),
            "ends": w.indptr.astype(np.int64),
        }
        save_file(arrays, folder / NUMBERS)

    @classmethod
    def load(cls, folder: Path, method: Retriever) -> Self:
        """Read what `save` wrote."""
        file, labels = folder / NUMBERS, len(method.names)
        shapes = header(file, BundleError)
        pairs, terms = (shapes.get(name, ("", (0,)))[1] for name in ("pairs", "idf"))
        lines = read_lines(folder / TERMS, BundleError, (terms[0] or 0) - (pairs[0] or 0) if terms and pairs else 0)
        count = len(lines) + int(pairs[0] or 0)
        by_label = {"bias": ("F32", (labels,)), "learnt": ("BOOL", (labels,)), "curves": ("F32", (3, labels))}
        sparse = {"values": ("F16", (None,)), "labels": ("I32", (None,)), "ends": ("I64", (count + 1,))}
        expected = {"idf": ("F32", (count,)), "pairs": ("I64", (None,)), **by_label, **sparse}
        arrays = {name: tensor.numpy() for name, tensor in read_tensors(file, expected, BundleError).items()}
        words = sum("-" not in line for line in lines)
        if any("-" in line for line in lines[:words]):
            raise BundleError(f"{folder / TERMS} is damaged: the words do not come first. {REMEDY}")
        keys = arrays["pairs"]
        if len(keys) and (keys[0] < 0 or keys[-1] >= words * words or (np.diff(keys) <= 0).any()):
            raise BundleError(f"{file} is damaged: its pairs are not pairs of its words. {REMEDY}")
        idf, others = arrays["idf"], np.concatenate([arrays["bias"], arrays["curves"].ravel()])
        if ((idf < 1) | (idf > LARGEST)).any() or (np.abs(others) > LARGEST).any():  # scores might not be finite
            raise BundleError(f"{file} is damaged: it contains numbers that training cannot produce. {REMEDY}")
        weights = _weights(arrays, (count, labels), file)
        ngrams = Ngrams(lines[:words], lines[words:], keys, arrays["idf"])
        bias = np.where(arrays["learnt"], arrays["bias"], np.float32(np.nan))
        return cls(ngrams, weights, bias, Calibration(arrays["curves"]))


def _highest(values: NDArray[np.float64], count: int) -> Integers:
    """Return the positions of the highest values of each column, highest first, ties in their order."""
    places = np.sort(np.argpartition(-values, count - 1, axis=0)[:count], axis=0)
    order = np.argsort(-np.take_along_axis(values, places, 0), axis=0, kind="stable")
    return np.take_along_axis(places, order, 0)


def gold_matrix(documents: Sequence[Document], labels: LabelSpace) -> Matrix:
    """Return which documents have which labels: (N,L) in CSC form."""
    from scipy.sparse import csr_matrix

    columns = [labels.columns(document.labels) for document in documents]
    ends = np.cumsum([0, *map(len, columns)])
    flat = np.array([column for found in columns for column in found], dtype=np.int64)
    return csr_matrix((np.ones(len(flat), bool), flat, ends), shape=(len(documents), len(labels))).tocsc()


def _calibrated(
    learner: Learner, costs: Sequence[float], order: Integers, share: Any, progress: Progress
) -> tuple[Learner, Calibration]:
    """Learn some labels from some documents at each cost; return the best with its calibration on the others."""
    count = learner.rows.shape[0]
    most = min(HELD_OUT, count // 5)
    held, kept, _ = np.split(np.random.default_rng(learner.seed).permutation(count), [most, most + TRIED])
    supported = order[share[order] * count >= 2]
    chosen = supported[:: max(1, min(5, len(supported) // 10), -(-len(supported) // HELD_OUT_LABELS))]
    gold = learner.gold[held][:, chosen].toarray()
    clock = _half_of(learner.seconds_left)
    part = replace(learner, rows=learner.rows[kept], gold=learner.gold[kept].tocsc(), seconds_left=clock)
    best, least = None, np.inf
    progress.start(Stage("choosing the cost of words", len(costs) * len(chosen), "labels"))
    done = 0

    def advance(count: int) -> None:
        progress.advance(done + count)

    for cost in costs:
        found = replace(part, cost=cost).learn(chosen, advance)
        done += len(chosen)
        if not found.learnt[chosen].all():
            break
        decisions = (learner.rows[held] @ found.weights[:, chosen]).toarray() + found.bias[chosen]
        calibration = Calibration.fit(decisions, gold, share[chosen], share)
        if (loss := Calibration(calibration.curves[:, chosen]).loss(decisions, gold)) >= least:
            break  # the loss would keep rising
        best, least = (replace(learner, cost=cost), calibration), loss
    if best is None:
        raise _too_late()
    return best


def _half_of(seconds_left: Callable[[], float | None]) -> Callable[[], float | None]:
    """Return a clock that runs out when half of the remaining time has passed."""
    half = (seconds_left() or 0.0) / 2
    return lambda: None if (left := seconds_left()) is None or math.isinf(left) else left - half


def _weights(arrays: dict[str, Any], shape: tuple[int, int], file: Path) -> Matrix:
    from scipy.sparse import csr_matrix

    try:
        found = csr_matrix((arrays["values"].astype(np.float32), arrays["labels"], arrays["ends"]), shape=shape)
        found.check_format(full_check=True)  # a column outside the shape would let the product read beyond its memory
    except ValueError as error:
        raise BundleError(f"{file} is damaged: {first_line(error)}. {REMEDY}") from error
    return found


def _too_late() -> TrainingError:
    return TrainingError("Time ran out before the words of any label were learnt. Give more time, or fewer documents.")

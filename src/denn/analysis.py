"""Analysis of a trained model: sweeps without retraining, threshold curves, calibration, confusions, worst errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from denn.core.metrics import multilabel_scores
from denn.core.thresholds import counts_at, decide, tune_global
from denn.methods.denn import DENN, DennParameters, combined_scores
from denn.types import Document, LabelSpace, Neighbours, Scores

KS = (5, 10, 20, 30, 40, 50)
GAMMAS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)


def wide_scores(method: DENN, embeddings: Tensor, k: int, exclude: Sequence[str] = ()) -> Scores:
    """Score (n,d) embedded texts with their k nearest documents, whatever k the method has."""
    known, found = method.network.probabilities(embeddings), method.store.search(embeddings, k, exclude)
    return combined_scores(known, found, method.parameters)


def sweep(
    valid: Scores | None,
    test: Scores,
    valid_docs: Sequence[Document],
    test_docs: Sequence[Document],
    parameters: DennParameters,
    *,
    ks: Sequence[int] = KS,
    gammas: Sequence[float] = GAMMAS,
    known: int | None = None,
    threshold: float = 0.5,
) -> dict[str, list[dict[str, float]]]:
    """Return the F1 of each k and of each γ, the other one being the parameters'.

    The scores come from one search, for at least the largest k and the parameters' own (`wide_scores`). Each setting
    is decided at its own threshold, tuned on valid (at `threshold` where valid is None), and at 0.5. The classifier
    knows the first `known` labels (None: all), the datastore alone the others.
    """
    valid_gold = None if valid is None else LabelSpace(valid.names).matrix(valid_docs)
    test_gold = _gold(test.names, test_docs)

    def measure(k: int, gamma: float) -> dict[str, float]:
        chosen = replace(parameters, k=k, gamma=gamma)
        tuned = threshold
        if valid is not None and valid_gold is not None:
            tuned = tune_global(_final(valid, chosen, known), valid_gold)
        return _f1(_final(test, chosen, known), test_gold, tuned)

    found = _neighbours(test).k
    return {
        "k": [{"k": k, **measure(k, parameters.gamma)} for k in sorted({min(k, found) for k in ks})],
        "gamma": [{"gamma": gamma, **measure(parameters.k, gamma)} for gamma in gammas],
    }


def datastore_sweep(
    method: DENN,
    valid_docs: Sequence[Document],
    test_docs: Sequence[Document],
    shares: Sequence[float] = SHARES,
    draws: int = 3,
    seed: int = 0,
    *,
    embeddings: tuple[Tensor, Tensor] | None = None,
    threshold: float = 0.5,
) -> list[dict[str, float]]:
    """Return the F1 with random shares of the stored documents, mean and standard deviation over the draws.

    A draw's smaller shares are parts of its larger ones. Thresholds are tuned on valid, or `threshold` where it is
    empty. `embeddings` are those of valid and test where they are known already.
    """
    if embeddings is None:
        embeddings = _embed(method, valid_docs), _embed(method, test_docs)
    names, ids, k = method.store.labels, method.store.ids(), method.parameters.k
    valid_gold, test_gold = LabelSpace(names).matrix(valid_docs), _gold(names, test_docs)
    chance = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(len(ids), generator=chance).tolist() for _ in range(draws)]

    def measure(order: Sequence[int], kept: int) -> dict[str, float]:
        left_out = [ids[row] for row in order[kept:]]
        tuned = threshold
        if valid_docs:
            tuned = tune_global(wide_scores(method, embeddings[0], k, left_out).final, valid_gold)
        return _f1(wide_scores(method, embeddings[1], k, left_out).final, test_gold, tuned)

    rows = []
    for share in shares:
        kept = min(max(1, round(share * len(ids))), len(ids))
        found = [measure(order, kept) for order in (orders if kept < len(ids) else orders[:1])]
        row: dict[str, float] = {"share": share, "documents": kept, "draws": len(found)}
        for metric in ("micro_f1", "macro_f1"):
            values = [one[metric] for one in found]
            row |= {metric: fmean(values), f"{metric}_sd": stdev(values) if len(values) > 1 else 0.0}
        rows.append(row)
    return rows


def threshold_curve(values: Tensor, gold: Tensor, grid: Sequence[float]) -> list[dict[str, float]]:
    """Return micro and macro precision, recall and F1 of (n,L) scores at each threshold of the ascending grid."""
    hits, given = counts_at(values, gold, grid)  # (L,G)
    support = gold.sum(0)[:, None]
    curves: dict[str, list[float]] = {"threshold": list(grid)}
    for kind, counts in (
        ("micro", [count.sum(0, keepdim=True) for count in (hits, given, support)]),
        ("macro", [hits, given, support]),
    ):
        right, predicted, positive = (count.double() for count in counts)
        curves[f"{kind}_precision"] = _mean_ratio(right, predicted)
        curves[f"{kind}_recall"] = _mean_ratio(right, positive.expand_as(right))
        curves[f"{kind}_f1"] = _mean_ratio(2 * right, predicted + positive)
    return [dict(zip(curves, row, strict=True)) for row in zip(*curves.values(), strict=True)]


def calibration(values: Tensor, gold: Tensor, bins: int = 10) -> dict[str, Any]:
    """Compare (n,L) scores with how often they are right, in bins of equal width, empty ones left out.

    ECE = Σ_b (n_b / N) |mean score of b − share of b that is gold|, over all N pairs of a text and a label.
    """
    bin_of = (values * bins).long().clamp(0, bins - 1).flatten()
    counts = bin_of.bincount(minlength=bins)
    scores = bin_of.bincount(values.flatten().double(), minlength=bins)
    right = bin_of[gold.flatten()].bincount(minlength=bins)
    rows = [
        {"low": b / bins, "high": (b + 1) / bins, "count": count, "score": score / count, "observed": hit / count}
        for b, (count, score, hit) in enumerate(zip(counts.tolist(), scores.tolist(), right.tolist(), strict=True))
        if count
    ]
    gaps = sum(row["count"] * abs(row["score"] - row["observed"]) for row in rows)
    return {"bins": rows, "ece": gaps / max(values.numel(), 1)}


def confusions(predicted: Tensor, gold: Tensor, names: Sequence[str], top: int = 30) -> list[dict[str, Any]]:
    """Return pairs of a missed label and one wrongly given to the same text, the most frequent first, ties by column.

    `names` are those of the columns of two bool (n,L) matrices.
    """
    missed, wrong = (gold & ~predicted).nonzero(), (predicted & ~gold).nonzero()  # (·,2) text and column, by text
    per_text = wrong[:, 0].bincount(minlength=len(gold))
    partners = per_text[missed[:, 0]]  # wrong labels beside each missed one
    shift = (per_text.cumsum(0) - per_text)[missed[:, 0]] - (partners.cumsum(0) - partners)
    places = torch.arange(int(partners.sum())) + shift.repeat_interleave(partners)  # of the wrong label of each pair
    codes = missed[:, 1].repeat_interleave(partners) * len(names) + wrong[places, 1]
    pairs, texts = codes.unique(return_counts=True)  # type: ignore[no-untyped-call]
    order = texts.argsort(descending=True, stable=True)[:top]
    return [
        {"missed": names[pair // len(names)], "given": names[pair % len(names)], "texts": count}
        for pair, count in zip(pairs[order].tolist(), texts[order].tolist(), strict=True)
    ]


def worst(scores: Scores, gold: Tensor, threshold: float | Tensor, top: int = 20) -> list[dict[str, Any]]:
    """Return the texts with errors at the threshold, one or (L,), whose scores are farthest from their labels.

    The loss of a text is the mean of (ŷ_c − y_c)² over the labels c that it has or was given, by final scores; 1 is
    wrong for certain. The worst come first, and so do the missed and wrong labels of each, with their scores. Columns
    of the gold matrix beyond the scores' are labels that only the documents know, and are left out.
    """
    known = gold[:, : scores.final.shape[1]]
    given = decide(scores.final, threshold)
    errors, involved = given ^ known, given | known
    squares = (scores.final.double() - known.double()).square() * involved
    losses = (squares.sum(1) / involved.sum(1).clamp(min=1)).masked_fill(~errors.any(1), -1.0)
    rows = losses.argsort(descending=True, stable=True)[:top].tolist()
    return [
        {
            "row": row,
            "loss": float(losses[row]),
            "missed": _scored(scores, row, errors[row] & known[row], False),
            "wrong": _scored(scores, row, errors[row] & ~known[row], True),
        }
        for row in rows
        if losses[row] >= 0
    ]


def _scored(scores: Scores, row: int, members: Tensor, highest: bool) -> list[tuple[str, float]]:
    columns = members.nonzero().flatten().tolist()
    pairs = [(scores.names[column], float(scores.final[row, column])) for column in columns]
    return sorted(pairs, key=lambda pair: pair[1], reverse=highest)


def _neighbours(scores: Scores) -> Neighbours:
    if scores.neighbours is None:
        raise TypeError("a sweep needs scores with their neighbours, see wide_scores()")
    return scores.neighbours


def _final(scores: Scores, parameters: DennParameters, known: int | None) -> Tensor:
    """Score again with the parameters' k and γ."""
    found = _neighbours(scores).nearest(parameters.k)
    return combined_scores(scores.parts["classifier"][:, :known], found, parameters).final


def _gold(names: tuple[str, ...], documents: Sequence[Document]) -> Tensor:
    """Return the labels of documents, those that the model does not know last; each of them counts as missed."""
    known = LabelSpace(names)
    unknown = sorted({label for document in documents for label in document.labels if label not in known})
    return LabelSpace((*names, *unknown)).matrix(documents)


def _f1(values: Tensor, gold: Tensor, threshold: float) -> dict[str, float]:
    """Return the F1 at the threshold and at 0.5."""
    values = F.pad(values, (0, gold.shape[1] - values.shape[1]))
    tuned, half = (multilabel_scores(decide(values, cut), gold) for cut in (threshold, 0.5))
    return {
        "threshold": threshold,
        "micro_f1": tuned["micro_f1"],
        "macro_f1": tuned["macro_f1"],
        "micro_f1_at_0.5": half["micro_f1"],
        "macro_f1_at_0.5": half["macro_f1"],
    }


def _embed(method: DENN, documents: Sequence[Document]) -> Tensor:
    if not documents:
        return torch.empty(0, method.store.dimension)
    return method.embed([document.text for document in documents])


def _mean_ratio(part: Tensor, whole: Tensor) -> list[float]:
    """Return the mean over the rows of two (L,G) tensors' ratio, 0 where undefined."""
    ratio = torch.where(whole > 0, part / whole.clamp(min=1), 0.0)
    means: list[float] = (ratio.sum(0) / max(len(ratio), 1)).tolist()
    return means

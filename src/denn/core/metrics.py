"""Metrics of decisions (n,L) and rankings (n,L); counts are int64 and ratios float64, so they are exact.

An undefined ratio is 0, as in scikit-learn; without documents or labels, everything is 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Counts and scores of each label, all (L,)."""

    support: Tensor  # documents that have the label
    predicted: Tensor  # documents that it was predicted for
    true_positives: Tensor
    precision: Tensor
    recall: Tensor
    f1: Tensor


@dataclass(frozen=True, eq=False)
class _Counts:
    """Cells of two (n,L) matrices: gold, predicted and both, by label and by document."""

    support: Tensor  # (L,)
    predicted: Tensor
    true_positives: Tensor
    document_support: Tensor  # (n,)
    document_predicted: Tensor
    document_hits: Tensor


@dataclass(frozen=True)
class Band:
    """The labels with training frequencies in one range, and how well they are predicted."""

    name: str
    labels: int
    supported: int  # those with at least one gold document
    micro_f1: float
    macro_f1: float  # over the supported labels


def label_table(predicted: Tensor, gold: Tensor) -> LabelTable:
    """Count and score each label of two bool (n,L) matrices."""
    return _label_table(_count(predicted, gold))


def multilabel_scores(predicted: Tensor, gold: Tensor) -> dict[str, float]:
    """Return micro and macro precision, recall and F1; macro is the mean over all L labels, 0 if undefined."""
    return _micro_macro(label_table(predicted, gold))


def micro_f1_error(predicted: Tensor, gold: Tensor) -> float:
    """Return the standard error over documents of the micro-F1 of two bool (n,L) matrices, as a ratio of sums."""
    hits = 2 * (predicted & gold).sum(1).double()
    sizes = (predicted.sum(1) + gold.sum(1)).double()
    total = sizes.sum()
    if not total:
        return 0.0
    return float((hits - hits.sum() / total * sizes).square().sum().sqrt() / total)


def macro_over_supported(predicted: Tensor, gold: Tensor) -> dict[str, float]:
    """Return macro precision, recall and F1 over the labels with a gold document, and the number of these labels."""
    return _supported_macro(label_table(predicted, gold))


def example_f1(predicted: Tensor, gold: Tensor) -> float:
    """Return the mean F1 of the documents; a document without gold or predicted labels scores 1."""
    return _by_document(_count(predicted, gold))["example_f1"]


def hamming_loss(predicted: Tensor, gold: Tensor) -> float:
    """Return the share of wrong cells."""
    return _by_document(_count(predicted, gold))["hamming_loss"]


def subset_accuracy(predicted: Tensor, gold: Tensor) -> float:
    """Return the share of documents whose label set is exactly right."""
    return _by_document(_count(predicted, gold))["subset_accuracy"]


def precision_at_k(scores: Tensor, gold: Tensor, k: int) -> float:
    """Return the mean of hits among the k best / k, also if L < k or there are no gold labels."""
    return _precision_at(_hits(scores, gold, k), k)


def recall_at_k(scores: Tensor, gold: Tensor, k: int) -> float:
    """Return the mean of hits among the k best / gold labels, over the documents with gold labels."""
    return _recall_at(_hits(scores, gold, k), gold.sum(1), k)


def ndcg_at_k(scores: Tensor, gold: Tensor, k: int) -> float:
    """Return the mean nDCG of the k best with gain 1/log₂(rank + 1), over the documents with gold labels."""
    return _ndcg_at(_hits(scores, gold, k), gold.sum(1), k)


def most_frequent_f1(train_counts: Tensor, gold: Tensor) -> tuple[int, float]:
    """Return k and the micro-F1 of the best constant answer: the k most frequent labels in training, by (L,) counts.

    Ties go to the smallest k; 0 if there are no gold labels.
    """
    order = train_counts.argsort(descending=True, stable=True)
    hits = torch.nn.functional.pad(gold.sum(0)[order].cumsum(0), (1, 0))  # (L+1,), of every k
    f1 = _ratio(2 * hits, len(gold) * torch.arange(len(hits), device=gold.device) + gold.sum())
    k = int(f1.argmax())
    return k, float(f1[k])


def frequency_bands(train_counts: Tensor, predicted: Tensor, gold: Tensor, edges: Sequence[int]) -> list[Band]:
    """Score the labels by training frequency: the ascending edges (1, 10, 50) give bands 0, 1-9, 10-49 and >=50."""
    table = label_table(predicted, gold)
    bands = torch.bucketize(train_counts, torch.tensor(edges, device=train_counts.device), right=True)
    lows = (0, *edges)
    names = [str(low) if low == end - 1 else f"{low}-{end - 1}" for low, end in zip(lows, edges, strict=False)]
    return [_band(name, bands == number, table) for number, name in enumerate([*names, f">={lows[-1]}"])]


def all_scores(
    predicted: Tensor, gold: Tensor, scores: Tensor | None = None, ks: Sequence[int] = (1, 3, 5)
) -> dict[str, float]:
    """Return every metric by name; p_at_k, r_at_k and ndcg_at_k only if scores are given."""
    counts = _count(predicted, gold)
    table = _label_table(counts)
    named = _micro_macro(table) | _supported_macro(table) | _by_document(counts)
    return named if scores is None else named | ranking_scores(scores, gold, ks)


def ranking_scores(scores: Tensor, gold: Tensor, ks: Sequence[int] = (1, 3, 5)) -> dict[str, float]:
    """Return p_at_k, r_at_k and ndcg_at_k for every k; they do not depend on thresholds."""
    named = {}
    hits, support = _hits(scores, gold, max(ks, default=0)), gold.sum(1)  # ranked once for all k
    for k in ks:
        named[f"p_at_{k}"] = _precision_at(hits, k)
        named[f"r_at_{k}"] = _recall_at(hits, support, k)
        named[f"ndcg_at_{k}"] = _ndcg_at(hits, support, k)
    return named


def _count(predicted: Tensor, gold: Tensor) -> _Counts:
    """Count cells by label and by document; few cells are set, so listing them once is faster than summing."""
    given, wanted = predicted.nonzero(), gold.nonzero()  # (cells,2)
    hits = given[gold[given[:, 0], given[:, 1]]]
    lengths = tuple(gold.shape)

    def along(cells: Tensor, dimension: int) -> Tensor:
        return cells[:, dimension].bincount(minlength=lengths[dimension])

    by_document, by_label = ([along(cells, dimension) for cells in (wanted, given, hits)] for dimension in (0, 1))
    return _Counts(*by_label, *by_document)


def _label_table(counts: _Counts) -> LabelTable:
    support, given, hits = counts.support, counts.predicted, counts.true_positives
    return LabelTable(support, given, hits, *_precision_recall_f1(hits, given, support))


def _micro_macro(table: LabelTable) -> dict[str, float]:
    micro = _precision_recall_f1(table.true_positives.sum(), table.predicted.sum(), table.support.sum())
    macro = (_mean(values) for values in (table.precision, table.recall, table.f1))
    return _named("micro", map(float, micro)) | _named("macro", macro)


def _supported_macro(table: LabelTable) -> dict[str, float]:
    supported = table.support > 0
    macro = (_mean(values[supported]) for values in (table.precision, table.recall, table.f1))
    return _named("supported_macro", macro) | {"supported_labels": float(supported.sum())}


def _by_document(counts: _Counts) -> dict[str, float]:
    """Average over documents; 0 if there are no labels, so that a model without labels does not look perfect."""
    support, given, hits = counts.document_support, counts.document_predicted, counts.document_hits
    sizes, wrong, labels = given + support, given + support - 2 * hits, len(counts.support)
    values = {
        "example_f1": _mean(torch.where(sizes > 0, _ratio(2 * hits, sizes), 1.0)),
        "hamming_loss": float(wrong.sum()) / max(len(wrong) * labels, 1),
        "subset_accuracy": _mean(wrong == 0),
        "empty_predictions": _mean(given == 0),
        "labels_per_text": _mean(given),
    }
    return {name: value if labels else 0.0 for name, value in values.items()}


def _precision_recall_f1(hits: Tensor, predicted: Tensor, support: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _ratio(hits, predicted), _ratio(hits, support), _ratio(2 * hits, predicted + support)


def _band(name: str, members: Tensor, table: LabelTable) -> Band:
    supported = members & (table.support > 0)
    hits, predicted, support = (c[members].sum() for c in (table.true_positives, table.predicted, table.support))
    micro_f1 = float(_ratio(2 * hits, predicted + support))
    return Band(name, int(members.sum()), int(supported.sum()), micro_f1, _mean(table.f1[supported]))


def _hits(scores: Tensor, gold: Tensor, k: int) -> Tensor:
    """Return (n,min(k,L)) bool: whether the label at each rank is a gold label; ties rank by column."""
    left, ranked = scores.clone(), []
    for _ in range(min(k, scores.shape[1])):  # k is small, so this is many times faster than sorting all L
        best = left.argmax(1, keepdim=True)  # the first of equal values
        left.scatter_(1, best, -torch.inf)
        ranked.append(best)
    return gold.gather(1, torch.cat(ranked, 1)) if ranked else gold[:, :0]


def _precision_at(hits: Tensor, k: int) -> float:
    return _mean(hits[:, :k].sum(1)) / k


def _recall_at(hits: Tensor, support: Tensor, k: int) -> float:
    return _mean(_ratio(hits[:, :k].sum(1), support)[support > 0])


def _ndcg_at(hits: Tensor, support: Tensor, k: int) -> float:
    hits = hits[:, :k]
    ranks = torch.arange(hits.shape[1], device=hits.device)
    gains = 1 / (ranks.double() + 2).log2()  # rank 0 is the best
    ideal = ((ranks < support[:, None]) * gains).sum(1)
    has_gold = support > 0
    return _mean((hits * gains).sum(1)[has_gold] / ideal[has_gold])


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Divide counts; 0 if the whole is 0."""
    return part.double() / whole.clamp(min=1)


def _mean(values: Tensor) -> float:
    """Average all values; 0 if there are none."""
    return float(values.sum(dtype=torch.float64)) / max(values.numel(), 1)


def _named(prefix: str, values: Iterable[float]) -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in zip(("precision", "recall", "f1"), values, strict=True)}

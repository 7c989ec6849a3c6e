"""Evaluation: each part of a score at each threshold, on labelled documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from denn.bundle_card import Thresholds
from denn.core.metrics import LabelTable, all_scores, frequency_bands, label_table, ranking_scores
from denn.core.thresholds import FOR_MACRO_F1, HALFWAY, decide, tune_global, tune_per_label
from denn.datastore import Datastore
from denn.errors import BundleError
from denn.prediction_types import UNFAMILIAR, Scores
from denn.types import Document, LabelSpace
from denn.wording import counted

READ_AT_ONCE = 10_000  # stored texts that are compared with those to evaluate
BAND_EDGES = (1, 10, 50, 500)  # training documents of a label


@dataclass(frozen=True)
class Evaluation:
    """How well a model tags labelled documents."""

    names: tuple[str, ...]  # the model's labels, then labels that only the documents have
    documents: int
    unknown_labels: int  # labels of the documents that the model does not know; each counts as missed
    systems: Mapping[str, Mapping[str, Mapping[str, float]]]  # part → threshold → metric → value
    thresholds: Thresholds  # of the final score
    bands: Sequence[Mapping[str, Any]]  # by label frequency, for the model's own decisions
    table: LabelTable  # per label, for the same decisions
    confidence: float | None  # mean λ
    unfamiliar: float | None = None  # share of the documents that are unfamiliar; None if it was not measured

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self.headline[name]:.3f}" for name in ("micro_f1", "macro_f1"))
        return f"Evaluation({counted(self.documents, 'document')}, {shown})"

    @property
    def headline(self) -> Mapping[str, float]:
        """The metrics of the model's own decisions: by the final score, at the threshold or thresholds that decide."""
        return self.systems["final"][self.thresholds.decides]

    @property
    def familiarity_sentence(self) -> str:
        """The share of documents unlike the stored ones, as a sentence; empty if it was not measured."""
        if self.unfamiliar is None:
            return ""
        count = round(self.unfamiliar * self.documents)
        share = f"{count:,} of {self.documents:,} ({100 * self.unfamiliar:.1f} %)"
        return f"Unfamiliar documents: {share}. No stored document is similar to them."

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the headline metrics by name, then everything else."""
        rows = zip(*(column.tolist() for column in vars(self.table).values()), strict=True)
        keys = ("label", *vars(self.table))
        return {
            "threshold": self.thresholds.overall,
            "decides": self.thresholds.decides,
            **self.headline,
            "documents": self.documents,
            "labels": len(self.names),
            "unknown_labels": self.unknown_labels,
            "mean_confidence": self.confidence,
            "unfamiliar": self.unfamiliar,
            "systems": self.systems,
            "bands": list(self.bands),
            "per_label": [
                dict(zip(keys, (name, *row), strict=True)) for name, row in zip(self.names, rows, strict=True)
            ],
        }


def nothing_known_sentence(documents: Sequence[Document], known: Sequence[str]) -> str | None:
    """Return a warning if the documents have labels, but none that the model knows; otherwise None."""
    used = sorted({label for document in documents for label in document.labels})
    if not used or not set(used).isdisjoint(known):
        return None
    theirs, ours = (", ".join(map(repr, some[:3])) + (" and more" if len(some) > 3 else "") for some in (used, known))
    return f"The model knows none of the labels of these documents: {theirs}. Its own are {ours}. Check the spelling."


def tune(scores: Scores, documents: Sequence[Document], metric: str = "micro_f1") -> dict[str, Thresholds]:
    """Tune the thresholds of the final score and of each part on labelled documents, for this metric."""
    gold, for_rare = LabelSpace(scores.names).matrix(documents), metric == "macro_f1"
    tuned = {}
    for name, values in systems_of(scores).items():
        overall = tune_global(values, gold)
        own = tune_per_label(values, gold, overall, FOR_MACRO_F1 if for_rare else HALFWAY)
        tuned[name] = Thresholds(
            overall=overall, per_label=tuple(own.tolist()), decides="per_label" if for_rare else "tuned"
        )
    return tuned


def untuned(systems: Iterable[str], labels: int) -> dict[str, Thresholds]:
    """Return thresholds of 0.5, for models without validation documents."""
    return {name: Thresholds(overall=0.5, per_label=(0.5,) * labels) for name in (*systems, "final")}


def decision_thresholds(
    thresholds: Thresholds, labels: int, later: Tensor | None = None, per_label: bool = False
) -> float | Tensor:
    """Return the thresholds that decide: the overall one, or one per label, which `per_label` forces.

    Labels added after training have separate ones: `later`, or if it is None, a usual one. The result is one number if
    all labels share it, otherwise (L,).
    """
    per_label = per_label or thresholds.decides == "per_label"
    if not per_label and (later is None or not len(later)):
        return thresholds.overall
    found = torch.full((labels,), thresholds.fallback)
    if per_label:
        found[: len(thresholds.per_label)] = torch.tensor(thresholds.per_label)
    if later is not None:
        found[len(thresholds.per_label) :] = later
    return found


def evaluate(
    scores: Scores,
    documents: Sequence[Document],
    thresholds: Mapping[str, Thresholds],
    train_counts: Mapping[str, int],
    min_labels: int = 0,
    fixed: Sequence[float] = (0.5,),
    later: Mapping[str, Tensor] | None = None,
) -> Evaluation:
    """Score predictions against the documents' labels at fixed thresholds, the tuned one and per-label ones.

    `later` holds each part's thresholds for the labels added after training; see `Model.later_thresholds`.
    """
    if lacking := [name for name in systems_of(scores) if name not in thresholds]:
        raise BundleError(f"bundle.json is damaged: it has no thresholds for {lacking[0]!r}. Restore it from a copy.")
    known = LabelSpace(scores.names)
    unknown = sorted({label for document in documents for label in document.labels if label not in known})
    space = LabelSpace((*known.names, *unknown))
    gold = space.matrix(documents)
    systems: dict[str, dict[str, dict[str, float]]] = {}
    final = torch.zeros_like(gold)
    for name, values in systems_of(scores).items():
        own = (later or {}).get(name)
        numbers = {**{str(threshold): threshold for threshold in fixed}, "tuned": thresholds[name].overall}
        overall = thresholds[name].model_copy(update={"decides": "tuned"})
        chosen: dict[str, float | Tensor] = {**numbers, "tuned": decision_thresholds(overall, len(known), own)}
        chosen["per_label"] = decision_thresholds(thresholds[name], len(known), own, per_label=True)
        systems[name] = {}
        ranking = ranking_scores(_widen(values, len(unknown)), gold)
        for kind, threshold in chosen.items():
            predicted = _widen(decide(values, threshold, min_labels), len(unknown))
            systems[name][kind] = all_scores(predicted, gold) | ranking
            if kind in numbers:  # for the labels that the model was trained on
                systems[name][kind]["threshold"] = numbers[kind]
            if (name, kind) == ("final", thresholds[name].decides):
                final = predicted
    counts = torch.tensor([train_counts.get(name, 0) for name in space.names])
    bands = [asdict(band) for band in frequency_bands(counts, final, gold, BAND_EDGES)]
    confidence = None if scores.confidence is None else float(scores.confidence.mean())
    table, unfamiliar = label_table(final, gold), share_unfamiliar(scores)
    return Evaluation(
        space.names, len(documents), len(unknown), systems, thresholds["final"], bands, table, confidence, unfamiliar
    )


def stored_copies(documents: Sequence[Document], scores: Scores, store: Datastore) -> int:
    """Count the documents whose text is stored, ignoring case and spacing, or whose labels a stored copy decided."""
    texts, ids, known = [_folded(document.text) for document in documents], store.ids(), set[str]()
    for start in range(0, len(ids), READ_AT_ONCE):
        stored = store.texts(ids[start : start + READ_AT_ONCE])
        known |= set(texts).intersection(map(_folded, stored.values()))
    same = scores.same_text or [None] * len(texts)
    return sum(id is not None or (bool(text) and text in known) for text, id in zip(texts, same, strict=True))


def copies_sentence(copies: int, documents: int) -> str:
    """Return the start of a warning that documents to evaluate are in the datastore; the caller adds a remedy."""
    return (
        f"The datastore contains {copies:,} of these {counted(documents, 'document')}, so the scores are too good. "
        "Evaluate documents that the model has not seen"
    )


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def share_unfamiliar(scores: Scores) -> float | None:
    """Return the share of unfamiliar texts; None if familiarity was not measured."""
    if scores.familiarity is None:
        return None
    low: list[bool] = (scores.familiarity < UNFAMILIAR).tolist()
    stored = scores.same_text or [None] * len(low)
    return sum(flag and id is None for flag, id in zip(low, stored, strict=True)) / max(1, len(low))


def systems_of(scores: Scores) -> dict[str, Tensor]:
    """Return every score that can be used alone: each witness, each combination, then the final score."""
    witnesses = {name: part.nan_to_num(0.0) if part.isnan().any() else part for name, part in scores.parts.items()}
    return {**witnesses, **scores.alternatives, "final": scores.final}


def _widen(matrix: Tensor, columns: int) -> Tensor:
    return torch.nn.functional.pad(matrix, (0, columns))


def concatenate(batches: Sequence[Scores]) -> Scores:
    """Join the scores of batches by label name, without their neighbours: batches may know different labels."""
    if all(batch.names == batches[0].names for batch in batches):
        names = batches[0].names
    else:
        names = tuple(dict.fromkeys(name for batch in batches for name in batch.names))
    column_of = {name: column for column, name in enumerate(names)}
    places = [torch.tensor([column_of[name] for name in batch.names], dtype=torch.int64) for batch in batches]

    def join(tensors: Sequence[Tensor]) -> Tensor:
        spread = [
            tensor.new_zeros(len(tensor), len(names)).index_copy_(1, columns, tensor)
            for tensor, columns in zip(tensors, places, strict=True)
        ]
        return torch.cat(spread)

    parts = {name: join([batch.parts[name] for batch in batches]) for name in batches[0].parts}
    others = {name: join([batch.alternatives[name] for batch in batches]) for name in batches[0].alternatives}
    confidences = [batch.confidence for batch in batches if batch.confidence is not None]
    confidence = torch.cat(confidences) if confidences else None
    familiarities = [batch.familiarity for batch in batches if batch.familiarity is not None]
    familiarity = torch.cat(familiarities) if familiarities else None
    texts = [text for batch in batches for text in batch.texts]
    same = [id for batch in batches for id in batch.same_text or [None] * len(batch.final)]
    final = join([batch.final for batch in batches])
    return Scores(
        final, names, parts, confidence, alternatives=others, texts=texts, same_text=same, familiarity=familiarity
    )

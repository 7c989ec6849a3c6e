"""Turn the scores of texts into predictions: the labels to show, with the neighbours and words that support them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from denn.errors import BundleError
from denn.protocols import Datastore, Method
from denn.types import Neighbour, Neighbours, Prediction, Scores

if TYPE_CHECKING:
    from torch import Tensor

SHOWN = 10  # labels to show besides the chosen ones
WORTH_SHOWING = 0.01
ROUNDING = 1e-3  # by which sums of shares may miss 0 and 1


def checked(scores: Scores) -> Scores:
    """Return the scores if they, their parts and λ are from 0 to 1; anything else comes from damaged weights.

    A witness gives NaN for labels that it does not know.
    """
    found = {"scores": scores.final, **{f"{name} scores": part for name, part in scores.alternatives.items()}}
    for name, part in scores.parts.items():
        found[f"{name} scores"] = part.where(~part.isnan(), 0.0)
    if scores.confidence is not None:
        found["confidence"] = scores.confidence
    for name, values in found.items():
        if not values.numel():
            continue
        low, high = values.aminmax()
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):  # NaN is neither
            raise BundleError(
                f"The model gives {name} from {float(low):g} to {float(high):g}, expected 0 to 1: its weights are "
                "damaged. Restore the folder from a copy."
            )
    return scores


def predictions(method: Method, scores: Scores, chosen: Tensor, evidence: int | None) -> Iterator[Prediction]:
    """Make the prediction of each text from the chosen labels ((n,L) bool), with at most `evidence` neighbours."""
    neighbours = neighbours_with_texts(method.store, scores.neighbours, len(chosen), evidence)
    columns = _worth_showing(scores, chosen)
    words = _words(method, scores, columns) if evidence != 0 else [{} for _ in columns]
    for row, shown in enumerate(columns):
        names = [scores.names[column] for column in shown]
        yield Prediction(
            labels=tuple(name for name, given in zip(names, chosen[row, shown].tolist(), strict=True) if given),
            scores=dict(zip(names, scores.final[row, shown].tolist(), strict=True)),
            confidence=None if scores.confidence is None else float(scores.confidence[row]),
            neighbours=neighbours[row],
            parts=_parts(scores, row, shown),
            words=words[row],
            same_text=scores.same_text[row] if scores.same_text else None,
            familiarity=None if scores.familiarity is None else float(scores.familiarity[row]),
        )


def neighbours_with_texts(
    store: Datastore | None, found: Neighbours | None, count: int, limit: int | None
) -> list[tuple[Neighbour, ...]]:
    """Fetch the texts of the neighbours of `count` texts; one that was removed since the search is left out."""
    if store is None or found is None or limit == 0:
        return [()] * count
    ids = {id for ids in found.ids for id in ids[:limit]}
    texts = {str(document.id): document.text for document in store.get(sorted(ids), missing_ok=True)}
    return [
        tuple(
            Neighbour(id, similarity, found.labels_at(row, place), texts[id], found.rejected_at(row, place))
            for place, (id, similarity) in enumerate(zip(ids, found.similarity[row].tolist(), strict=False))
            if similarity != float("-inf") and id in texts
        )[:limit]
        for row, ids in enumerate(found.ids)
    ]


def _words(
    method: Method, scores: Scores, columns: Sequence[Sequence[int]]
) -> list[dict[str, tuple[tuple[str, float], ...]]]:
    """Return the words that support labels of each text; labels without such words are left out."""
    if not scores.texts:
        return [{} for _ in columns]
    found = method.support(scores.texts, columns)
    return [
        {scores.names[column]: tuple(words) for column, words in zip(some, each, strict=True) if words}
        for some, each in zip(columns, found, strict=True)
    ]


def _worth_showing(scores: Scores, chosen: Tensor) -> list[list[int]]:
    """Return the columns to show of each text: those that were chosen and the best others, highest score first."""
    top = scores.final.topk(min(SHOWN, len(scores.names)), dim=1)
    columns = []
    for row in range(len(scores.final)):
        best = [
            c for s, c in zip(top.values[row].tolist(), top.indices[row].tolist(), strict=True) if s >= WORTH_SHOWING
        ]
        shown = {*chosen[row].nonzero().flatten().tolist(), *best}
        columns.append(sorted(shown, key=lambda column: (-float(scores.final[row, column]), column)))
    return columns


def _parts(scores: Scores, row: int, columns: Sequence[int]) -> dict[str, dict[str, float]]:
    """Return each witness's scores for some labels of a text; witnesses that do not know a label are left out."""
    values = {name: part[row, columns].tolist() for name, part in scores.parts.items()}
    return {
        scores.names[column]: {name: given[place] for name, given in values.items() if given[place] == given[place]}
        for place, column in enumerate(columns)
    }

"""Turn the scores of texts into predictions: the labels to show, and the neighbours and words that support them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from denn.datastore import Datastore
from denn.errors import BundleError
from denn.prediction_types import Neighbour, Neighbours, Prediction, Scores
from denn.protocols import Method
from denn.vocabulary import Vocabulary

SHOWN = 10  # labels to show in addition to the chosen ones
WORTH_SHOWING = 0.01
ROUNDING = 1e-3  # tolerance for sums of shares below 0 or above 1


def checked(scores: Scores) -> Scores:
    """Return the scores if they, their parts and λ are from 0 to 1; anything else means damaged weights.

    A witness gives NaN for labels that it does not know.
    """
    found = {"scores": scores.final, **{f"{name} scores": part for name, part in scores.alternatives.items()}}
    for name, part in scores.parts.items():
        found[f"{name} scores"] = part.nan_to_num(0.0)
    if scores.confidence is not None:
        found["confidence"] = scores.confidence
    found = {name: values for name, values in found.items() if values.numel()}
    if not found:
        return scores
    bounds = torch.stack([torch.stack(values.aminmax()) for values in found.values()])
    for name, (low, high) in zip(found, bounds.tolist(), strict=True):
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):  # also catches NaN
            raise BundleError(
                f"The model gives {name} from {low:g} to {high:g}, expected 0 to 1: its weights are damaged. Restore "
                "the folder from a copy."
            )
    return scores


def predictions(
    method: Method, scores: Scores, chosen: Tensor, evidence: int | None, vocabulary: Vocabulary
) -> Iterator[Prediction]:
    """Yield each text's prediction from its chosen labels ((n,L) bool), with at most `evidence` neighbours."""
    neighbours = neighbours_with_texts(method.store, scores.neighbours, len(chosen), evidence)
    shown = _worth_showing(scores, chosen)
    words = _words(method, scores, shown.columns) if evidence != 0 else [{} for _ in shown.columns]
    confidence = [None] * len(chosen) if scores.confidence is None else scores.confidence.tolist()
    familiarity = [None] * len(chosen) if scores.familiarity is None else scores.familiarity.tolist()
    for row, columns in enumerate(shown.columns):
        names, cells = [scores.names[column] for column in columns], shown.cells[row]
        yield Prediction(
            labels=tuple([name for name, given in zip(names, shown.given[row], strict=True) if given]),
            scores=dict(zip(names, cells[0], strict=True)),
            confidence=confidence[row],
            neighbours=neighbours[row],
            parts=_parts(names, tuple(scores.parts), cells[1:]),
            words=words[row],
            same_text=scores.same_text[row] if scores.same_text else None,
            familiarity=familiarity[row],
            vocabulary=vocabulary,
        )


def neighbours_with_texts(
    store: Datastore | None, found: Neighbours | None, count: int, limit: int | None
) -> list[tuple[Neighbour, ...]]:
    """Fetch the texts of the neighbours of `count` texts, leaving out documents that were removed since the search."""
    if store is None or found is None or limit == 0:
        return [()] * count
    labels, rejected, similarity = found.labels(), found.rejected(), found.similarity.tolist()
    shown = [  # places of the neighbours to show; a text's own document has the similarity −∞
        [place for place, (_, cosine) in enumerate(zip(ids, row, strict=False)) if cosine != float("-inf")][:limit]
        for ids, row in zip(found.ids, similarity, strict=True)
    ]
    texts = store.texts(list({ids[place] for ids, places in zip(found.ids, shown, strict=True) for place in places}))
    return [
        tuple(
            [
                Neighbour(id, similarity[row][place], labels[entry], texts[id], rejected[entry])
                for id, place, entry in ((ids[place], place, row * found.k + place) for place in shown[row])
                if id in texts
            ]
        )
        for row, ids in enumerate(found.ids)
    ]


def _words(
    method: Method, scores: Scores, columns: Sequence[Sequence[int]]
) -> list[dict[str, tuple[tuple[str, float], ...]]]:
    """Return the words that support labels of each text, leaving out labels without such words."""
    if not scores.texts:
        return [{} for _ in columns]
    found = method.support(scores.texts, columns)
    return [
        {scores.names[column]: tuple(words) for column, words in zip(some, each, strict=True) if words}
        for some, each in zip(columns, found, strict=True)
    ]


class _Shown(NamedTuple):
    """The labels to show for each text, highest score first."""

    columns: list[list[int]]
    given: list[list[bool]]  # whether the label was chosen
    cells: list[list[list[float]]]  # the final score, then the score of each witness


def _worth_showing(scores: Scores, chosen: Tensor) -> _Shown:
    """Choose the labels to show for each text: the chosen ones and the best others."""
    top = scores.final.topk(min(SHOWN, len(scores.names)), dim=1)
    worth = chosen.scatter(1, top.indices, chosen.gather(1, top.indices) | (top.values >= WORTH_SHOWING))
    places = worth.nonzero(as_tuple=True)
    cells = torch.stack([part[places] for part in (scores.final, *scores.parts.values())]).cpu().numpy()
    given = chosen[places].cpu().numpy()
    rows, columns = (place.cpu().numpy() for place in places)
    order = np.lexsort((columns, -cells[0], rows))
    ends = np.cumsum(np.bincount(rows, minlength=len(chosen)))[:-1]

    def by_text(values: NDArray[Any]) -> list[Any]:
        return [part.tolist() for part in np.split(values[..., order], ends, axis=-1)]

    return _Shown(by_text(columns), by_text(given), by_text(cells))


def _parts(
    names: Sequence[str], witnesses: Sequence[str], values: Sequence[list[float]]
) -> dict[str, dict[str, float]]:
    """Return each witness's scores for some labels of a text, leaving out witnesses that do not know a label."""
    if not witnesses:
        return {name: {} for name in names}
    return {
        name: {witness: score for witness, score in zip(witnesses, given, strict=True) if score == score}
        for name, given in zip(names, zip(*values, strict=True), strict=True)
    }

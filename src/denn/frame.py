"""Predictions as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from denn.errors import DataError, MissingExtraError
from denn.prediction_types import Prediction

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = "labels names scores confidence familiarity unfamiliar same_text parts words neighbours".split()


def to_frame(
    predictions: Iterable[Prediction], *, ids: Iterable[Any] | None = None, texts: Iterable[str] | None = None
) -> pd.DataFrame:
    """Turn predictions into a pandas DataFrame, one row each, with `ids` and `texts` in front if given.

    The columns are `labels` (a list, highest score first), `names` (of these labels, from the vocabulary), `scores`
    (label → score), `confidence`, `familiarity`, `unfamiliar`, `same_text` (the id of a stored document), `parts`
    (label → witness → score), `words` (label → words) and `neighbours` (ids, nearest first).
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("to_frame", "pandas", "frames") from error
    if isinstance(predictions, Prediction):
        raise DataError("Got one Prediction, expected a list. Write to_frame([prediction]).")
    rows = [_row(prediction) for prediction in predictions]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    given: Mapping[str, Iterable[Any] | None] = {"text": texts, "id": ids}
    for name, values in given.items():
        if values is None:
            continue
        column: Sequence[Any] = list(values)
        if len(column) != len(frame):
            raise DataError(f"Got {len(column):,} {name}s for {len(frame):,} predictions, expected one for each.")
        frame.insert(0, name, column)
    return frame


def _row(prediction: Prediction) -> dict[str, object]:
    return {name: getattr(prediction, name) for name in COLUMNS} | {
        "labels": list(prediction.labels),
        "names": list(prediction.names),
        "words": {label: [word for word, _ in words] for label, words in prediction.words.items()},
        "neighbours": [neighbour.id for neighbour in prediction.neighbours],
    }

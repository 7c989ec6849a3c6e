"""Rejected labels as stores keep them: in one list with the labels, as complements of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from denn.prediction_types import Neighbours
from denn.types import Document


def signed_columns(document: Document, column_of: Mapping[str, int]) -> list[int]:
    """Return the columns of a document's labels, then the complements of its rejected labels."""
    return [column_of[label] for label in document.labels] + [~column_of[label] for label in document.rejected]


def separate_rejected(found: Neighbours) -> Neighbours:
    """Separate rejected labels, which are complements among the label columns, into their own columns."""
    rejected = found.label_columns < 0
    before = found.offsets.new_zeros(len(rejected) + 1)  # number of rejected labels before each entry
    before[1:] = rejected.cumsum(0)
    offsets = before[found.offsets]
    return replace(
        found,
        offsets=found.offsets - offsets,
        label_columns=found.label_columns[~rejected],
        rejected_offsets=offsets,
        rejected_columns=~found.label_columns[rejected],
    )

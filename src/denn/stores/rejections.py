"""Rejected labels as stores keep them: in one list with the labels, each as the complement of its column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from denn.types import Document, Neighbours


def signed_columns(document: Document, column_of: Mapping[str, int]) -> list[int]:
    """Return the columns of a document's labels, then the complements of those that it rejects."""
    return [column_of[label] for label in document.labels] + [~column_of[label] for label in document.rejected]


def told_apart(found: Neighbours) -> Neighbours:
    """Move rejected labels from among the label columns, where they are complements, to their own."""
    rejected = found.label_columns < 0
    before = found.offsets.new_zeros(len(rejected) + 1)  # rejected ones before each entry
    before[1:] = rejected.cumsum(0)
    offsets = before[found.offsets]
    return replace(
        found,
        offsets=found.offsets - offsets,
        label_columns=found.label_columns[~rejected],
        rejected_offsets=offsets,
        rejected_columns=~found.label_columns[rejected],
    )

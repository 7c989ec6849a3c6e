"""Counts agree with their nouns, and metrics have their usual names."""

from __future__ import annotations

import pytest

from denn.wording import counted, metric_title


@pytest.mark.parametrize(
    ("count", "written"), [(0, "0 documents"), (1, "1 document"), (2, "2 documents"), (2500, "2,500 documents")]
)
def test_only_one_is_singular(count: int, written: str) -> None:
    assert counted(count, "document") == written


@pytest.mark.parametrize(
    ("name", "written"), [("micro_f1", "micro-F1"), ("macro_f1", "macro-F1"), ("precision_at_5", "precision at 5")]
)
def test_metrics_are_written_as_in_prose(name: str, written: str) -> None:
    assert metric_title(name) == written

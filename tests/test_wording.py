"""Counts agree with their nouns."""

from __future__ import annotations

import pytest

from denn.wording import counted


@pytest.mark.parametrize(
    ("count", "written"), [(0, "0 documents"), (1, "1 document"), (2, "2 documents"), (2500, "2,500 documents")]
)
def test_only_one_is_singular(count: int, written: str) -> None:
    assert counted(count, "document") == written

"""The page of the paper's experiments says what the results say."""

from pathlib import Path

import pytest

from denn.bench.pages import fill
from denn.bench.result import read_all

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_tables_of_the_page_are_those_of_the_results():
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert fill(page, read_all(ROOT / "results")) == page, "Run: denn bench page docs/paper.md"

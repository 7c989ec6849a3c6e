"""The results pages agree with the results."""

from pathlib import Path

import pytest

from denn_bench.pages import fill
from denn_bench.result import read_all

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/paper.md", "docs/methods.md"])
def test_the_tables_of_a_page_are_those_of_the_results(name):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert fill(page, read_all(ROOT / "results")) == page, f"Run: denn bench page {name}"

"""Pages: tables come from the results, prose does not change."""

import pytest

from bench_runs import all_runs
from denn.errors import ConfigError, DataError
from denn_bench.pages import fill
from denn_bench.tables import render

PAGE = "# Title\n\n<!-- table: thresholds -->\nstale\n<!-- end -->\nprose\n<!-- table: speed -->\n<!-- end -->\n"


def test_every_place_gets_its_table_and_the_rest_stays():
    runs = all_runs()
    new = fill(PAGE, runs)
    assert new.startswith("# Title\n\n<!-- table: thresholds -->\n")
    assert "stale" not in new and "\nprose\n" in new and new.endswith("<!-- end -->\n")
    for name in ("thresholds", "speed"):
        assert f"<!-- table: {name} -->\n{render(name, runs).rstrip()}\n<!-- end -->" in new
    assert fill(new, runs) == new


def test_a_page_without_places_or_with_an_unknown_table_is_said():
    with pytest.raises(DataError, match="no place for a table"):
        fill("prose", [])
    with pytest.raises(ConfigError, match="speed"):
        fill("<!-- table: sped -->\n<!-- end -->", all_runs())

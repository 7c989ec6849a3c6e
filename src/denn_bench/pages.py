"""Tables inside a Markdown page: the text between two markers is generated from the results.

<!-- table: main-aapd -->
…
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from denn.errors import DataError
from denn_bench.result import Result
from denn_bench.tables import render

PLACE = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n(?P<old>.*?)<!-- end -->", re.DOTALL)


def fill(page: str, results: Sequence[Result]) -> str:
    """Return the page with every table updated from the results."""
    if not PLACE.search(page):
        raise DataError("The page has no place for a table. Expected <!-- table: main-aapd --> and <!-- end -->.")

    def fresh(place: re.Match[str]) -> str:
        name = place["name"]
        return f"<!-- table: {name} -->\n{render(name, list(results)).rstrip()}\n<!-- end -->"

    return PLACE.sub(fresh, page)

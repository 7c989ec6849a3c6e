"""Stores for the contract suite."""

import pytest
from kinds import KINDS, Maker

MARKED = [pytest.param(kind, marks=[pytest.mark.slow] if kind == "postgres" else []) for kind in KINDS]  # has a server


@pytest.fixture(params=MARKED, name="make")
def maker(request, tmp_path):
    make = Maker(KINDS[request.param], tmp_path / "store")
    yield make
    make.close()

"""The table of parameters names every parameter of DENN, with its choices."""

from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from denn.methods.contrastive import DennParameters

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").split("## Parameters")[1].splitlines() if line[:3] == "| `"]


@pytest.mark.parametrize("name", [field.name for field in fields(DennParameters)])
def test_every_parameter_stands_in_the_table(name):
    (row,) = [row for row in ROWS if f"`{name}`" in row.split("|")[1]]
    kind = get_type_hints(DennParameters)[name]
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    assert [choice for choice in choices if f"`{choice}`" not in row] == []

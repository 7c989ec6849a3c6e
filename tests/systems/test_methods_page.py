"""The page of methods has a section for every method, and names every parameter with its default and its choices."""

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from denn.methods.classifier import ClassifierParameters
from denn.registry import METHODS, lookup
from denn.training.network import NeuralParameters, TransformerParameters
from denn_bench.systems.sequences import SequenceParameters
from denn_bench.systems.tfidf import TfidfParameters
from denn_bench.systems.word_parameters import WordParameters

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "methods.md").read_text(encoding="utf-8")
DENN_TABLE = (DOCS / "how-it-works.md").read_text(encoding="utf-8").split("## Parameters")[1]
LINES = ["Idea", "From", "Use it when", "Cost", "Settings", "Here"]
NAMES = sorted(set(METHODS) - {"dummy"})
TABLES: dict[type, str] = {
    NeuralParameters: "All networks",
    TransformerParameters: "Networks on a transformer",
    WordParameters: "Networks on words",
    SequenceParameters: "Networks that write label sequences",
    TfidfParameters: "Methods on TF-IDF",
}
SHARED = {*TABLES, ClassifierParameters}


def section(heading: str) -> str:
    """Return the text below the level-3 heading that begins with this."""
    (found,) = re.findall(rf"^### {re.escape(heading)}.*\n((?:(?!##).*\n)*)", PAGE, re.MULTILINE)
    return found


def choices(kind: type, name: str) -> list[Any]:
    """Return the choices of a parameter, if it has any."""
    hint = get_type_hints(kind)[name]
    return [word for part in (hint, *get_args(hint)) if get_origin(part) is Literal for word in get_args(part)]


def departures(kind: type, base: type | None) -> list[Field]:
    """Return the parameters that a base lacks, or has with another default."""
    known = {field.name: field.default for field in fields(base)} if base else {}
    return [field for field in fields(kind) if field.name not in known or known[field.name] != field.default]


def same(written: str, default: Any) -> bool:
    """Return whether a default is written like this."""
    if default is None or isinstance(default, bool):
        return written == str(default).lower()
    if isinstance(default, str):
        return written == f"`{default}`"
    return float(written.replace(",", "")) == default


def shared_base(kind: type) -> type:
    """Return the nearest class of parameters that has a table."""
    return next(base for base in kind.__mro__ if base in SHARED)


def cases() -> list[Any]:
    """Return (method, its parameters, one of them) for all that are to be in sections."""
    kinds = {name: lookup(METHODS, name, "method").Parameters for name in NAMES if name != "denn"}
    return [
        pytest.param(name, kind, field, id=f"{name}-{field.name}")
        for name, kind in kinds.items()
        for field in departures(kind, shared_base(kind))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_a_section_with_the_same_lines(name):
    assert re.findall(r"^- \*\*(.+?):\*\* .", section(f"{name}: "), re.MULTILINE) == LINES


def test_the_page_has_no_section_of_an_unknown_method():
    assert sorted(re.findall(r"^### ([a-z0-9-]+): ", PAGE, re.MULTILINE)) == NAMES


@pytest.mark.parametrize(("name", "kind", "field"), cases())
def test_every_parameter_of_a_method_stands_in_its_section(name, kind, field):
    text = section(f"{name}: ").split("**Settings:**")[1].split("**Here:**")[0]
    (written,) = re.findall(rf"`{field.name}` = (`\w+`|[\w.,-]*\w)", text)
    assert same(written, field.default)
    assert [word for word in choices(kind, field.name) if f"`{word}`" not in text + section("All networks")] == []


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        pytest.param(kind, field, id=f"{kind.__name__}-{field.name}")
        for kind in TABLES
        for field in departures(kind, next((base for base in kind.__mro__[1:] if base in SHARED), None))
    ],
)
def test_every_shared_parameter_stands_in_its_table(kind, field):
    cells = [line.split("|") for line in section(TABLES[kind]).splitlines() if line.startswith("| `")]
    (row,) = [row for row in cells if row[1].strip() == f"`{field.name}`"]
    assert same(row[2].strip(), field.default)
    known = section(TABLES[kind]) + section("All networks")
    assert [word for word in choices(kind, field.name) if f"`{word}`" not in known] == []


@pytest.mark.parametrize("field", departures(ClassifierParameters, TransformerParameters), ids=lambda field: field.name)
def test_parameters_of_the_plain_classifier_stand_in_the_table_of_denn(field):
    assert f"`{field.name}`" in DENN_TABLE
    assert f"`{field.name}`" in section("Networks on a transformer")

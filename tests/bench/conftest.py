"""A corpus and recipes for runs that take about a second."""

import json

import pytest

from denn import registry
from denn_bench import machine


@pytest.fixture(autouse=True)
def small_matrices(monkeypatch):
    monkeypatch.setitem(machine.SIZES, "cpu", 64)


@pytest.fixture
def recipes(tmp_path, tiny_settings, monkeypatch):
    """A folder of recipes for the corpus `tiny`: denn, bert and dummy."""
    monkeypatch.setitem(registry.CORPORA.own, "tiny", "json:loads")  # a name; these tests pass the corpus themselves
    folder = tmp_path / "recipes"
    (folder / "tiny").mkdir(parents=True)
    settings = {name: value for name, value in tiny_settings.items() if name not in ("k", "gamma")}
    common = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (settings | {"epochs": 3}).items())
    for name, method, parameters in (
        ("denn", "denn", common + "k = 5\ngamma = 0.5\n"),
        ("bert", "bert", common),
        ("dummy", "dummy", ""),
    ):
        (folder / "tiny" / f"{name}.toml").write_text(f'method = "{method}"\n[parameters]\n{parameters}')
    return folder

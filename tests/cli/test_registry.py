"""Plug-ins of other packages: found, imported on demand, and never preferred to denn's own."""

import pytest

from denn import registry
from denn.cli import app
from denn.errors import ConfigError
from denn.registry import METHODS, Registry, lookup
from denn.stores.address import kind_of
from denn_bench.systems.dummy import Dummy

POINTS = """[denn.methods]
mine = denn_plugin:Mine
denn = denn_plugin:Mine
torn = denn_plugin:Missing
[denn.stores]
shelf = denn_plugin:Mine
[denn.commands]
mine = denn_plugin:commands
torn = denn_plugin_gone:commands
"""
CODE = """import typer
class Mine: ...
commands = typer.Typer()
@commands.command()
def greet() -> None:
    typer.echo("hello")
@commands.command()
def leave() -> None: ...
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed package `denn-plugin` that adds methods, a store and commands."""
    assert "mine" not in METHODS  # read now, before the package exists
    facts = tmp_path / "denn_plugin-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: denn-plugin\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(POINTS)
    (tmp_path / "denn_plugin.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(app, "COMMANDS", Registry("denn.commands", {}))
    monkeypatch.setattr("denn.stores.address.STORES", Registry("denn.stores", registry.STORES.own))
    return Registry("denn.methods", METHODS.own)


def test_the_systems_of_the_paper_are_methods():
    assert next(iter(METHODS)) == "denn"
    assert lookup(METHODS, "dummy", "method") is Dummy


def test_a_package_adds_a_method_but_replaces_none(plugin):
    assert lookup(plugin, "mine", "method").__module__ == "denn_plugin"
    assert lookup(plugin, "denn", "method").__module__ == "denn.methods.denn"
    assert list(plugin).count("denn") == 1 and len(plugin) == len(METHODS) + 2
    assert plugin["mine"] == "denn_plugin:Mine" and plugin["denn"] == METHODS["denn"]


def test_an_unknown_name_lists_those_of_packages_too(plugin):
    with pytest.raises(ConfigError, match=r"expected one of denn, bert, .*mine.*Did you mean 'mine'\?"):
        lookup(plugin, "mime", "method")


def test_what_cannot_be_imported_names_its_package(plugin):
    with pytest.raises(ConfigError, match=r"The method 'torn' of the package 'denn-plugin' cannot be imported \(Attr"):
        lookup(plugin, "torn", "method")


def test_denns_own_names_are_found_without_reading_packages(plugin):
    lookup(plugin, "denn", "method")
    assert "added" not in vars(plugin)


def test_a_store_is_addressed_by_its_name(plugin):
    assert kind_of("shelf://anywhere") == "shelf"


def test_a_package_adds_commands(plugin, run):
    assert run("mine", "greet").out == "hello\n"
    listed = run("--help")
    assert "\n  mine\n" in listed.out and "torn" not in listed.out
    assert "warning: The command 'torn' of the package 'denn-plugin' cannot be imported" in listed.err
    broken = run("torn", "greet")
    assert broken.code == 2 and "ModuleNotFoundError" in broken.err


def test_denns_own_commands_start_without_reading_packages(plugin, run):
    assert run("predict", "--help").code == 0
    assert "added" not in vars(app.COMMANDS)

"""Recipes: a TOML file and overrides, checked against a method's parameters."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from denn.errors import ConfigError
from denn.protocols import Method
from denn.registry import METHODS, did_you_mean, lookup

LARGEST = 10**9  # number in a recipe; the seed may be larger
LARGEST_SEED = 2**63 - 1
SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class Recipe:
    """A method's name and its full parameters, as the bundle keeps them."""

    method: str
    parameters: Any  # the frozen dataclass `Parameters` of the method's class

    def build(self) -> Method:
        """Make the method."""
        made: Method = lookup(METHODS, self.method, "method")(self.parameters)
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"method": self.method, "parameters": asdict(self.parameters)}


def make_recipe(method: str, parameters: Mapping[str, Any]) -> Recipe:
    """Check parameters against the method's own, with their types; unknown names are errors."""
    from pydantic import TypeAdapter, ValidationError  # here, as the command line's help needs no more than numbers

    kind = lookup(METHODS, method, "method").Parameters
    known = [field.name for field in fields(kind)]
    for name in parameters:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"The method {method!r} has no parameter {name!r}.{hint} It has: {', '.join(known)}.")
        _check_size(name, parameters[name])
    try:
        made = TypeAdapter(kind).validate_python(dict(parameters))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "the parameters"
        raise ConfigError(f"Got {name} = {_short(first['input'])}: {first['msg']}.") from error
    for name in known:
        _check_size(name, getattr(made, name))  # strings such as "inf" are numbers only now
    return Recipe(method, made)


def accepts(method: str, parameter: str) -> bool:
    """Say whether a method has a parameter."""
    return parameter in {field.name for field in fields(lookup(METHODS, method, "method").Parameters)}


def check_seed(seed: object) -> None:
    """Refuse what is no seed for every generator of random numbers."""
    if isinstance(seed, int | float) and not (isinstance(seed, int) and 0 <= seed <= LARGEST_SEED):
        raise ConfigError(f"The seed must be a whole number from 0 to {LARGEST_SEED:,}.")


def _check_size(name: str, value: object) -> None:
    """Refuse numbers that no parameter can mean, also inside of lists."""
    if isinstance(value, list | tuple):
        for item in value:
            _check_size(name, item)
    elif name == "seed":
        check_seed(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"Got {name} = {value}, expected a finite number.")
    elif isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
        raise ConfigError(f"{name} must be at most {LARGEST:,} and at least -{LARGEST:,}.")


def _short(value: object) -> str:
    """Show a value in a message, cut where it is long."""
    shown = repr(value)
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"


def read_recipe(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read a recipe file: `method = "…"` and a `[parameters]` table."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, too many digits, too many brackets
        raise ConfigError(f"The recipe {path} is not TOML: {error}.") from error
    unknown = set(content) - {"method", "parameters"}
    if unknown:
        raise ConfigError(f"The recipe {path} has {sorted(unknown)}; expected `method` and a `[parameters]` table.")
    method, parameters = content.get("method"), content.get("parameters", {})
    if not isinstance(method, str | None) or not isinstance(parameters, dict):
        raise ConfigError(
            f"The recipe {path} has method = {_short(method)} and parameters = {_short(parameters)}; expected a name "
            "and a table."
        )
    return method, parameters


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` overrides; a value is JSON where it can be, else a string."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"Got --set {setting!r}, expected key=value, for example --set epochs=5.")
        try:
            values[key] = json.loads(value)
        except (ValueError, RecursionError):  # not JSON, too many digits, too many brackets
            values[key] = value
    return values

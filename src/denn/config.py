"""Recipes: a TOML file and overrides, checked against a method's parameters."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from denn.errors import ConfigError
from denn.protocols import Method
from denn.registry import METHODS, did_you_mean, lookup

LARGEST = 10**9  # largest number in a recipe, except for the seed
LARGEST_SEED = 2**63 - 1
SHOWN = 60  # characters of a value in a message
PLAIN = {  # pydantic's words → ours
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid string": "a string",
    "a valid tuple": "a list",
    "a valid list": "a list",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


@dataclass(frozen=True)
class Recipe:
    """A method's name and all its parameters, as stored in the bundle."""

    method: str
    parameters: Any  # the frozen dataclass `Parameters` of the method's class

    def build(self) -> Method:
        """Create the method."""
        made: Method = lookup(METHODS, self.method, "method")(self.parameters)
        return made

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"method": self.method, "parameters": asdict(self.parameters)}


def make_recipe(method: str, parameters: Mapping[str, Any]) -> Recipe:
    """Check parameters and their types against the method's own; reject unknown names."""
    from pydantic import TypeAdapter, ValidationError  # imported late to keep the command line's help fast

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
        raise ConfigError(_invalid(error.errors())) from error
    for name in known:
        _check_size(name, getattr(made, name))  # strings such as "inf" have become numbers by now
    return Recipe(method, made)


def _invalid(errors: Sequence[Any]) -> str:
    """Describe pydantic's errors about the first invalid parameter, one for each type that it may have."""
    first = errors[0]
    name = str(first["loc"][0]) if first["loc"] else "the parameters"
    wanted = [error["msg"].partition("Input should be ")[2] for error in errors if error["loc"][:1] == first["loc"][:1]]
    if not all(wanted):
        return f"{name} = {_short(first['input'])} is not valid: {first['msg'].removeprefix('Value error, ')}."
    expected = " or ".join(dict.fromkeys(re.sub(", (unable to|got) .*", "", one) for one in wanted))
    for theirs, ours in PLAIN.items():
        expected = expected.replace(theirs, ours)
    return f"{name} must be {expected}, not {_short(first['input'])}."


def accepts(method: str, parameter: str) -> bool:
    """Return whether a method has a parameter."""
    return parameter in {field.name for field in fields(lookup(METHODS, method, "method").Parameters)}


def check_seed(seed: object) -> None:
    """Reject a seed that some random number generator cannot take."""
    if isinstance(seed, int | float) and not (isinstance(seed, int) and 0 <= seed <= LARGEST_SEED):
        raise ConfigError(f"The seed must be a whole number from 0 to {LARGEST_SEED:,}.")


def _check_size(name: str, value: object) -> None:
    """Reject numbers that no parameter can have, also inside lists."""
    if isinstance(value, list | tuple):
        for item in value:
            _check_size(name, item)
    elif name == "seed":
        check_seed(value)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, not {value}.")
    elif isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
        raise ConfigError(f"{name} must be a number from -{LARGEST:,} to {LARGEST:,}.")


def _short(value: object) -> str:
    """Return the repr of a value, shortened if it is long."""
    shown = repr(value)
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"


def read_recipe(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read a recipe file: `method = "…"` and a `[parameters]` table."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, too many digits, too many brackets
        raise ConfigError(f"The recipe {path} is not valid TOML: {error}.") from error
    unknown = set(content) - {"method", "parameters"}
    if unknown:
        raise ConfigError(
            f"The recipe {path} has {sorted(unknown)}; expected only `method` and a `[parameters]` table."
        )
    method, parameters = content.get("method"), content.get("parameters", {})
    if not isinstance(method, str | None) or not isinstance(parameters, dict):
        raise ConfigError(
            f"The recipe {path} has method = {_short(method)} and parameters = {_short(parameters)}; expected a name "
            "and a table."
        )
    return method, parameters


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` overrides; a value that is not JSON is a string."""
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

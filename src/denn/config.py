"""Recipes: a TOML file and overrides, checked against a method's parameters."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from denn.errors import ConfigError
from denn.registry import METHODS, did_you_mean, lookup


@dataclass(frozen=True)
class Recipe:
    """A method's name and its full parameters, as the bundle keeps them."""

    method: str
    parameters: Any  # the frozen dataclass `Parameters` of the method's class

    def build(self) -> Any:
        """Make the method."""
        return lookup(METHODS, self.method, "method")(self.parameters)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"method": self.method, "parameters": asdict(self.parameters)}


def make_recipe(method: str, parameters: Mapping[str, Any]) -> Recipe:
    """Check parameters against the method's own, with their types; unknown names are errors."""
    kind = lookup(METHODS, method, "method").Parameters
    known = [field.name for field in fields(kind)]
    for name in parameters:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"The method {method!r} has no parameter {name!r}.{hint} It has: {', '.join(known)}.")
        value = parameters[name]
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"Got {name} = {value}, expected a finite number.")
    try:
        return Recipe(method, TypeAdapter(kind).validate_python(dict(parameters)))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "the parameters"
        raise ConfigError(f"Got {name} = {first['input']!r}: {first['msg']}.") from error


def read_recipe(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Read a recipe file: `method = "…"` and a `[parameters]` table."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The recipe {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The recipe {path} is not TOML: {error}.") from error
    unknown = set(content) - {"method", "parameters"}
    if unknown:
        raise ConfigError(f"The recipe {path} has {sorted(unknown)}; expected `method` and a `[parameters]` table.")
    method, parameters = content.get("method"), content.get("parameters", {})
    if not isinstance(method, str | None) or not isinstance(parameters, dict):
        raise ConfigError(
            f"The recipe {path} has method = {method!r} and parameters = {parameters!r}; expected a name and a table."
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
        except json.JSONDecodeError:
            values[key] = value
    return values

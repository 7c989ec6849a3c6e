"""JSON without NaN and infinity, which Python writes by default and other readers reject."""

from __future__ import annotations

import json
import math
from typing import Any

from denn.errors import DataError, DennError


def dumps(content: Any, what: str, error: type[DennError] = DataError, **options: Any) -> str:
    """Write JSON; the error for a number that is not finite says where in `what` it is."""
    try:
        return json.dumps(content, allow_nan=False, **options)
    except ValueError as reason:
        place = not_finite(content)
        if place is None:
            raise
        raise error(
            f"{what} was not written: {place}, expected a finite number. Train again with a lower learning rate, or "
            "restore the model from a copy."
        ) from reason


def loads(text: str) -> Any:
    """Read JSON; NaN and infinity raise a ValueError, like anything else that is not JSON."""
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def not_finite(content: Any, place: str = "") -> str | None:
    """Describe the first number in lists and mappings that is not finite, such as "history.0.loss is nan"."""
    if isinstance(content, float):
        return None if math.isfinite(content) else f"{place or 'the number'} is {content}"
    if isinstance(content, dict):
        parts = list(content.items())
    else:
        parts = list(enumerate(content)) if isinstance(content, list | tuple) else []
    found = (not_finite(part, f"{place}.{key}".removeprefix(".")) for key, part in parts)
    return next(filter(None, found), None)

"""Settings of each method, beyond those that all share, with which it learns the tiny corpus in about a second."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "denn": {},
    "bert": {},
    "dummy": {},
}

# Where a dozen documents are to be learnt by heart.
BY_HEART: dict[str, dict[str, Any]] = {}

# Why a method cannot learn a dozen documents by heart.
FORGETFUL: dict[str, str] = {"dummy": "reads no text"}

# Methods that draw nothing by lot: every seed gives the same.
WITHOUT_CHANCE = {"dummy"}

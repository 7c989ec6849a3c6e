"""Limits for whole numbers in a model's folder, so that an untrusted model cannot exhaust memory or time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Layers = Annotated[int, Field(ge=1, le=100)]
Neighbourhood = Annotated[int, Field(ge=1, le=100_000)]  # documents that vote
Length = Annotated[int, Field(ge=1, le=1_000_000)]  # tokens or words of a text

"""The machine behind a figure, and output of results."""

from __future__ import annotations

import json
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from denn_bench.machine import machine as described


def machine() -> dict[str, Any]:
    """Return CPU, GPU, versions and date."""
    return {
        **described(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def report(result: dict[str, Any], path: Path | None) -> None:
    """Print a result with its machine as JSON, and write it to a path if given."""
    text = json.dumps({**result, "machine": machine()}, indent=1)
    print(text)
    if path:
        path.write_text(text + "\n")

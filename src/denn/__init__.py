"""denn: multi-label text classification with nearest neighbours."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from denn.build import train
    from denn.data.corpus import read_corpus
    from denn.data.vocabularies import read_vocabulary
    from denn.errors import DennError
    from denn.frame import to_frame
    from denn.model import Model, load
    from denn.prediction_types import Neighbour, Prediction
    from denn.refitting import refit
    from denn.types import Corpus, Document, Where
    from denn.vocabulary import Vocabulary

# Threads that spin while waiting take cores from those that work. OpenMP reads this when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"

__all__ = [
    "Corpus",
    "DennError",
    "Document",
    "Model",
    "Neighbour",
    "Prediction",
    "Vocabulary",
    "Where",
    "__version__",
    "load",
    "read_corpus",
    "read_vocabulary",
    "refit",
    "to_frame",
    "train",
]

_HOMES = {
    "Corpus": "denn.types",
    "DennError": "denn.errors",
    "Document": "denn.types",
    "Model": "denn.model",
    "Neighbour": "denn.prediction_types",
    "Prediction": "denn.prediction_types",
    "Vocabulary": "denn.vocabulary",
    "Where": "denn.types",
    "load": "denn.model",
    "read_corpus": "denn.data.corpus",
    "read_vocabulary": "denn.data.vocabularies",
    "refit": "denn.refitting",
    "sklearn": "denn",
    "to_frame": "denn.frame",
    "train": "denn.build",
}


def __dir__() -> list[str]:
    """List the public names for tab completion, including those not imported yet."""
    loaded = (name for name in globals() if name.startswith("__") or f"denn.{name}" in sys.modules)
    return sorted({*loaded, *_HOMES})


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `import denn` is fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'denn' has no attribute {name!r}")
    home = _HOMES[name]
    return import_module(f"denn.{name}") if home == "denn" else getattr(import_module(home), name)

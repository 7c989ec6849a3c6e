"""GoEmotions (Demszky et al. 2020): 28 emotions of short comments, in the published split."""

from pathlib import Path

from denn.data.corpus import read_published
from denn.types import Corpus


def load(folder: Path) -> Corpus:
    """Read `train`, `valid` and `test` from `<folder>/<part>.jsonl[.zst]`."""
    return read_published(folder, "goemotions", {"train": 43410, "valid": 5426, "test": 5427}, labels=28)

"""Reuters-21578 in the ModApte split: 90 topics of newswire stories, without a published validation part."""

from pathlib import Path

from denn.data.corpus import read_published
from denn.types import Corpus


def load(folder: Path) -> Corpus:
    """Read `train` and `test` from `<folder>/<part>.jsonl[.zst]`; a tenth of train becomes `valid`."""
    return read_published(folder, "reuters21578", {"train": 7770, "test": 3019}, labels=90)

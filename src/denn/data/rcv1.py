"""RCV1-V2 (Lewis et al. 2004): newswire stories with 103 topics, in the split of SGM (Yang et al. 2018)."""

from __future__ import annotations

from pathlib import Path

from denn.data.published import SGM, jsonl, read_published
from denn.types import Corpus


def load(folder: Path) -> Corpus:
    """Read `<part>.jsonl` or SGM's files of texts and labels."""
    return read_published(folder, "rcv1", (jsonl("train", "valid", "test"), *SGM))

"""What the frozen layers of an encoder make of texts: computed once, kept in memory or in a mapped file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder

IN_MEMORY = 2**30  # bytes of states, at most; more go to a file in the folder of the training
SPARE = 2**30  # bytes that a file leaves free on its disk, for the model
BYTES = 2  # a number


def fits(encoder: TransformerEncoder, tokens: int, folder: Path) -> bool:
    """Say whether the states of so many tokens can be kept."""
    needed = tokens * encoder.width * BYTES
    return needed <= _memory() or needed + SPARE <= shutil.disk_usage(folder).free


def keep(
    encoder: TransformerEncoder, tokens: Tokens, folder: Path, report: Callable[[int], None] = lambda done: None
) -> Tokens:
    """Run texts through the frozen layers once, without dropout; `report` hears texts done."""
    states = _room((len(tokens.flat), encoder.width), folder)
    encoder.eval()
    done = 0
    with torch.inference_mode():
        for rows in tokens.by_length(encoder.pass_tokens):
            ids, layout = tokens.pack(rows)
            states[tokens.offsets[rows][layout.document] + layout.positions] = encoder.lower(ids, layout).half()
            done += len(rows)
            report(done)
    return Tokens(states, tokens.offsets, tokens.truncated)


def _room(shape: tuple[int, int], folder: Path) -> Tensor:
    """Return memory, or a mapped file without a name: it goes away with the process."""
    count = shape[0] * shape[1]
    if count * BYTES <= _memory():
        return torch.empty(shape, dtype=torch.float16)
    file = folder / "states.part"
    try:
        with file.open("wb") as opened:
            if sys.platform == "linux":
                os.posix_fallocate(opened.fileno(), 0, count * BYTES)  # a full disk is an error here, no crash later
            else:
                opened.truncate(count * BYTES)
        return torch.from_file(str(file), shared=True, size=count, dtype=torch.float16).view(shape)
    finally:
        file.unlink(missing_ok=True)


def _memory() -> int:
    """Return how many bytes of states may stay in memory: an eighth of the machine's at most."""
    return min(IN_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)

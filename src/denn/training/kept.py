"""Outputs of an encoder's frozen layers: computed once, and kept in memory or in a mapped file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.machine import memory

IN_MEMORY = 2**30  # maximum bytes of states; more go to a file in the training folder
SPARE = 2**30  # bytes that a file leaves free on its disk, for the model
BYTES = 2  # per number


@dataclass
class KeptStates:
    """Results of a first try for a second one: the tokens of all training documents, and their states."""

    tokens: Tokens | None = None
    states: Tokens | None = None

    def of(self, tokens: Tokens) -> Tokens | None:
        """Return the states of exactly these texts, if they are kept."""
        if self.tokens is None or not torch.equal(self.tokens.offsets, tokens.offsets):
            return None
        return self.states if torch.equal(self.tokens.flat, tokens.flat) else None


def fits(encoder: TransformerEncoder, tokens: int, folder: Path | None) -> bool:
    """Return whether there is room for the states of this many tokens, in memory or in a folder if given."""
    needed = tokens * encoder.width * BYTES
    return needed <= _memory() or (folder is not None and needed + SPARE <= shutil.disk_usage(folder).free)


def keep(
    encoder: TransformerEncoder, tokens: Tokens, folder: Path, report: Callable[[int], None] = lambda done: None
) -> Tokens:
    """Run texts through the frozen layers once, without dropout; `report` is called with the number of texts done."""
    states, done = room_for(encoder, tokens, folder), 0
    with torch.inference_mode():
        for some, _, _ in _fill(states, encoder, tokens, torch.arange(len(tokens))):
            done += len(some)
            report(done)
    return states


def embed(
    encoder: TransformerEncoder,
    tokens: Tokens,
    rows: Tensor,
    states: Tokens | None,
    report: Callable[[int], None],
    done: int = 0,
) -> Tensor:
    """Embed the texts of these rows, (n,d), and also keep their states if there is room for them.

    The embeddings are the same either way. `report` gets the number of texts done, counting from `done`.
    """
    if states is None:
        return encoder.encode(tokens.select(rows), lambda read: report(done + read))
    embeddings = torch.empty(len(rows), encoder.width)
    with torch.inference_mode():
        for some, made, layout in _fill(states, encoder, tokens, rows):
            embeddings[some] = encoder(made, layout)
            done += len(some)
            report(done)
    return embeddings


def room_for(encoder: TransformerEncoder, tokens: Tokens, folder: Path) -> Tokens:
    """Allocate space for the states of texts."""
    return Tokens(_room((len(tokens.flat), encoder.width), folder), tokens.offsets, tokens.truncated)


def _fill(
    states: Tokens, encoder: TransformerEncoder, tokens: Tokens, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor, Layout]]:
    """Run the texts of these rows through the frozen layers; keep and yield the results, pass by pass."""
    encoder.eval()
    for some in tokens.select(rows).by_length(encoder.pass_tokens):
        ids, layout = tokens.pack(rows[some])
        made = encoder.lower(ids, layout)
        states.flat[tokens.offsets[rows[some]][layout.document] + layout.positions] = made.half()
        yield some, made, layout


def _room(shape: tuple[int, int], folder: Path) -> Tensor:
    """Return memory, or a mapped file without a name, which disappears with the process."""
    count = shape[0] * shape[1]
    if count * BYTES <= _memory():
        return torch.empty(shape, dtype=torch.float16)
    file = folder / "states.part"
    try:
        with file.open("wb") as opened:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(opened.fileno(), 0, count * BYTES)  # raises on a full disk, instead of a later crash
            else:
                opened.truncate(count * BYTES)
        return torch.from_file(str(file), shared=True, size=count, dtype=torch.float16).view(shape)
    finally:
        with suppress(PermissionError):  # Windows cannot delete a mapped file; the folder is deleted later
            file.unlink(missing_ok=True)


def _memory() -> int:
    """Return how many bytes of states may stay in memory: at most an eighth of the machine's."""
    here = memory()
    return IN_MEMORY if here is None else min(IN_MEMORY, here // 8)

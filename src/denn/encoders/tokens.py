"""Texts as token ids, end to end in one tensor, and batches taken from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from torch import Tensor

from denn.encoders.layout import Layout, send
from denn.encoders.tokenizer_file import explained
from denn.errors import DataError, EncoderError

# A text is cut to this length first, so that 10 MB cost no more than a page. No word piece is longer; only long runs of
# spaces or of letters without a space, which give few tokens, may be cut short by it.
CHARACTERS_PER_TOKEN = 100
USUAL_CHARACTERS_PER_TOKEN = 7  # most texts are read only this far, because the rest would be truncated anyway


@dataclass(frozen=True)
class Tokens:
    """The token ids of n texts, or their states after the encoder's frozen layers."""

    flat: Tensor  # (all tokens,) int32, or (all tokens, d) states
    offsets: Tensor  # (n+1,) int64
    truncated: int = 0  # texts longer than the maximum length

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """The (n,) number of tokens of each text."""
        return self.offsets.diff()

    def first(self, count: int) -> Tokens:
        """Return the first `count` texts."""
        offsets = self.offsets[: count + 1]
        return Tokens(self.flat[: int(offsets[-1])], offsets)

    def select(self, rows: Tensor) -> Tokens:
        """Return the texts of these rows, in order."""
        lengths = self.lengths[rows]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        within = torch.arange(int(offsets[-1])) - torch.repeat_interleave(offsets[:-1], lengths)
        return Tokens(self.flat[torch.repeat_interleave(self.offsets[rows], lengths) + within], offsets)

    def to(self, device: torch.device) -> Tokens:
        """Move the ids, not the offsets, to a device."""
        return Tokens(send(self.flat, device), self.offsets, self.truncated)

    def pack(self, rows: Tensor, multiple: int = 1) -> tuple[Tensor, Layout]:
        """Lay the texts of these rows end to end: (T,) ids or (T,d) states, and their layout, on the same device.

        To make T a `multiple`, a last document of 1 to `multiple` padding tokens is added.
        """
        device = self.flat.device
        lengths, offsets = self.lengths[rows].tolist(), self.offsets[rows]
        if multiple > 1:
            lengths.append(multiple - sum(lengths) % multiple)
            offsets = F.pad(offsets, (0, 1))
        layout = Layout.of(lengths, device)
        places = send(offsets, device)[layout.document] + layout.positions
        picked = self.flat[places.clamp_(max=len(self.flat) - 1)]
        return picked if picked.is_floating_point() else picked.long(), layout

    def by_length(self, budget: int, most: int | None = None) -> Iterator[Tensor]:
        """Yield rows in chunks of at most `budget` tokens and `most` texts, longest first.

        A text longer than the budget is a separate chunk.
        """
        order = torch.argsort(self.lengths, descending=True, stable=True)
        sizes = self.lengths[order].tolist()
        start, total = 0, 0
        for end, size in enumerate(sizes):
            if end > start and (total + size > budget or end - start == most):
                yield order[start:end]
                start, total = end, 0
            total += size
        if sizes:
            yield order[start:]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], max_length: int, vocabulary: int) -> Tokens:
    """Convert texts to ids, truncated to `max_length` tokens including [CLS] and [SEP]; a text without tokens is id 0.

    Raise an EncoderError if the tokenizer returns more tokens, or ids beyond the vocabulary: it is another model's.
    """
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    limit = max_length * CHARACTERS_PER_TOKEN
    chunks: list[NDArray[np.uint32]] = []
    truncated = 0
    for start in range(0, len(texts), 1024):
        some = texts[start : start + 1024]
        encodings = _encode_beginnings(tokenizer, [text[:limit] for text in some], max_length)
        truncated += sum(cut or len(text) > limit for (_, cut), text in zip(encodings, some, strict=True))
        chunks.extend(np.array(ids or [0], dtype=np.uint32) for ids, _ in encodings)
    sizes = [len(chunk) for chunk in chunks]
    flat = np.concatenate(chunks) if chunks else np.empty(0, np.uint32)
    if chunks and (max(sizes) > max_length or int(flat.max()) >= vocabulary):
        raise EncoderError(
            f"The tokenizer does not belong to the encoder: it returns {max(sizes)} tokens with ids up to "
            f"{int(flat.max())}, expected at most {max_length} with ids below {vocabulary}. Download the encoder again."
        )
    offsets = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    offsets[1:] = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    return Tokens(torch.from_numpy(flat.view(np.int32)), offsets, truncated)


def _encode_beginnings(tokenizer: Tokenizer, texts: list[str], max_length: int) -> list[tuple[list[int], bool]]:
    """Return the ids of each text, and whether there were more than `max_length`.

    A tokenizer that never looks beyond a space reads the beginnings first. If a beginning gives the maximum number of
    tokens, the whole text would give the same ones; other texts are then read as a whole.
    """
    if not isinstance(tokenizer.pre_tokenizer, BertPreTokenizer):
        return [(encoding.ids, bool(encoding.overflowing)) for encoding in _encode(tokenizer, texts)]
    beginnings = [_beginning(text, max_length * USUAL_CHARACTERS_PER_TOKEN) for text in texts]
    found = [(encoding.ids, bool(encoding.overflowing)) for encoding in _encode(tokenizer, beginnings)]
    short = [
        place
        for place, (begun, text, (_, cut)) in enumerate(zip(beginnings, texts, found, strict=True))
        if len(begun) < len(text) and not cut
    ]
    whole = _encode(tokenizer, [texts[place] for place in short])
    for place, encoding in zip(short, whole, strict=True):
        found[place] = encoding.ids, bool(encoding.overflowing)
    return found


def _beginning(text: str, characters: int) -> str:
    """Return the words of a text that end within this many characters, or all of it if there is no space to end at."""
    end = text.rfind(" ", 0, characters) if len(text) > characters else -1
    return text if end < 0 else text[:end]


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    """Encode texts; turn the library's errors into sentences."""
    with explained("The encoder's tokenizer cannot be used"):
        try:
            return tokenizer.encode_batch_fast(texts)
        except TypeError as error:
            fault = "A text contains a lone surrogate (U+D800 to U+DFFF), which is not a character. Remove it."
            raise DataError(fault) from error

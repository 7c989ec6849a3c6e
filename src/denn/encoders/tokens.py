"""Texts as token ids, all end to end in one tensor, and batches cut out of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from denn.encoders.layout import Layout, send
from denn.encoders.tokenizer_file import explained
from denn.errors import DataError, EncoderError

# A text is cut here first, so that 10 MB cost no more than a page. No word piece is longer; only long runs of blanks or
# of letters without a blank, which give few tokens, may be cut short by it.
CHARACTERS_PER_TOKEN = 100


@dataclass(frozen=True)
class Tokens:
    """The token ids of n texts."""

    flat: Tensor  # (all tokens,) int32
    offsets: Tensor  # (n+1,) int64
    truncated: int = 0  # texts longer than the maximum length

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> Tensor:
        """The (n,) number of tokens of each text."""
        return self.offsets.diff()

    def first(self, count: int) -> Tokens:
        """Return the first texts."""
        offsets = self.offsets[: count + 1]
        return Tokens(self.flat[: int(offsets[-1])], offsets)

    def select(self, rows: Tensor) -> Tokens:
        """Return the texts of these rows, in their order."""
        lengths = self.lengths[rows]
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        within = torch.arange(int(offsets[-1])) - torch.repeat_interleave(offsets[:-1], lengths)
        return Tokens(self.flat[torch.repeat_interleave(self.offsets[rows], lengths) + within], offsets)

    def to(self, device: torch.device) -> Tokens:
        """Move the ids, not the offsets, to a device."""
        return Tokens(self.flat.to(device), self.offsets, self.truncated)

    def pack(self, rows: Tensor, multiple: int = 1) -> tuple[Tensor, Layout]:
        """Lay the texts of these rows end to end: (T,) ids and their layout, on the device of the ids.

        Where T shall be a `multiple`, a last document that means nothing, of 1 to `multiple` tokens, fills it up.
        """
        device = self.flat.device
        lengths, offsets = self.lengths[rows].tolist(), self.offsets[rows]
        if multiple > 1:
            lengths.append(multiple - sum(lengths) % multiple)
            offsets = F.pad(offsets, (0, 1))
        layout = Layout.of(lengths, device)
        places = send(offsets, device)[layout.document] + layout.positions
        return self.flat[places.clamp_(max=len(self.flat) - 1)].long(), layout

    def by_length(self, budget: int, most: int | None = None) -> Iterator[Tensor]:
        """Yield rows in chunks of at most `budget` tokens and `most` texts, longest first.

        A text longer than the budget is a chunk of its own.
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
    """Turn texts into ids, cutting at `max_length` tokens, [CLS] and [SEP] included; no token at all is id 0.

    A tokenizer of another model may give more tokens than that, or ids beyond the vocabulary: an error.
    """
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length)
    limit = max_length * CHARACTERS_PER_TOKEN
    chunks: list[Tensor] = []
    sizes: list[int] = []
    truncated = 0
    for start in range(0, len(texts), 1024):
        some = texts[start : start + 1024]
        encodings = _encode(tokenizer, [text[:limit] for text in some])
        truncated += sum(bool(e.overflowing) or len(text) > limit for e, text in zip(encodings, some, strict=True))
        ids = [e.ids or [0] for e in encodings]
        sizes.extend(map(len, ids))
        chunks.append(torch.tensor([token for row in ids for token in row], dtype=torch.int64))
        if max(map(len, ids)) > max_length or int(chunks[-1].max()) >= vocabulary:
            raise EncoderError(
                f"The tokenizer does not belong to the encoder: it gives {max(map(len, ids))} tokens up to number "
                f"{int(chunks[-1].max())}, expected at most {max_length} below {vocabulary}. Fetch the encoder again."
            )
    offsets = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    offsets[1:] = torch.tensor(sizes, dtype=torch.int64).cumsum(0)
    return Tokens(torch.cat(chunks).int() if chunks else torch.empty(0, dtype=torch.int32), offsets, truncated)


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    """Encode texts; what the library cannot do with them is a sentence."""
    with explained("The encoder's tokenizer cannot be used"):
        try:
            return tokenizer.encode_batch(texts)
        except TypeError as error:
            fault = "A text contains a lone surrogate (U+D800 to U+DFFF), which is not a character. Remove it."
            raise DataError(fault) from error

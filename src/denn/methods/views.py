"""The second view of each text in contrastive learning: the same tokens, some masked, or shuffled.

All work stays on the device of the ids and never waits; the random numbers come from the device's generator.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from denn.encoders.layout import Layout
from denn.errors import ConfigError

SHARE = 0.15  # share of a text's tokens to mask, except [CLS] and [SEP]
MASK_TOKENS = ("<mask>", "[MASK]")  # in this order: MPNet's vocabulary also has BERT's, which it never learnt


def mask_token(tokenizer: Tokenizer, view: str) -> int:
    """Return the id of the mask token; −1 if there is none and the view does not need it."""
    for token in MASK_TOKENS:
        if (found := tokenizer.token_to_id(token)) is not None:
            return int(found)
    if view in ("masking", "span"):
        raise ConfigError(
            f"Got view={view}, but the encoder's tokenizer has no mask token ({' or '.join(MASK_TOKENS)}). Use "
            "view=dropout or view=shuffle, or another encoder."
        )
    return -1


def dropout(ids: Tensor, layout: Layout, second: Tensor, mask_id: int) -> Tensor:
    """Leave the ids unchanged: the encoder's dropout makes the views differ."""
    return ids


def masking(ids: Tensor, layout: Layout, second: Tensor, mask_id: int) -> Tensor:
    """Mask each token of a second view with probability SHARE."""
    chosen = torch.rand(ids.shape, device=ids.device) < SHARE
    return ids.masked_fill(chosen & second & _inner(layout), mask_id)


def span(ids: Tensor, layout: Layout, second: Tensor, mask_id: int) -> Tensor:
    """Mask one run of SHARE of the tokens of each second view, at least one, at a random place."""
    inner = layout.sizes - 2  # (n,)
    width = (SHARE * inner).round().clamp(min=1)
    start = 1 + (torch.rand(inner.shape, device=ids.device) * (inner - width + 1)).floor()
    since = layout.positions - start[layout.document]  # (T,)
    chosen = (since >= 0) & (since < width[layout.document])
    return ids.masked_fill(chosen & second & _inner(layout), mask_id)


def shuffle(ids: Tensor, layout: Layout, second: Tensor, mask_id: int) -> Tensor:
    """Permute the tokens of each second view between its first and its last."""
    drawn = torch.rand(ids.shape, device=ids.device)
    # Values in [0,1) sort between the first position and the last; a stable sort keeps the first token in front.
    keys = torch.where(second & _inner(layout), drawn, layout.positions.to(drawn.dtype))
    by_key = keys.argsort(stable=True)
    return ids[by_key[layout.document[by_key].argsort(stable=True)]]


def _inner(layout: Layout) -> Tensor:
    """Return which (T,) tokens are neither the first nor the last of their document."""
    return (layout.positions != 0) & (layout.positions.roll(-1) != 0)

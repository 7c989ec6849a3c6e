"""The forward pass of architectures without a packed form."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from denn.encoders.layout import Layout


def padded_states(model: Any, ids: Tensor, layout: Layout) -> Tensor:
    """Run packed (T,) ids through the model's own forward, padded to the longest text: (T,d)."""
    longest = layout.longest
    padded = ids.new_zeros(len(layout.starts) - 1, longest)
    padded[layout.document, layout.positions] = ids
    mask = torch.arange(longest, device=ids.device) < layout.sizes[:, None]
    states = model(input_ids=padded, attention_mask=mask.long()).last_hidden_state
    return cast(Tensor, states[layout.document, layout.positions])

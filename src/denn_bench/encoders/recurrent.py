"""LSTM and GRU layers over texts of different lengths."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from denn.encoders.layout import Layout, send

State = tuple[Tensor, ...]  # (m,h) outputs, and the cells of an LSTM


class Recurrent(nn.Module):
    """LSTM or GRU layers over padded texts that stop at the end of each text; states start at zero.

    Layers run one at a time, with torch's dropout between them: cuDNN's own dropout is initialised again, at great
    cost, whenever the generator is seeded, which the training loop does in every step.
    """

    def __init__(
        self, kind: str, width: int, hidden: int, *, layers: int = 1, both_ways: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        make = {"lstm": nn.LSTM, "gru": nn.GRU}[kind]
        wide = hidden * (2 if both_ways else 1)
        self.layers = nn.ModuleList(make(wide if i else width, hidden, bidirectional=both_ways) for i in range(layers))
        self.dropout = dropout

    def forward(self, vectors: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the (n,T,w·h) states of (n,T,d) vectors, zeros after each text, and the (layers·w,n,h) last ones.

        The last states of an LSTM are its outputs, without its cells; `run` gives both.
        """
        states, last = self.run(vectors, layout)
        return states, last[0]

    def run(self, vectors: Tensor, layout: Layout) -> tuple[Tensor, State]:
        """Return the states, and the last ones in full: outputs, and cells of an LSTM."""
        n, longest, _ = vectors.shape
        slots, sequence = _by_time(vectors.float(), layout)
        lasts: list[State] = []
        slow = torch.is_grad_enabled() and vectors.device.type == "cpu"
        with torch.autocast(
            vectors.device.type, enabled=False
        ):  # on CUDA this would mean float16, in which small gradients vanish
            for i, layer in enumerate(self.layers):
                if i:
                    sequence = sequence._replace(data=F.dropout(sequence.data, self.dropout, self.training))
                sequence, last = _train_on_cpu(cast(nn.RNNBase, layer), sequence) if slow else layer(sequence)
                lasts.append(last if isinstance(last, tuple) else (last,))
        states = sequence.data.new_zeros(n * longest, sequence.data.shape[1]).index_copy(0, slots, sequence.data)
        return states.view(n, longest, -1), tuple(torch.cat(part) for part in zip(*lasts, strict=True))


def _by_time(vectors: Tensor, layout: Layout) -> tuple[Tensor, PackedSequence]:
    """Pack the words of (n,T,d) padded texts for recurrent layers: all first words, all second words, …

    Also return their (words,) positions in the flattened padded texts. torch's own functions do the same, but copy
    the whole gradient once for every text length.
    """
    longest, device = vectors.shape[1], vectors.device
    sizes = torch.tensor(layout.lengths)
    order = sizes.argsort(descending=True, stable=True)
    counts = (sizes[:, None] > torch.arange(int(sizes.max()))).sum(
        0
    )  # (T,) number of texts with at least this many words, on the CPU
    first, rank = send(counts.cumsum(0) - counts, device), send(order.argsort(), device)
    slots = layout.document * longest + layout.positions
    rows = first[layout.positions] + rank[layout.document]
    slots = torch.empty_like(slots).scatter_(0, rows, slots)
    words = vectors.flatten(0, 1).index_select(0, slots)
    return slots, PackedSequence(words, counts, send(order, device), rank)


def _train_on_cpu(layer: nn.RNNBase, sequence: PackedSequence) -> tuple[PackedSequence, State]:
    """Run the layer step by step, so that the time of its backward pass is linear in the number of words.

    torch's own backward pass on the CPU writes zeros of the size of all words in every step: eight times as slow for
    SGM on abstracts.
    """
    outputs, lasts = [], []
    for suffix in ("", "_reverse") if layer.bidirectional else ("",):
        given, own = (getattr(layer, f"weight_{part}_l0{suffix}") for part in ("ih", "hh"))
        bias, own_bias = (getattr(layer, f"bias_{part}_l0{suffix}") for part in ("ih", "hh"))
        step = _lstm if isinstance(layer, nn.LSTM) else _gru
        counts = sequence.batch_sizes.tolist()
        gates = torch.split(F.linear(sequence.data, given, bias), counts)
        start = (gates[0].new_zeros(counts[0], layer.hidden_size),) * (2 if step is _lstm else 1)
        found: list[Tensor] = [gates[0]] * len(counts)
        ended: list[State] = []
        state = tuple(part[:0] for part in start) if suffix else start
        for place in reversed(range(len(counts))) if suffix else range(len(counts)):
            more = counts[place] - len(state[0])
            if more > 0:  # backwards, the longest texts start first
                state = tuple(torch.cat([part, zeros[:more]]) for part, zeros in zip(state, start, strict=True))
            elif more < 0:  # forwards, the shortest texts end first
                ended.append(tuple(part[more:] for part in state))
                state = tuple(part[:more] for part in state)
            state = step(gates[place], state, own, own_bias)
            found[place] = state[0]
        outputs.append(torch.cat(found))
        parts = zip(state, *reversed(ended), strict=True)
        lasts.append([torch.cat(part)[sequence.unsorted_indices] for part in parts])
    last = tuple(torch.stack(part) for part in zip(*lasts, strict=True))
    return sequence._replace(data=torch.cat(outputs, 1)), last


def _lstm(gates: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
    """Take a step of an LSTM: (m,4h) gate inputs from the words, and the previous state."""
    output, cells = state
    enter, keep, new, leave = (gates + F.linear(output, weight, bias)).chunk(4, 1)
    cells = torch.sigmoid(keep) * cells + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cells), cells


def _gru(gates: Tensor, state: State, weight: Tensor, bias: Tensor) -> State:
    """Take a step of a GRU: (m,3h) gate inputs from the words, and the previous state."""
    (output,) = state
    reset, keep, new = gates.chunk(3, 1)
    own_reset, own_keep, own_new = F.linear(output, weight, bias).chunk(3, 1)
    new = torch.tanh(new + torch.sigmoid(reset + own_reset) * own_new)
    return (torch.lerp(new, output, torch.sigmoid(keep + own_keep)),)

"""Shared code of methods that generate label sequences: vocabulary, targets, attention, decoder, beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.training.bounds import Layers
from denn.training.network import Batch, Network
from denn.training.plan import Schedule
from denn.types import Corpus
from denn_bench.core.beam import Beams, State, Step, beam_search, best_labels, label_marginals
from denn_bench.encoders.recurrent import Recurrent
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.word_parameters import WordParameters

NOTHING = -100  # target after a sequence's end, ignored by every loss
AT_ONCE = 2**28  # maximum number of scores of beams × labels in an inference pass
MARGIN = 2  # labels that a text may get beyond the largest label set in training

Share = Annotated[float, Field(ge=0, lt=1)]
Beam = Annotated[int, Field(ge=1, le=100)]  # sequences kept at each step
Order = Literal["frequent_first", "rare_first"]


@dataclass(frozen=True, kw_only=True)
class SequenceParameters(WordParameters):
    """Parameters, with the sizes of SGM and its successors on AAPD."""

    word_width: PositiveInt = 256
    hidden: PositiveInt = 256  # hidden units per direction of the encoder; the decoder has twice as many
    encoder_layers: Layers = 2
    decoder_layers: Layers = 1
    dropout: Share = 0.5  # between layers
    word_dropout: Share | None = None  # of word vectors; None: the same as dropout
    head_dropout: Share | None = None  # before the head; None: the same as dropout
    label_dropout: Share = 0.0  # of label vectors
    label_width: PositiveInt | None = None  # of label vectors; None: the same as word_width
    order: Order = "frequent_first"  # order of a document's labels, by training frequency
    beam: Beam = 5  # number of beams
    length_normalised: bool = False  # rank beams by their log-probability per token
    max_labels: PositiveInt | None = (
        None  # maximum number of labels per text; None: two more than any training document has
    )
    batch_size: PositiveInt = 64
    epochs: NonNegativeInt = 20
    schedule: Schedule = "constant"
    learning_rate: PositiveFloat = 1e-3
    clip: NonNegativeFloat = 10.0


class Memory(NamedTuple):
    """The encoded words that the decoder attends to."""

    states: Tensor  # (n,T,d) of the words
    real: Tensor  # (n,T) bool: words, not padding
    keys: Tensor  # (n,T,a) keys


class AdditiveAttention(nn.Module):
    """Bahdanau's attention: c = Σ_i α_i h_i with α = softmax_i(vᵀ tanh(W q + U h_i)) over the real words."""

    def __init__(self, query: int, memory: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, width)
        self.key = nn.Linear(memory, width, bias=False)
        self.value = nn.Linear(width, 1, bias=False)

    def keys(self, states: Tensor) -> Tensor:
        """Return U h of (n,T,d) states, the same for every step."""
        keys: Tensor = self.key(states)
        return keys

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        """Return (m,d) contexts of (m,q) queries; m = n·b, with the b queries of a text adjacent."""
        asked = self.query(query).view(len(memory.states), -1, 1, memory.keys.shape[2])  # (n,b,1,a)
        scores = self.value(torch.tanh(asked + memory.keys[:, None])).squeeze(3)  # (n,b,T)
        return _mix(scores, memory)


class DotAttention(nn.Module):
    """Luong's attention: c = Σ_i α_i h_i with α = softmax_i((W q)ᵀ h_i) over the real words; tanh(W q) if bounded."""

    def __init__(self, query: int, memory: int, *, bounded: bool = True) -> None:
        super().__init__()
        self.query, self.bounded = nn.Linear(query, memory), bounded

    def keys(self, states: Tensor) -> Tensor:
        """Return the states themselves."""
        return states

    def forward(self, query: Tensor, memory: Memory) -> Tensor:
        """Return (m,d) contexts of (m,q) queries; m = n·b, with the b queries of a text adjacent."""
        asked = torch.tanh(self.query(query)) if self.bounded else self.query(query)
        asked = asked.view(len(memory.states), -1, memory.keys.shape[2])  # (n,b,d)
        return _mix(torch.einsum("nbd,ntd->nbt", asked, memory.keys.to(asked.dtype)), memory)


Attention = AdditiveAttention | DotAttention


class Cells(nn.Module):
    """A stack of LSTM or GRU cells that takes one step at a time."""

    def __init__(self, kind: Literal["lstm", "gru"], width: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        make = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind]
        self.cells = nn.ModuleList([make(hidden if layer else width, hidden) for layer in range(layers)])
        self.kind, self.dropout = kind, dropout

    @property
    def parts(self) -> int:
        """Return the number of (m,h) tensors in a state: the outputs of all layers, then the cells of an LSTM."""
        return len(self.cells) * (2 if self.kind == "lstm" else 1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Take one step: (m,w) inputs and a state → (m,h) outputs of the last layer and the new state."""
        outputs, cells = [], []
        for layer, cell in enumerate(self.cells):
            if layer:
                x = F.dropout(x, self.dropout, self.training)
            if self.kind == "lstm":
                x, kept = cell(x, (state[layer], state[len(self.cells) + layer]))
                cells.append(kept)
            else:
                x = cell(x, state[layer])
            outputs.append(x)
        return x, (*outputs, *cells)


class SequenceNetwork(Network):
    """Read words in both directions and generate labels, given the last label and the attended words.

    s_t = cells([g(y_{t−1}); c_{t−1}], s_{t−1}),   c_t = attention(s_t),   z_t = head(tanh(W [s_t; c_t]))
    with g the last label's vector; c_{t−1} is an input only with `feeds_context`. Tokens are the labels 0 … L−1, then
    `end`, and `start`, which no step can choose.
    """

    encoder: WordEncoder
    longest: Tensor
    recordable = False  # recurrent layers stop at the end of each text
    judged = "sequence"  # the originals validate what they generate

    def __init__(
        self, encoder: WordEncoder, labels: int, p: SequenceParameters, kind: Literal["lstm", "gru"],
        attention: Attention | None = None, *, feeds_context: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        wide, self.feeds_context = 2 * p.hidden, feeds_context
        self.encoder, self.labels, self.p = encoder, labels, p
        self.head_dropout = p.dropout if p.head_dropout is None else p.head_dropout
        self.end, self.start_token = labels, labels + 1
        self.most_texts = max(1, AT_ONCE // (p.beam * (labels + 1)))
        self.reader = Recurrent(kind, encoder.width, p.hidden, layers=p.encoder_layers, dropout=p.dropout)
        self.label_vectors = nn.Embedding(labels + 2, p.label_width or encoder.width)
        width = self.label_vectors.embedding_dim + (wide if feeds_context else 0)
        self.cells = Cells(kind, width, wide, p.decoder_layers, p.dropout)
        self.attention = attention or AdditiveAttention(wide, wide, wide)
        self.joined = nn.Linear(2 * wide, wide)
        self.head = nn.Linear(wide, labels + 1)
        self.register_buffer("longest", torch.tensor(0))

    def prepare(self, corpus: Corpus) -> None:
        """Record the largest label set of the training documents."""
        self.longest.fill_(max((len(document.labels) for document in corpus.train), default=0))

    def is_sound(self) -> bool:
        """Check whether the maximum number of labels is known."""
        return 0 <= int(self.longest) <= self.labels

    def read(self, ids: Tensor, layout: Layout) -> tuple[Memory, State]:
        """Encode packed texts: return what the decoder attends to, and its initial state."""
        vectors, real = self.encoder(ids, layout)
        chance = self.p.dropout if self.p.word_dropout is None else self.p.word_dropout
        states, last = self.reader.run(F.dropout(vectors, chance, self.training), layout)
        if torch.is_autocast_enabled(kind := states.device.type):  # once, not in every step of the decoder
            states = states.to(torch.get_autocast_dtype(kind))
        memory = Memory(states, real, self.attention.keys(states))
        state = tuple(part for kind in last for part in _start(kind, self.p.decoder_layers))
        if not self.feeds_context:
            return memory, state
        return memory, (*state, self.attention(state[self.p.decoder_layers - 1], memory))

    def look_up(self, last: Tensor, state: State) -> Tensor:
        """Return the (m,w) vectors g of the last tokens."""
        return F.dropout(self.label_vectors(last), self.p.label_dropout, self.training)

    def step(self, last: Tensor, state: State, memory: Memory) -> tuple[Tensor, State]:
        """Take one step of m sequences: (m,) last tokens → (m,L+1) float32 logits, nothing masked, and the new state.

        The state consists of the cells' state and, if it is fed, the context; a subclass may append to it.
        """
        kept = self.cells.parts
        inputs = self.look_up(last, state)
        if self.feeds_context:
            inputs = torch.cat([inputs, state[kept].to(self.label_vectors.weight.dtype)], 1)
        output, state = self.cells(inputs, state[:kept])
        context = self.attention(output, memory)
        logits = self.classify(output, context)
        return logits, (*state, context) if self.feeds_context else state

    def classify(self, output: Tensor, context: Tensor) -> Tensor:
        """Return the (m,L+1) float32 logits of (m,h) outputs and contexts."""
        joined = torch.tanh(self.joined(torch.cat([output, context.to(output.dtype)], 1)))
        logits: Tensor = self.head(F.dropout(joined, self.head_dropout, self.training)).float()
        return logits

    def teach(self, targets: Tensor, memory: Memory, state: State) -> Tensor:
        """Return the (n,S,L+1) logits with teacher forcing on (n,S) targets."""
        return taught(lambda last, now: self.step(last, now, memory), state, targets, self.start_token)

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the labels in their order, summed over steps, as the mean over texts."""
        targets = target_sequences(batch.labels, self.p.order)
        return sequence_loss(self.teach(targets, *self.read(batch.ids, batch.layout)), targets)

    def beams(self, ids: Tensor, layout: Layout) -> Beams:
        """Search for the most likely sequences of packed texts."""
        memory, state = self.read(ids, layout)
        most = min(self.p.max_labels or int(self.longest) + MARGIN, self.labels)
        return beam_search(
            lambda last, state: self.step(last, state, memory), state, len(memory.states), width=self.p.beam,
            limit=most + 1, start=self.start_token, end=self.end, normalise=self.p.length_normalised,
        )  # fmt: skip

    def infer(self, ids: Tensor, layout: Layout) -> dict[str, Tensor]:
        """Return each label's share of the beams' probability, and the labels of the best beam."""
        beams = self.beams(ids, layout)
        return {"final": label_marginals(beams, self.labels), "sequence": best_labels(beams, self.labels)}


def taught(step: Step, state: State, targets: Tensor, start: int) -> Tensor:
    """Return the (n,S,L+1) logits of a decoder with teacher forcing on (n,S) targets."""
    last, found = torch.full_like(targets[:, 0], start), []
    for place in range(targets.shape[1]):
        logits, state = step(last, state)
        found.append(logits)
        last = targets[:, place].clamp(min=0)  # after the end, any label will do: no loss counts what follows
    return torch.stack(found, 1)


def target_sequences(labels: Tensor, order: Order = "frequent_first", steps: int | None = None) -> Tensor:
    """Return (n,S): each row's labels of (n,L) in column order or its reverse, then the end L, then −100 as padding.

    Columns are in descending frequency. S is the length of the longest row with its end, which requires a device
    synchronisation, or the given number of steps, at which longer rows are truncated.
    """
    n, width = labels.shape
    counts = labels.sum(1)
    if steps is None:
        steps = int(counts.max()) + 1
    columns = torch.arange(width, device=labels.device).expand(n, width)
    if order == "rare_first":
        labels, columns = labels.flip(1), columns.flip(1)
    places = torch.where(labels, labels.cumsum(1) - 1, steps).clamp(
        max=steps
    )  # the last position collects what is left out
    targets = torch.full((n, steps + 1), NOTHING, device=labels.device)
    targets = targets.scatter(1, places, columns).scatter(1, counts.clamp(max=steps)[:, None], width)
    return targets[:, :steps]


def sequence_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of (n,S,V) logits with (n,S) targets, summed over steps, as the mean over texts."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOTHING, reduction="sum") / len(
        targets
    )


def _start(last: Tensor, layers: int) -> Sequence[Tensor]:
    """Concatenate the directions of (layers·2,n,h) last states: `layers` tensors (n,2h), of the encoder's last layers.

    Use zeros if the decoder has more layers than the encoder.
    """
    joined = last.view(-1, 2, *last.shape[1:]).transpose(1, 2).flatten(2)  # (layers,n,2h)
    some = list(joined[-layers:])
    return some + [torch.zeros_like(joined[0])] * (layers - len(some))


def _mix(scores: Tensor, memory: Memory) -> Tensor:
    """Return the (n·b,d) sums of states, weighted by the softmax of (n,b,T) scores over the real words."""
    weights = torch.softmax(scores.float().masked_fill(~memory.real[:, None], -torch.inf), 2)
    return torch.einsum("nbt,ntd->nbd", weights.to(memory.states.dtype), memory.states).flatten(0, 1)

"""Labels as tokens after the text, read by the encoder together with it: [CLS] text [SEP] l₁ … l_C [SEP]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.training.network import Network
from denn.types import Corpus

RESERVED = "[unused"  # name prefixes of unused tokens in the vocabularies of BERT and MPNet


class States(NamedTuple):
    """States of n texts and of the C labels read with each, in float32."""

    text: Tensor  # (n,T,d), zeros after each text; includes [CLS] and [SEP]
    real: Tensor  # (n,T) bool: the tokens of the texts
    labels: Tensor  # (n,C,d)


class LabelTokens(Network):
    """An encoder that reads every text with one token per label after it.

    The tokens are the vocabulary's unused ones; if there are too few, new ones are added. Their vectors are weights of
    their own, which replace their rows of the encoder's table, so that they can have another learning rate than words.
    """

    encoder: TransformerEncoder
    label_ids: Tensor

    def __init__(self, encoder: TransformerEncoder, labels: int) -> None:
        super().__init__()
        check_room(encoder, labels, labels)
        self.encoder = encoder
        table = table_of(encoder)
        # Fixed if the embeddings are: the encoder then computes both without gradients.
        self.token_vectors = nn.Parameter(
            torch.zeros(labels, table.embedding_dim), requires_grad=table.weight.requires_grad
        )
        self.register_buffer("label_ids", torch.full((labels,), -1))
        table.register_forward_hook(self.replace_vectors)

    def prepare(self, corpus: Corpus) -> None:
        """Assign a token to every label, and draw its vector: those of unused tokens are nearly the same in MPNet."""
        nn.init.normal_(self.token_vectors, std=float(table_of(self.encoder).weight.detach().std()))
        vocabulary = self.encoder.tokenizer.get_vocab()
        reserved = sorted(number for token, number in vocabulary.items() if token.startswith(RESERVED))
        count = len(self.label_ids)
        if len(reserved) < count:
            reserved += _add_tokens(self.encoder, count - len(reserved))
        self.label_ids.copy_(torch.tensor(reserved[:count]))

    def replace_vectors(self, table: nn.Module, inputs: tuple[Tensor], vectors: Tensor) -> Tensor:
        """Replace the rows of the labels' tokens in what the table returns, (…,d) vectors of (…) ids."""
        chosen = inputs[0][..., None] == self.label_ids  # (…,C)
        own = F.embedding(chosen.int().argmax(-1), self.token_vectors)
        return torch.where(chosen.any(-1, keepdim=True), own, vectors)

    def is_sound(self) -> bool:
        """Check whether every label has a token."""
        return bool(((self.label_ids >= 0) & (self.label_ids < self.encoder.vocabulary)).all())

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts, truncated so that the labels and a final [SEP] fit."""
        behind = len(self.label_ids) + 1
        tokens = self.encoder.tokenize(texts, reserved=behind)
        if not texts:
            return tokens
        end = tokens.flat[-1:]  # [SEP]
        return insert(tokens, torch.cat([self.label_ids.cpu().to(end.dtype), end]), tokens.lengths)

    def read(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None, count: int | None = None) -> States:
        """Encode packed texts; `count` excludes a final padding document."""
        n, labels, device = count or len(layout.starts) - 1, len(self.label_ids), ids.device
        starts = layout.starts.long()
        ends = starts[1:] - labels - 1  # after each text's [SEP]
        since = torch.arange(len(ids), device=device) - ends[layout.document]
        in_labels = (since >= 0) & (since < labels)  # the last [SEP] is of the text's kind
        states = self.encoder.states(ids, layout, seeds, types=in_labels.long()).float()
        columns = torch.arange(layout.longest - labels - 1, device=device)
        real = columns < (ends - starts[:-1])[:n, None]
        rows = (starts[:-1][:n, None] + columns).clamp(max=len(ids) - 1)
        text = pick(states, rows) * real[:, :, None]
        return States(text, real, pick(states, ends[:n, None] + torch.arange(labels, device=device)))


def check_room(encoder: TransformerEncoder, labels: int, pieces: int) -> None:
    """Reject labels whose tokens leave no room for [CLS], one token of text, and two [SEP]."""
    if pieces > room(encoder):
        names = "every label is a token" if pieces == labels else f"their names are {pieces} tokens"
        raise ConfigError(
            f"Got {labels} labels and a length of {encoder.max_length} tokens: {names} next to the text, so at most "
            f"{room(encoder)} fit. Use a method that reads the text alone, such as bert."
        )


def room(encoder: TransformerEncoder) -> int:
    """Return how many tokens fit in addition to [CLS], one token of text, and two [SEP]."""
    return encoder.max_length - 4


def insert(tokens: Tokens, run: Tensor, places: Tensor) -> Tokens:
    """Insert the same ids into every text, before the token at the text's (n,) position, or at its end."""
    width, numbers = len(run), torch.arange(len(tokens))
    offsets = tokens.offsets + width * torch.arange(len(tokens) + 1)
    document = torch.repeat_interleave(numbers, tokens.lengths)
    old = torch.arange(len(tokens.flat))
    behind = old - tokens.offsets[document] >= places[document]
    flat = tokens.flat.new_empty(int(offsets[-1]))
    flat[old + width * (document + behind)] = tokens.flat
    flat[(offsets[:-1] + places)[:, None] + torch.arange(width)] = run
    return Tokens(flat, offsets, tokens.truncated)


def pick(states: Tensor, rows: Tensor) -> Tensor:
    """Return states[rows] with a backward pass that adds; that of plain indexing sorts."""
    return states.index_select(0, rows.flatten()).view(*rows.shape, states.shape[1])


def table_of(encoder: TransformerEncoder) -> nn.Embedding:
    """Return the encoder's table of token vectors."""
    return cast(nn.Embedding, encoder.model.get_input_embeddings())


def _add_tokens(encoder: TransformerEncoder, count: int) -> list[int]:
    """Add rows to the encoder's table and return their numbers; their content has no effect."""
    table, old = table_of(encoder), encoder.vocabulary
    rows = F.pad(table.weight.detach(), (0, 0, 0, count))
    table.weight = nn.Parameter(rows, requires_grad=table.weight.requires_grad)
    table.num_embeddings = encoder.model.config.vocab_size = old + count
    return list(range(old, old + count))

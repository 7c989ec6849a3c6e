r"""Ideas for training the classifier, one at a time, outside the product.

    python -m denn_bench.studies.training_ideas DATA --corpus eurlex57k --recipe denn-tuned --encoder minilm \
        --set alpha=0 --set epochs=8 --ideas zlpr names --scores SCORES --out results/training-ideas.jsonl

Trains DENN's network as `denn_bench.studies.stability` does, with each idea and without any (`none`), and writes a line
for each run. `--scores` saves the scores of every run for `denn bench combine`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.methods.contrastive import DennNetwork, DennParameters
from denn.methods.denn import DENN
from denn.protocols import Progress
from denn.types import Corpus
from denn_bench.studies.stability import add_options, run

CHARACTERS = 7  # per token; most texts have fewer
STRETCH = 2  # how many times as long texts may be with the idea `long`
PADDING = -1e4  # attention to padding; −∞ would make the gradients of an empty text NaN


class Zlpr(DennNetwork):
    """ZLPR (Su et al., 2022): every given label above zero, every other one below."""

    def classification_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean of log(1 + Σ_{l∉Y} exp(s_l)) + log(1 + Σ_{l∈Y} exp(−s_l)), over the number of labels."""
        return zlpr(logits.float(), labels).mean() / labels.shape[1]


class Asymmetric(DennNetwork):
    """The asymmetric loss (Ben-Baruch et al., 2021): easy absent labels count less."""

    def classification_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean over texts and labels."""
        return asymmetric(logits.float(), labels).mean() / labels.shape[1]


class NameStart(DennNetwork):
    """The head starts at the embeddings of the labels' names."""

    names: Sequence[str] = ()

    def prepare(self, corpus: Corpus) -> None:
        """Remember the names."""
        self.names = corpus.labels.names

    @torch.no_grad()
    def start(self, tokens: Tokens, labels: Tensor, parameters: Any, progress: Progress, sampled: int) -> None:
        """Point each label's weights at its name, with their former mean length; the mean document scores the bias."""
        with torch.enable_grad():
            super().start(tokens, labels, parameters, progress, sampled)
        encode = self.encoder.encode
        names = encode(self.tokenize([name.replace("_", " ") for name in self.names]))
        rows = F.normalize(names - names.mean(0), dim=1) * self.head.weight.norm(dim=1).mean().cpu()
        centre = float(self.scale) * encode(tokens.first(sampled)).mean(0)
        self.head.weight.copy_(rows)
        self.head.bias -= (rows @ centre).to(self.head.bias.device)


class BothEnds(DennNetwork):
    """Longer texts are cut in the middle instead of at the end."""

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Replace the second half of a text that was cut by its last tokens."""
        found, encoder = super().tokenize(texts), self.encoder
        encoder.tokenizer.no_truncation()
        for row in (found.lengths == encoder.max_length).nonzero().flatten().tolist():
            ending = encoder.tokenizer.encode(texts[row][-encoder.max_length * CHARACTERS :]).ids[1:]
            last, end = ending[-(encoder.max_length // 2) :], int(found.offsets[row + 1])
            found.flat[end - len(last) : end] = torch.tensor(last, dtype=found.flat.dtype)
        return found


class Long(DennNetwork):
    """Texts of twice the maximum length, with interpolated position embeddings."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: DennParameters) -> None:
        stretch(encoder, STRETCH * encoder.max_length)
        super().__init__(encoder, labels, parameters)


class LabelAttention(DennNetwork):
    """Each label reads the tokens with its own attention, which starts as their mean (Mullenbach et al., 2018)."""

    def __init__(self, encoder: TransformerEncoder, labels: int, parameters: DennParameters) -> None:
        super().__init__(encoder, labels, parameters)
        if self.views > 1 or parameters.select == "combined":
            raise ConfigError("Label attention learns from one view of each text. Use --set alpha=0 and select=last.")
        self.queries = nn.Parameter(torch.zeros(labels, encoder.width))

    def forward(self, ids: Tensor, layout: Layout, seeds: Tensor | None = None) -> Tensor:
        """Return the (n,L) logits Σ_t softmax_t(u_l · h_t / √d) (w_l · h_t) + b_l of packed texts."""
        states = self.scale * self.encoder.states(ids, layout, seeds)  # (T,d)
        count, width = len(layout.starts) - 1, states.shape[1]
        slots = layout.document * layout.longest + layout.positions
        padded = states.new_zeros(count * layout.longest, width).index_copy(0, slots, states)
        padded = padded.view(count, layout.longest, width)
        outside = torch.arange(layout.longest, device=ids.device) >= layout.sizes[:, None]
        attention = (padded @ (self.queries / width**0.5).to(padded.dtype).T).float()
        shares = attention.masked_fill(outside[..., None], PADDING).softmax(dim=1)  # (n,t,L)
        values = F.dropout(padded, self.dropout, self.training) @ self.head.weight.to(padded.dtype).T
        return (shares * values).sum(dim=1) + self.head.bias


IDEAS: dict[str, type[DennNetwork]] = {
    "none": DennNetwork,
    "zlpr": Zlpr,
    "asymmetric": Asymmetric,
    "names": NameStart,
    "both-ends": BothEnds,
    "long": Long,
    "label-attention": LabelAttention,
}


def method(idea: str) -> type[DENN]:
    """Return DENN with the network of an idea."""

    class WithIdea(DENN):
        def make(self, encoder: TransformerEncoder, labels: int) -> DennNetwork:
            return IDEAS[idea](encoder, labels, self.parameters)

    return WithIdea


@torch.no_grad()
def stretch(encoder: TransformerEncoder, tokens: int) -> None:
    """Let an encoder read texts of up to this many tokens; interpolate its position embeddings if they are too few."""
    embeddings, first = encoder.model.embeddings, encoder.first_position or 0
    places = embeddings.position_embeddings.weight
    encoder.max_length, encoder._bias = tokens, None  # the bias was made for the former length
    if tokens <= len(places) - first:
        return
    between = F.interpolate(places[first:].T[None], size=tokens, mode="linear", align_corners=True)[0].T
    longer = torch.cat([places[:first], between]).contiguous()
    embeddings.position_embeddings = nn.Embedding.from_pretrained(longer, freeze=False)
    encoder.model.config.max_position_embeddings = len(longer)


def zlpr(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the (n,) ZLPR losses of (n,L) logits and bool labels."""

    def log_of_one_and(values: Tensor) -> Tensor:
        return F.pad(values, (1, 0)).logsumexp(1)

    others = log_of_one_and(logits.masked_fill(labels, -torch.inf))
    return others + log_of_one_and((-logits).masked_fill(~labels, -torch.inf))


def asymmetric(logits: Tensor, labels: Tensor, focus: float = 4.0, margin: float = 0.05) -> Tensor:
    """Return the (n,) asymmetric losses of (n,L) logits and bool labels.

    −Σ_{l∈Y} log p_l − Σ_{l∉Y} q_l^γ log(1 − q_l), q_l = max(p_l − m, 0)
    """
    shifted = (torch.sigmoid(logits) - margin).clamp(min=0)
    return torch.where(labels, F.softplus(-logits), -(shifted**focus) * torch.log1p(-shifted)).sum(1)


def main() -> None:
    """Train with every idea."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--ideas", nargs="+", choices=IDEAS, default=list(IDEAS))
    a = parser.parse_args()
    for idea in a.ideas:
        run(argparse.Namespace(**vars(a), neighbours=True), idea, method(idea))


if __name__ == "__main__":
    main()

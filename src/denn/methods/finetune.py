"""Fine-tuning a classifier by binary cross-entropy and a contrastive loss between two views of each text."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveFloat
from torch import Tensor

from denn.core import contrast
from denn.core.combine import combine, debiased_confidence
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.encoders.classifier import Classifier
from denn.encoders.packed import Layout, send
from denn.encoders.transformer import Pooling, Precision
from denn.methods import views
from denn.training.gradients import Gradients, Inputs
from denn.training.head import start_head
from denn.training.loop import Plan, fit
from denn.types import Corpus, Document, Progress

if TYPE_CHECKING:
    from denn.methods.denn import DennParameters

Contrast = Callable[[Tensor, Tensor, float], Tensor]  # (2N,2N) similarity, (N,L) labels, temperature → (2N,) losses
View = Callable[[Tensor, Layout, Tensor, int], Tensor]  # ids, layout, (T,) tokens of second views, mask token → ids

CONTRASTS: dict[str, Contrast] = {
    "debiased": contrast.debiased_contrastive_loss,
    "ucl": contrast.unsupervised_contrastive_loss,
    "scl": contrast.supervised_contrastive_loss,
    "wscl": contrast.weighted_supervised_contrastive_loss,
}
VIEWS: dict[str, View] = {
    "dropout": views.dropout,
    "masking": views.masking,
    "span": views.span,
    "shuffle": views.shuffle,
}

DOUBT = 10.0  # documents of a label set in validation at which its ratio counts half
SAMPLED = 512  # training documents whose embeddings fix the scale
SEARCHED = 50_000  # training documents that the combined validation score looks for neighbours in


@dataclass(frozen=True, kw_only=True)
class NetworkParameters(Plan):
    """An encoder with a linear map to the labels, and how to fine-tune it."""

    encoder: str = "minilm"
    pooling: Pooling | None = None  # None: what the encoder was trained with
    max_length: Annotated[int, Field(ge=3)] = 320  # [CLS], one token, [SEP]
    precision: Precision = "auto"
    device: str = "auto"
    learning_rate: PositiveFloat = 5e-5
    head_learning_rate: PositiveFloat | None = None  # None: the same as the encoder's
    embedding_norm: PositiveFloat | None = 15.0  # mean length of h at the start; None: as the encoder gives it
    head_start: NonNegativeInt = 0  # epochs of the head alone, on frozen embeddings, before the encoder trains too
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1  # before the head
    draw: Literal["evenly", "as_valid"] = "evenly"  # as_valid: label sets as often as in validation; beyond the paper


class Finetuning:
    """The training of one network on one corpus."""

    def __init__(self, network: Classifier, corpus: Corpus, parameters: DennParameters) -> None:
        self.network, self.corpus, self.parameters = network, corpus, parameters
        self.mask_id = views.mask_token(network.encoder.tokenizer, parameters.view)
        self.train_tokens = network.encoder.tokenize([document.text for document in corpus.train])
        self.valid_tokens = network.encoder.tokenize([document.text for document in corpus.valid])
        self.on_device = self.train_tokens.to(network.device)
        self.labels = corpus.labels.matrix(corpus.train).to(network.device)
        self.valid_labels = corpus.labels.matrix(corpus.valid)
        # Recorded steps need few shapes: passes are filled up to a multiple that one last document can be.
        self.multiple = 2 ** min(9, network.encoder.max_length.bit_length() - 1) if network.encoder.kernels else 1

    def run(self, workdir: Path, progress: Progress) -> dict[str, object]:
        """Start the head, run the loop, and return what the bundle should remember."""
        p = self.parameters
        cut = self.train_tokens.cut
        if cut:
            progress.note(
                f"{cut} of {len(self.train_tokens)} documents are cut at {self.network.encoder.max_length} tokens"
            )
        budget = self._start(workdir, progress)
        plan = Plan(**{f.name: getattr(p, f.name) for f in fields(Plan)} | {"time_budget": budget})
        tokens = self.train_tokens.lengths * (2 if p.alpha else 1)
        weights = as_in(self.corpus.train, self.corpus.valid) if p.draw == "as_valid" else None
        gradients = Gradients(self.network.parameters(), self.prepare, self.compute, self.multiple > 1)
        state = fit(self.network, self._groups(), gradients, self.validate, tokens, plan, workdir, progress, weights)
        return {
            "documents_cut": cut,
            "max_length": self.network.encoder.max_length,
            "steps": state.step,
            "best_step": state.best_step,
            "seconds": round(state.seconds, 1),
            "training_seconds": round(state.seconds - state.validation_seconds, 3),
            "validation_seconds": round(state.validation_seconds, 3),
            "tokens": state.tokens,
            "history": state.history,
        }

    def _start(self, workdir: Path, progress: Progress) -> float | None:
        """Fix the scale and start the head on frozen embeddings; return the seconds left for the loop.

        A resumed run takes both from its checkpoint. What the loop may use is the budget less this start and less
        the embedding of the datastore, foreseen from the embedding here.
        """
        p, file = self.parameters, workdir / "start.json"
        if file.exists() and (workdir / "last.safetensors").exists():
            return self._left(float(json.loads(file.read_text())["seconds"]))
        begun = time.monotonic()
        some = self.train_tokens if p.head_start else self.train_tokens.first(SAMPLED)
        progress.start("embedding training documents", len(some))
        self.network.encoder.encode(some.first(1))  # compiles and loads what is needed
        warm = time.monotonic()
        embeddings = self.network.encoder.encode(some, progress.advance)
        embedding_all = (time.monotonic() - warm) * len(self.train_tokens.flat) / len(some.flat)
        if p.embedding_norm is not None:
            self.network.scale.fill_(p.embedding_norm / float(embeddings.norm(dim=1).mean().clamp_min(1e-6)))
        start_head(self.network.head, float(self.network.scale) * embeddings, self.labels, p.head_start, p.seed)
        spent = time.monotonic() - begun + embedding_all
        file.write_text(json.dumps({"seconds": spent}))
        left = self._left(spent)
        if left == 0:
            progress.note("the time budget leaves no time to train: embedding the documents takes all of it")
        return left

    def _left(self, spent: float) -> float | None:
        budget = self.parameters.time_budget
        return None if budget is None else max(0.0, budget - spent)

    def _groups(self) -> list[dict[str, Any]]:
        """Give encoder and head their learning rates."""
        p = self.parameters
        head_rate = p.learning_rate if p.head_learning_rate is None else p.head_learning_rate
        return [
            {"params": [w for w in self.network.encoder.parameters() if w.requires_grad], "lr": p.learning_rate},
            {"params": list(self.network.head.parameters()), "lr": head_rate},
        ]

    def prepare(self, rows: Tensor) -> Inputs:
        """Lay a batch out on the device: ids, starts, labels, seeds; first and second view alternate."""
        p, device = self.parameters, self.network.device
        rows = rows[self.train_tokens.lengths[rows].argsort(stable=True)]  # equal lengths side by side
        labels = self.labels[send(rows, device)]
        ids, layout = self.on_device.pack(rows.repeat_interleave(2) if p.alpha else rows, self.multiple)
        if p.alpha:
            ids = VIEWS[p.view](ids, layout, layout.document % 2 == 1, self.mask_id)
        seeds = self.network.encoder.draw_seeds() if self.multiple > 1 else torch.empty(0)
        return ids, layout.starts, labels, seeds

    def compute(self, ids: Tensor, starts: Tensor, labels: Tensor, seeds: Tensor) -> Tensor:
        """Return BCE + α · contrast of a batch, Eq. 7, both as means; both views of a text go through in one pass."""
        p = self.parameters
        recorded = self.multiple > 1
        longest = self.network.encoder.max_length if recorded else int(starts.diff().max())
        layout = Layout.at(starts, len(ids), longest)
        embeddings, logits = self.network(ids, layout, seeds if recorded else None)
        count = len(labels) * (2 if p.alpha else 1)  # what follows fills the pass up
        embeddings, logits = embeddings[:count], logits[:count]
        if not p.alpha:
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        bce = F.binary_cross_entropy_with_logits(logits, labels.repeat_interleave(2, dim=0).to(logits.dtype))
        both = F.normalize(torch.cat([embeddings[0::2], embeddings[1::2]]), dim=1)  # (2N,d)
        loss = bce + p.alpha * CONTRASTS[p.loss](both @ both.T, labels, p.temperature).mean()
        if p.consistency:
            loss = loss + p.consistency * disagreement(logits[0::2], logits[1::2])
        return loss

    def validate(self) -> dict[str, float]:
        """Score the validation part by the classifier at 0.5, and by both at the tuned threshold where that selects."""
        if not len(self.valid_tokens):
            return {"score": 0.0}
        p = self.parameters
        embeddings = self.network.encode(self.valid_tokens)
        known = self.network.probabilities(embeddings)
        scores = {"micro_f1": _micro_f1(known, self.valid_labels, 0.5)}
        scores["tuned_micro_f1"] = _micro_f1(known, self.valid_labels, tune_global(known, self.valid_labels))
        score = 0.0 if p.select == "last" else scores["micro_f1"]  # of equal ones the loop keeps the later
        if p.select == "combined":
            both = self._combined(embeddings, known)
            score = scores["combined_micro_f1"] = _micro_f1(
                both, self.valid_labels, tune_global(both, self.valid_labels)
            )
        return scores | {"score": score}

    def _combined(self, embeddings: Tensor, known: Tensor) -> Tensor:
        """Combine with neighbours among the first training documents, all in memory."""
        p, device = self.parameters, self.network.device
        some = self.train_tokens.first(SEARCHED)
        keys = F.normalize(self.network.encode(some).to(device), dim=1)
        similarity, rows = (F.normalize(embeddings.to(device), dim=1) @ keys.T).topk(min(p.k, len(some)))
        shares = torch.softmax(similarity / p.vote_temperature, dim=1)
        votes = torch.zeros(len(embeddings), self.labels.shape[1], device=device)
        for place in range(shares.shape[1]):
            votes += shares[:, place, None] * self.labels[rows[:, place]]
        votes = votes.cpu()
        half = p.combination == "average"
        return combine(
            known, votes, torch.full((len(known),), 0.5) if half else debiased_confidence(known, votes, p.gamma)
        )


def as_in(train: Sequence[Document], valid: Sequence[Document]) -> Tensor:
    """Return (n,) weights that give each label set of `train` about the share that it has in `valid`.

    A set seen v times where its share of `train` lets E be expected weighs (v + a) / (E + a): their ratio, drawn
    towards 1 where little is known of it.
    """
    sets = [frozenset(document.labels) for document in train]
    here, there = Counter(sets), Counter(frozenset(document.labels) for document in valid)
    expected = {labels: count * len(valid) / len(train) for labels, count in here.items()}
    return torch.tensor([(there[labels] + DOUBT) / (expected[labels] + DOUBT) for labels in sets])


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean symmetric Kullback-Leibler divergence of two views' label probabilities, from (n,L) logits."""
    return ((torch.sigmoid(first) - torch.sigmoid(second)) * (first - second)).mean() / 2


def _micro_f1(scores: Tensor, gold: Tensor, threshold: float) -> float:
    return multilabel_scores(decide(scores, threshold), gold)["micro_f1"]

"""DENN: a classifier and the labels of the nearest documents, combined by a debiased confidence per text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from denn.core.combine import combine, debiased_confidence, vote_sparse
from denn.core.contrast import debiased_contrastive_loss
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.encoders.classifier import Classifier
from denn.encoders.packed import Layout
from denn.encoders.transformer import Pooling, Precision, TransformerEncoder
from denn.errors import ConfigError
from denn.stores.embedded import EmbeddedStore
from denn.training.head import start_head
from denn.training.loop import Plan, fit
from denn.types import Corpus, Datastore, LabelSpace, Neighbours, Progress, Scores

Contrast = Callable[[Tensor, Tensor, float], Tensor]  # (2N,2N) similarity, (N,L) labels, temperature → (2N,) losses
View = Callable[[Tensor, Layout, Tensor], Tensor]  # ids, layout, (T,) tokens of second views → ids

CONTRASTS: dict[str, Contrast] = {"debiased": debiased_contrastive_loss}
VIEWS: dict[str, View] = {"dropout": lambda ids, layout, second: ids}  # the encoder's dropout makes the views differ

SAMPLED = 512  # training documents whose embeddings fix the scale
SEARCHED = 50_000  # training documents that the combined validation score looks for neighbours in


@dataclass(frozen=True, kw_only=True)
class DennParameters(Plan):
    """All that can be set; Greek letters are the paper's."""

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
    alpha: NonNegativeFloat = 0.1  # α: weight of the contrastive loss; 0: a plain classifier with neighbours
    loss: Literal["debiased"] = "debiased"
    view: Literal["dropout"] = "dropout"
    temperature: PositiveFloat = 0.05  # τ₁, of the contrastive loss
    vote_temperature: PositiveFloat = 0.05  # τ₂, of the neighbours' votes
    k: PositiveInt = 30
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.7  # γ: what the classifier must give a label for it to count in λ
    select: Literal["classifier", "combined"] = "classifier"  # which validation score picks the weights


class DENN:
    """The method of Cheng et al., TOIS 2024."""

    Parameters = DennParameters

    def __init__(self, parameters: DennParameters) -> None:
        self.parameters = parameters
        self.network: Classifier
        self.store: Datastore
        self.training: _Training | None = None

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress) -> Mapping[str, object]:
        """Train encoder and head on Eq. 7 and keep the weights of the best validation."""
        p = self.parameters
        encoder = TransformerEncoder.load(p.encoder, pooling=p.pooling, max_length=p.max_length, precision=p.precision)
        with torch.random.fork_rng(devices=[]):  # the caller's generator stays as it is
            torch.manual_seed(p.seed)
            self.network = Classifier(encoder, len(corpus.labels), p.dropout).to(_device(p.device))
        self.training = _Training(self.network, corpus, p)
        return self.training.run(workdir, progress)

    def save(self, folder: Path) -> None:
        """Write the network, and the datastore of the training documents, Eq. 8."""
        if self.training is None:
            raise TypeError("save() follows fit()")
        self.network.save(folder)
        (folder / "store").mkdir()
        corpus = self.training.corpus
        with EmbeddedStore.create(_store_file(folder), self.network.encoder.width, corpus.labels.names) as store:
            store.add(list(corpus.train), self.network.encode(self.training.train_tokens))

    @classmethod
    def load(cls, folder: Path, parameters: DennParameters, labels: LabelSpace) -> DENN:
        """Read what `save` wrote."""
        self = cls(parameters)
        encoder = TransformerEncoder.load(
            str(folder / "encoder"), max_length=parameters.max_length, precision=parameters.precision
        )
        self.network = Classifier(encoder, len(labels), parameters.dropout)
        self.network.load_head(folder)
        self.network.to(_device(parameters.device if parameters.device == "cpu" else "auto")).eval()
        self.store = EmbeddedStore.open(_store_file(folder))
        return self

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed texts as the datastore keeps them: (n,d)."""
        return self.network.encode(self.network.encoder.tokenize(texts))

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts by the classifier, by their neighbours, and by both, Eq. 9-13.

        `own_ids` names the stored document that each text itself is; it is no neighbour of its own. Labels that only
        the datastore knows follow the classifier's; their neighbours alone speak for them. Where there is no
        neighbour at all λ is 0.
        """
        p = self.parameters
        embeddings = self.embed(texts)
        known = self.network.probabilities(embeddings)  # (n,L)
        found = self.store.search(embeddings, p.k + (own_ids is not None))
        if own_ids is not None:
            found = _without_own(found, own_ids, p.k)
        names = self.store.labels
        votes = vote_sparse(found.similarity, found.offsets, found.label_columns, len(names), p.vote_temperature)
        confidence = debiased_confidence(known, votes[:, : known.shape[1]], p.gamma)
        confidence = confidence.where(found.similarity.isfinite().any(1), 0.0)
        final, average = votes.clone(), votes.clone()
        final[:, : known.shape[1]] = combine(known, votes[:, : known.shape[1]], confidence)
        average[:, : known.shape[1]] = (known + votes[:, : known.shape[1]]) / 2
        parts = {
            "classifier": F.pad(known, (0, len(names) - known.shape[1])),
            "neighbours": votes,
            "average": average,
        }
        return Scores(final, names, parts, confidence, found)


class _Training:
    """The training of one network on one corpus."""

    def __init__(self, network: Classifier, corpus: Corpus, parameters: DennParameters) -> None:
        self.network, self.corpus, self.parameters = network, corpus, parameters
        self.train_tokens = network.encoder.tokenize([document.text for document in corpus.train])
        self.valid_tokens = network.encoder.tokenize([document.text for document in corpus.valid])
        self.on_device = self.train_tokens.to(network.device)
        self.labels = corpus.labels.matrix(corpus.train).to(network.device)
        self.valid_labels = corpus.labels.matrix(corpus.valid)

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
        state = fit(
            self.network, self._groups(), self.loss, self.validate, len(self.corpus.train), plan, workdir, progress
        )
        return {
            "documents_cut": cut,
            "max_length": self.network.encoder.max_length,
            "steps": state.step,
            "best_step": state.best_step,
            "seconds": round(state.seconds, 1),
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
        embeddings = self.network.encoder.encode(some, progress.advance)
        embedding_all = (time.monotonic() - begun) * len(self.train_tokens.flat) / len(some.flat)
        if p.embedding_norm is not None:
            self.network.scale.fill_(p.embedding_norm / float(embeddings.norm(dim=1).mean().clamp_min(1e-6)))
        start_head(self.network.head, float(self.network.scale) * embeddings, self.labels, p.head_start, p.seed)
        spent = time.monotonic() - begun + embedding_all
        file.write_text(json.dumps({"seconds": spent}))
        return self._left(spent)

    def _left(self, spent: float) -> float | None:
        budget = self.parameters.time_budget
        return None if budget is None else max(0.0, budget - spent)

    def _groups(self) -> list[dict[str, Any]]:
        """Give encoder and head their learning rates."""
        p = self.parameters
        head_rate = p.learning_rate if p.head_learning_rate is None else p.head_learning_rate
        return [
            {"params": list(self.network.encoder.parameters()), "lr": p.learning_rate},
            {"params": list(self.network.head.parameters()), "lr": head_rate},
        ]

    def loss(self, rows: Tensor) -> Tensor:
        """Return BCE + α · contrast of a batch, Eq. 7, both as means; both views of a text go through in one pass."""
        p = self.parameters
        rows = rows[self.train_tokens.lengths[rows].argsort(stable=True)]  # equal lengths side by side
        labels = self.labels[rows.to(self.labels.device)]
        if not p.alpha:
            _, logits = self.network(*self.on_device.pack(rows))
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        ids, layout = self.on_device.pack(rows.repeat_interleave(2))  # first and second view alternate
        ids = VIEWS[p.view](ids, layout, layout.document % 2 == 1)
        embeddings, logits = self.network(ids, layout)
        bce = F.binary_cross_entropy_with_logits(logits, labels.repeat_interleave(2, dim=0).to(logits.dtype))
        views = F.normalize(torch.cat([embeddings[0::2], embeddings[1::2]]), dim=1)  # (2N,d)
        contrast = CONTRASTS[p.loss](views @ views.T, labels, p.temperature)
        return bce + p.alpha * contrast.mean()

    def validate(self) -> dict[str, float]:
        """Score the validation part by the classifier at 0.5, and by both at the tuned threshold where that selects."""
        if not len(self.valid_tokens):
            return {"score": 0.0}
        p = self.parameters
        embeddings = self.network.encode(self.valid_tokens)
        known = self.network.probabilities(embeddings)
        scores = {"micro_f1": _micro_f1(known, self.valid_labels, 0.5)}
        scores["tuned_micro_f1"] = _micro_f1(known, self.valid_labels, tune_global(known, self.valid_labels))
        score = scores["micro_f1"]
        if p.select == "combined":
            both = self._combined(embeddings, known)
            score = scores["combined_micro_f1"] = _micro_f1(
                both, self.valid_labels, tune_global(both, self.valid_labels)
            )
        return scores | {"score": score}

    def _combined(self, embeddings: Tensor, known: Tensor) -> Tensor:
        """Combine with neighbours among the first training documents, all in memory."""
        p = self.parameters
        some = self.train_tokens.first(SEARCHED)
        keys = F.normalize(self.network.encode(some), dim=1)
        top = (F.normalize(embeddings, dim=1) @ keys.T).topk(min(p.k, len(some)))
        labels = self.labels.cpu()
        votes = torch.stack(
            [
                torch.softmax(similarity / p.vote_temperature, 0) @ labels[rows].float()
                for similarity, rows in zip(*top, strict=True)
            ]
        )
        return combine(known, votes, debiased_confidence(known, votes, p.gamma))


def _without_own(found: Neighbours, own_ids: Sequence[str | None], k: int) -> Neighbours:
    """Leave k of k + 1 neighbours in the vote: without each text's own document, or else without the farthest."""
    dropped = torch.zeros_like(found.similarity, dtype=torch.bool)
    for row, (ids, own_id) in enumerate(zip(found.ids, own_ids, strict=True)):
        place = ids.index(own_id) if own_id in ids else k
        dropped[row, place : place + 1] = True
    return replace(found, similarity=found.similarity.masked_fill(dropped, float("-inf")))


def _micro_f1(scores: Tensor, gold: Tensor, threshold: float) -> float:
    return multilabel_scores(decide(scores, threshold), gold)["micro_f1"]


def _device(name: str) -> torch.device:
    """Return the device of a name; `auto` takes CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"Got the device {name!r}, expected auto, cpu, cuda or cuda:0.")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Got the device {name!r}, but no CUDA device is to be seen; use --set device=cpu.")
    return device


def _store_file(folder: Path) -> Path:
    return folder / "store" / "store.sqlite"

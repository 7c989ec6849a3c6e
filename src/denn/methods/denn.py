"""DENN: a classifier and the labels of the nearest documents, combined by a debiased confidence per text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from denn.core.combine import combine, debiased_confidence, vote_sparse
from denn.encoders.classifier import Classifier
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.methods.finetune import Finetuning, NetworkParameters
from denn.stores.embedded import EmbeddedStore
from denn.types import Corpus, Datastore, LabelSpace, Neighbours, Progress, Scores


@dataclass(frozen=True, kw_only=True)
class DennParameters(NetworkParameters):
    """All that can be set; Greek letters are the paper's."""

    alpha: NonNegativeFloat = 0.1  # α: weight of the contrastive loss; 0: a plain classifier with neighbours
    loss: Literal["debiased", "ucl", "scl", "wscl"] = "debiased"
    view: Literal["dropout", "masking", "span", "shuffle"] = "dropout"  # how the second view of a text is made
    temperature: PositiveFloat = 0.05  # τ₁, of the contrastive loss
    consistency: NonNegativeFloat = 0.0  # weight of what the two views' scores differ by; beyond the paper
    vote_temperature: PositiveFloat = 0.05  # τ₂, of the neighbours' votes
    k: PositiveInt = 30
    gamma: Annotated[float, Field(ge=0, le=1)] = 0.7  # γ: what the classifier must give a label for it to count in λ
    combination: Literal["confidence", "average"] = "confidence"  # by λ, or half and half; beyond the paper
    select: Literal["classifier", "combined", "last"] = "classifier"  # which validation score picks the weights


class DENN:
    """The method of Cheng et al., TOIS 2024."""

    Parameters = DennParameters

    def __init__(self, parameters: DennParameters) -> None:
        self.parameters = parameters
        self.network: Classifier
        self.store: Datastore
        self.training: Finetuning | None = None

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress) -> Mapping[str, object]:
        """Train encoder and head on Eq. 7 and keep the weights of the best validation."""
        p = self.parameters
        encoder = TransformerEncoder.load(p.encoder, pooling=p.pooling, max_length=p.max_length, precision=p.precision)
        with torch.random.fork_rng(devices=[]):  # the caller's generator stays as it is
            torch.manual_seed(p.seed)
            self.network = Classifier(encoder, len(corpus.labels), p.dropout).to(_device(p.device))
        self.training = Finetuning(self.network, corpus, p)
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
        self.store = EmbeddedStore.open(_store_file(folder), device=self.network.device)
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
        found = self.store.search(embeddings, p.k + (own_ids is not None))
        if own_ids is not None:
            found = _without_own(found, own_ids, p.k)
        return combined_scores(self.network.probabilities(embeddings), found, self.store.labels, p)


def combined_scores(known: Tensor, found: Neighbours, names: tuple[str, ...], parameters: DennParameters) -> Scores:
    """Combine the classifier's (n,L) scores with the votes of neighbours, Eq. 9-13, with these parameters' τ₂ and γ."""
    votes = vote_sparse(found.similarity, found.offsets, found.label_columns, len(names), parameters.vote_temperature)
    confidence = debiased_confidence(known, votes[:, : known.shape[1]], parameters.gamma)
    confidence = confidence.where(found.similarity.isfinite().any(1), 0.0)
    by_confidence, average = votes.clone(), votes.clone()
    by_confidence[:, : known.shape[1]] = combine(known, votes[:, : known.shape[1]], confidence)
    average[:, : known.shape[1]] = (known + votes[:, : known.shape[1]]) / 2
    classifier = F.pad(known, (0, len(names) - known.shape[1]))
    parts = {"classifier": classifier, "neighbours": votes, "average": average}
    if parameters.combination == "average":
        return Scores(average, names, parts | {"confidence": by_confidence}, confidence, found)
    return Scores(by_confidence, names, parts, confidence, found)


def _without_own(found: Neighbours, own_ids: Sequence[str | None], k: int) -> Neighbours:
    """Leave k of k + 1 neighbours in the vote: without each text's own document, or else without the farthest."""
    dropped = torch.zeros_like(found.similarity, dtype=torch.bool)
    for row, (ids, own_id) in enumerate(zip(found.ids, own_ids, strict=True)):
        place = ids.index(own_id) if own_id in ids else k
        dropped[row, place : place + 1] = True
    return replace(found, similarity=found.similarity.masked_fill(dropped, float("-inf")))


def _device(name: str) -> torch.device:
    """Return the device of a name; `auto` takes CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"Got the device {name!r}, expected auto, cpu, cuda or cuda:0.")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Got the device {name!r}, but no CUDA device is to be seen; use --set device=cpu.")
    if device.index is not None:
        torch.cuda.set_device(device)  # kernels and recordings run on the current one
    return device


def _store_file(folder: Path) -> Path:
    return folder / "store" / "store.sqlite"

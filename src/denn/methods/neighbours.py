"""Shared by methods that keep the training documents in a datastore and use witnesses to score labels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from denn.datastore import Datastore
from denn.errors import BundleError
from denn.methods.ahead import Streams
from denn.methods.classifier import Classifier
from denn.methods.familiarity import Familiarity, among_stored
from denn.prediction_types import Neighbours, Scores
from denn.protocols import Finished, Scored, Witness
from denn.stores.address import FILE, open_store
from denn.stores.embedded.store import EmbeddedStore
from denn.training.neural import Neural
from denn.training.session import Training
from denn.types import Corpus, LabelSpace
from denn.untrusted import REMEDY
from denn.witnesses.classifier import ClassifierWitness
from denn.witnesses.neighbours import NeighboursWitness
from denn.witnesses.texts import Texts


class WithNeighbours(Neural):
    """A classifier with a datastore of its training documents; a subclass chooses and combines the witnesses."""

    network: Classifier
    store: Datastore  # opened by `load`
    in_int8 = False  # whether texts to score are embedded in 8-bit integers; stored documents never are

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.trained: Training | None = None
        self.witnesses: dict[str, Witness] = {
            "classifier": ClassifierWitness(self),
            "neighbours": NeighboursWitness(self),
        }
        self.familiarity: Familiarity | None = None

    def training(self, corpus: Corpus) -> Training:
        """Prepare the training of the network."""
        self.trained = super().training(corpus)
        self.trained.stores = True
        return self.trained

    def save(self, folder: Path) -> None:
        """Write the network, and the datastore of the training documents, Eq. 8."""
        if self.trained is None:
            raise TypeError("call fit() before save()")
        super().save(folder)
        (folder / "store").mkdir()
        corpus, embeddings = self.trained.corpus, self.trained.embeddings
        if embeddings is None:
            embeddings = self.network.encode(self.trained.train_tokens)
        with EmbeddedStore.create(folder / "store" / FILE, self.network.encoder.width, corpus.labels.names) as store:
            store.add(list(corpus.train), embeddings)

    @classmethod
    def load(
        cls,
        folder: Path,
        parameters: Any,
        labels: LabelSpace,
        learnt: Path | None = None,
        shared: Self | None = None,
    ) -> Self:
        """Read what `save` wrote, and from the folder `learnt` what a refit has learnt since.

        If `shared` is given, use its encoder and datastore.
        """
        self = super().load(folder, parameters, labels, learnt, shared)
        self.network.reads_unit_vectors = learnt is not None
        self.store = shared.store if shared else open_store(folder, device=self.network.device)
        self.familiarity = Familiarity.load(learnt or folder)
        self.in_int8 = shared is not None and shared.in_int8
        return self

    def measure_familiarity(self, folder: Path) -> None:
        """Measure how close stored documents are to each other, and write that to the folder."""
        p = self.parameters
        self.familiarity = Familiarity.measure(among_stored(self.store, p.k, p.seed))
        if self.familiarity is not None:
            self.familiarity.save(folder)

    def familiarity_of(self, found: Neighbours) -> Tensor | None:
        """Return the (n,) familiarity of texts with these neighbours; None if it was not measured."""
        return None if self.familiarity is None else self.familiarity.of(found.similarity)

    def scores(
        self,
        texts: Sequence[str],
        own_ids: Sequence[str | None] | None = None,
        embeddings: Tensor | None = None,
    ) -> Scores:
        """Score texts by each witness, and by all of them together.

        `own_ids` names the stored document of each text itself, which is then excluded from its neighbours. Labels that
        only the datastore knows come after the others; only the neighbours can score them. `embeddings` come from
        `embed_ahead`.
        """
        k = self.parameters.k

        def embed(texts: Sequence[str]) -> Tensor:
            return finite(self._embed(texts) if embeddings is None else embeddings)

        return self.score(Texts(texts, embed, lambda vectors: self.search(vectors, k, own_ids)))

    def score(self, asked: Texts) -> Scores:
        """Score texts; see `scores`."""
        texts, parts = asked[:], self.hear(asked, self.network.device)
        return self.recall(replace(self.combine(parts, asked.neighbours), texts=texts), texts)

    def embed_ahead(self, batches: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str], Tensor | None]]:
        """Yield batches of texts with their embeddings, which a GPU computes some batches ahead."""
        if self.streams is None:
            return super().embed_ahead(batches)
        return self.streams.embed_ahead(batches, self._embed)

    def first(self) -> AbstractContextManager[None]:
        """Give the work inside the `with` block priority over embedding the next batch."""
        return super().first() if self.streams is None else self.streams.first()

    def finish_behind(self, batches: Iterable[Scored], finish: Callable[[Scored], Finished]) -> Iterator[Finished]:
        """Finish scored batches in order; on a GPU, a thread does so while the next one is scored."""
        if self.streams is None:
            return super().finish_behind(batches, finish)
        return self.streams.finish_behind(batches, finish)

    @cached_property
    def streams(self) -> Streams | None:
        """The CUDA streams for working on several batches at once; None on a CPU."""
        return Streams(self.network.device) if self.network.device.type == "cuda" else None

    def recall(self, scores: Scores, texts: Sequence[str]) -> Scores:
        """Let stored documents with the same text decide the scores; by default they do not."""
        return scores

    def hear(self, texts: Texts, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return each witness's scores: (n,L), NaN for labels that it does not know; on the CPU by default."""
        labels, device = len(texts.neighbours.names), device or torch.device("cpu")
        parts = {name: witness.scores(texts).to(device) for name, witness in self.witnesses.items()}
        return {name: F.pad(part, (0, labels - part.shape[1]), value=float("nan")) for name, part in parts.items()}

    @abstractmethod
    def combine(self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None) -> Scores:
        """Combine the witnesses' scores of texts with these neighbours; `gamma` replaces the method's own γ."""

    @abstractmethod
    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Let neighbours vote: (n,L)."""

    def embed(self, texts: Sequence[str], *, in_int8: bool = False) -> Tensor:
        """Embed texts for the datastore, or approximately in 8-bit integers: (n,d) on the CPU."""
        encoder = self.network.encoder
        return finite(encoder.embed(encoder.tokenize(texts), in_int8=in_int8).cpu())

    def _embed(self, texts: Sequence[str]) -> Tensor:
        """Embed texts to score on the device, without waiting for it."""
        encoder = self.network.encoder
        return encoder.embed(encoder.tokenize(texts), in_int8=self.in_int8)

    def search(
        self,
        embeddings: Tensor,
        k: int,
        own_ids: Sequence[str | None] | None = None,
        exclude: Collection[str] = (),
    ) -> Neighbours:
        """Find the k nearest documents of embedded texts; `own_ids` names the stored document of each text itself.

        The label columns begin with those of the witnesses, even if a vacuum removed a label from the datastore.
        """
        found = self.store.search(embeddings, k + (own_ids is not None), exclude)
        if found.names[: len(self.names)] != self.names:
            found = with_labels(found, tuple(dict.fromkeys((*self.names, *found.names))))
        return found if own_ids is None else _without_own(found, own_ids, k)


def finite(embeddings: Tensor) -> Tensor:
    """Return the embeddings if all their numbers are finite; otherwise the weights are damaged."""
    if not bool(embeddings.isfinite().all()):
        raise BundleError(f"The encoder's output for a text is not finite: its weights are damaged. {REMEDY}")
    return embeddings


def with_labels(found: Neighbours, names: tuple[str, ...]) -> Neighbours:
    """Return neighbours with these labels as columns, leaving out all other labels."""
    column_of = {name: column for column, name in enumerate(names)}
    new = torch.tensor([column_of.get(name, -1) for name in found.names], dtype=torch.int64)
    labels = _renumbered(found.offsets, found.label_columns, new)
    rejected = _renumbered(found.rejected_offsets, found.rejected_columns, new) if len(found.rejected_columns) else ()
    return Neighbours(found.ids, found.similarity, *labels, names, *rejected)


def _renumbered(offsets: Tensor, columns: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return offsets and columns with new numbers, leaving out columns whose new number is −1."""
    columns = new[columns]
    kept = columns >= 0
    return F.pad(kept.cumsum(0), (1, 0))[offsets], columns[kept]


def _without_own(found: Neighbours, own_ids: Sequence[str | None], k: int) -> Neighbours:
    """Keep k of k + 1 neighbours: drop each text's own document, or else the farthest."""
    dropped = torch.zeros_like(found.similarity, dtype=torch.bool)
    for row, (ids, own_id) in enumerate(zip(found.ids, own_ids, strict=True)):
        place = ids.index(own_id) if own_id in ids else k
        dropped[row, place : place + 1] = True
    return replace(found, similarity=found.similarity.masked_fill(dropped, float("-inf")))

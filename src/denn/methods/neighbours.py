"""What methods share that keep the training documents in a datastore and let the nearest of them vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from denn.errors import BundleError
from denn.methods.classifier import Classifier
from denn.protocols import Datastore
from denn.stores.address import FILE, open_store
from denn.stores.embedded.store import EmbeddedStore
from denn.training.neural import Neural
from denn.training.session import Training
from denn.types import Corpus, LabelSpace, Neighbours
from denn.untrusted import REMEDY


class WithNeighbours(Neural):
    """A classifier and a datastore of the documents that it was trained on; a subclass says how they are combined."""

    network: Classifier
    store: Datastore  # opened by `load`

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters)
        self.trained: Training | None = None

    def training(self, corpus: Corpus) -> Training:
        """Prepare the training of the network."""
        self.trained = super().training(corpus)
        self.trained.stores = True
        return self.trained

    def save(self, folder: Path) -> None:
        """Write the network, and the datastore of the training documents, Eq. 8."""
        if self.trained is None:
            raise TypeError("save() follows fit()")
        super().save(folder)
        (folder / "store").mkdir()
        corpus, embeddings = self.trained.corpus, self.trained.embeddings
        if embeddings is None:
            embeddings = self.network.encode(self.trained.train_tokens)
        with EmbeddedStore.create(folder / "store" / FILE, self.network.encoder.width, corpus.labels.names) as store:
            store.add(list(corpus.train), embeddings)

    @classmethod
    def load(cls, folder: Path, parameters: Any, labels: LabelSpace) -> Self:
        """Read what `save` wrote."""
        self = super().load(folder, parameters, labels)
        self.store = open_store(folder, device=self.network.device)
        return self

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed texts as the datastore keeps them: (n,d)."""
        embeddings = self.network.encode(self.network.encoder.tokenize(texts))
        if not bool(embeddings.isfinite().all()):
            raise BundleError(f"The encoder gives no finite numbers for a text: its weights are damaged. {REMEDY}")
        return embeddings

    def search(self, embeddings: Tensor, k: int, own_ids: Sequence[str | None] | None = None) -> Neighbours:
        """Find the k nearest documents of embedded texts; `own_ids` names the stored document that each itself is."""
        if own_ids is None:
            return self.store.search(embeddings, k)
        return _without_own(self.store.search(embeddings, k + 1), own_ids, k)


def _without_own(found: Neighbours, own_ids: Sequence[str | None], k: int) -> Neighbours:
    """Leave k of k + 1 neighbours in the vote: without each text's own document, or else without the farthest."""
    dropped = torch.zeros_like(found.similarity, dtype=torch.bool)
    for row, (ids, own_id) in enumerate(zip(found.ids, own_ids, strict=True)):
        place = ids.index(own_id) if own_id in ids else k
        dropped[row, place : place + 1] = True
    return replace(found, similarity=found.similarity.masked_fill(dropped, float("-inf")))

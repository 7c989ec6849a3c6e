"""Refit the head and the witnesses, without changing the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from denn.clock import Clock
from denn.errors import TrainingError
from denn.methods.denn import DENN, HOME
from denn.methods.neighbours import with_labels
from denn.protocols import Progress
from denn.registry import WITNESSES, lookup
from denn.training.head import BATCH, epoch_seconds
from denn.types import Corpus, Document, Stage
from denn.witnesses.texts import Texts
from denn.wording import counted

EPOCHS = 5  # for the head; chosen on validation documents (results/refit-head.json)
LEAST_STEPS = 60  # minimum for the head, if there are few documents
HEAD_SHARE, WITNESS_SHARE = 0.25, 0.5  # shares of the remaining time: for the head, then for each witness


@dataclass(frozen=True)
class Judged:
    """Documents for fitting the combination and thresholds, and for judging a refit."""

    documents: Sequence[Document]
    embeddings: Tensor  # (n,d)
    own_ids: Sequence[str | None]  # ids of those that are stored

    def rows(self, rows: Sequence[int]) -> Judged:
        """Return some of the documents."""
        documents, ids = [self.documents[row] for row in rows], [self.own_ids[row] for row in rows]
        return Judged(documents, self.embeddings[list(rows)], ids)


def relearn(method: DENN, corpus: Corpus, vectors: Tensor, progress: Progress, clock: Clock, epochs: int) -> DENN:
    """Return the method with a head and witnesses fitted to these documents, sharing encoder and datastore.

    `vectors` are the (n,d) unit vectors of the training documents, and `epochs` those of the head.
    """
    new = type(method)(method.parameters)
    new.store, new.names = method.store, corpus.labels.names
    new.label_counts = torch.tensor(corpus.labels.counts)
    network = new.network = new.make(method.network.encoder, len(corpus.labels))
    network.to(method.network.device).eval()
    network.reads_unit_vectors = True
    nn.init.zeros_(network.head.weight)  # so that the result depends on the documents alone
    progress.start(Stage("training the head", epochs or None, "epochs"))
    labels, rejected = corpus.labels.matrix(corpus.train).to(network.device), _rejected(corpus)
    rejected = None if rejected is None else rejected.to(network.device)
    network.learn_head(vectors, labels, new.parameters, epochs, rejected, progress.advance)
    new.witnesses = {}
    for name in method.witnesses:
        witness = lookup(WITNESSES, name, "witness").fit(corpus, new, progress, WITNESS_SHARE * clock.left())
        if witness is None:
            raise TrainingError(
                f"The witness {name} could not learn from {counted(len(vectors), 'document')}: there is too little "
                "time or text. The model was not changed; refit with more time or more documents."
            )
        new.witnesses[name] = witness
    return new


def save(method: DENN, folder: Path) -> None:
    """Write the head and the witnesses, without the encoder and the datastore."""
    method.network.save_rest(folder)
    for name, witness in method.witnesses.items():
        witness.save(folder / HOME / name)


def ask(method: DENN, documents: Sequence[Document], embeddings: Tensor, own_ids: Sequence[str | None]) -> Texts:
    """Return embedded documents for the witnesses; `own_ids` names the stored document of each text itself."""
    k, texts = method.parameters.k, [document.text for document in documents]
    return Texts(texts, lambda _: embeddings, lambda vectors: method.search(vectors, k, own_ids))


def with_own_labels(method: DENN, asked: Texts) -> Texts:
    """Return the same texts and neighbours, without labels that the method has not learnt."""
    return Texts(asked, lambda _: asked.embeddings, lambda _: with_labels(asked.neighbours, method.names))


def epochs_of_head(method: DENN, documents: int, clock: Clock) -> int:
    """Return for how many epochs a refit trains the head, at least one, if it is used."""
    head = method.network.head
    if "classifier" not in method.witnesses:
        return 0
    wanted = max(EPOCHS, -(-LEAST_STEPS * BATCH // max(BATCH, documents)))
    return max(1, int(min(wanted, HEAD_SHARE * clock.left() / epoch_seconds(head, documents))))


def _rejected(corpus: Corpus) -> Tensor | None:
    """Return which documents reject which labels: (n,L) bool, or None if none do."""
    if not any(document.rejected for document in corpus.train):
        return None
    return corpus.labels.matrix([Document("", document.rejected) for document in corpus.train])

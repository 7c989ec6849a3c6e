"""Score stored documents with witnesses that have not seen their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denn.analysis.queue import digest
from denn.prediction_types import Scores, Support
from denn.protocols import Progress, Retriever
from denn.training.head import start_head
from denn.types import Corpus, Document, LabelSpace
from denn.witnesses.support import named_words
from denn.witnesses.texts import Texts

FOLDS = 5
HEAD_EPOCHS = 20


class Stored:
    """The documents of a datastore in folds, with equal texts in the same fold."""

    def __init__(self, method: Retriever) -> None:
        parts = list(method.store.export())
        self.documents = [document for documents, _ in parts for document in documents]
        self.vectors = torch.cat([vectors.float() for _, vectors in parts]) if parts else torch.empty(0)
        self._by_id = {document.id: row for row, document in enumerate(self.documents)}
        self._by_text = {digest(document.text): row for row, document in enumerate(self.documents)}

    def row(self, document: Document) -> int | None:
        """Return the row of a document in the datastore, found by id and text, or by its text alone."""
        row = self._by_id.get(document.id)
        if row is not None and self.documents[row].text == document.text:
            return row
        return self._by_text.get(digest(document.text))

    def with_rejections(self, document: Document) -> Document:
        """Add the labels that were rejected for the same document in the datastore."""
        row = self.row(document)
        rejected = () if row is None else self.documents[row].rejected
        more = [label for label in rejected if label not in document.labels]
        return replace(document, rejected=(*document.rejected, *more)) if more else document

    def fold(self, document: Document) -> int | None:
        """Return the fold of a document; None if its text is not stored."""
        return None if self.row(document) is None else fold_of(document.text)


class Judge:
    """Scores the documents of one fold as a method does, but without what their own labels taught it.

    A document is not its own neighbour. The other witnesses learn again from the stored documents of the other folds,
    the head of the classifier from their embeddings. Documents that are not stored (fold None) are scored by the
    method's own witnesses.
    """

    def __init__(self, method: Retriever, stored: Stored, fold: int | None, progress: Progress) -> None:
        self._method, self._stored, self._fold = method, stored, fold
        self._witnesses = method.witnesses
        self._head: nn.Linear | None = None  # the classifier's, if it was trained again
        if fold is not None:
            self._learn(progress)

    def score(self, documents: Sequence[Document]) -> Scores:
        """Score documents of the fold in one batch."""
        texts, own_ids, k = [document.text for document in documents], None, self._method.parameters.k
        if self._fold is None:
            embeddings = self._method.embed(texts)
        else:
            rows = [row for document in documents if (row := self._stored.row(document)) is not None]
            embeddings, own_ids = self._stored.vectors[rows], [self._stored.documents[row].id for row in rows]
        asked = Texts(texts, lambda _: embeddings, lambda found: self._method.search(found, k, own_ids))
        scored = {name: self._scores_of(name, asked) for name in self._method.witnesses}
        labels = len(asked.neighbours.names)
        parts = {name: F.pad(part, (0, labels - part.shape[1]), value=math.nan) for name, part in scored.items()}
        return self._method.combine(parts, asked.neighbours)

    def _scores_of(self, name: str, asked: Texts) -> Tensor:
        """Return a witness's scores: (n,L₀), or (n,0) if it could not learn."""
        if name == "classifier" and self._head is not None:
            with torch.inference_mode():
                return torch.sigmoid(self._head(asked.embeddings))
        return self._witnesses[name].scores(asked).cpu() if name in self._witnesses else torch.empty(len(asked), 0)

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
        """Return the words that support labels of texts."""
        return named_words(self._witnesses.values(), texts, columns)

    def _learn(self, progress: Progress) -> None:
        """Fit the witnesses to the other folds; if there are none, only the neighbours know anything."""
        method, labels = self._method, LabelSpace(self._method.names)
        rows = [row for row, one in enumerate(self._stored.documents) if fold_of(one.text) != self._fold]
        if not rows:
            self._witnesses = {name: one for name, one in self._witnesses.items() if name == "neighbours"}
            return
        others = Corpus([self._stored.documents[row] for row in rows], labels=labels)
        learnt = {name: type(one).fit(others, method, progress, math.inf) for name, one in self._witnesses.items()}
        self._witnesses = {name: one for name, one in learnt.items() if one is not None}
        if "classifier" in self._witnesses:
            vectors = self._stored.vectors[rows]
            self._head = nn.Linear(vectors.shape[1], len(labels))
            nn.init.zeros_(self._head.weight)
            start_head(self._head, vectors, labels.matrix(others.train), HEAD_EPOCHS, method.parameters.seed)


def fold_of(text: str) -> int:
    """Return the fold of a text."""
    return digest(text)[0] % FOLDS

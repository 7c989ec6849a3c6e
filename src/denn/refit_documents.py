"""The documents of a refit: those it learns from, and those it is tuned and judged on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from denn.data.vocabularies import with_ids
from denn.datastore import Datastore
from denn.errors import BundleError, DataError
from denn.methods.denn import DENN
from denn.methods.relearning import Judged
from denn.model import Model
from denn.protocols import Progress
from denn.types import Document, LabelSpace, Stage
from denn.untrusted import REMEDY
from denn.validation import Kept, digests_of, with_every_id

FEWEST = 25  # documents needed for validation if the model keeps none
ONE_IN = 10  # one in this many documents added later is held out
BATCH = 4096  # documents read at a time
SAMPLED = 64  # documents from which the mean length of embeddings is estimated


def kept_documents(model: Model, folder: Path, valid: Sequence[Document] | None, shown: Progress) -> Kept:
    """Return the validation documents that the model keeps, or the given ones."""
    card = model.card
    if card.validation:
        kept = Kept.load(folder / card.validation)
        if kept.vectors.shape[1] != model.store.dimension:
            raise BundleError(
                f"{folder}: the vectors of the validation documents have {kept.vectors.shape[1]} dimensions, those of "
                f"the datastore have {model.store.dimension}. {REMEDY}"
            )
    else:  # an older model, whose training documents are the oldest stored ones
        trained = digests_of(model.store.ids()[: card.corpus["train"]])
        kept = Kept([], torch.zeros(0, model.store.dimension), trained)
    if valid is None:
        return kept
    if not valid:
        raise DataError("Got no validation documents, expected at least one.")
    named = with_every_id(with_ids(valid, model.vocabulary), model.store.ids())
    shown.start(Stage("embedding validation documents", len(named)))
    pieces = []
    for start in range(0, len(named), 256):
        pieces.append(model.embed([document.text for document in named[start : start + 256]]))
        shown.advance(start + len(pieces[-1]))
    return replace(kept, documents=named, vectors=torch.cat(pieces))


def divide(store: Datastore, kept: Kept, method: DENN, shown: Progress) -> tuple[list[Document], Tensor, Judged]:
    """Return the stored documents to learn from, their vectors, and all documents to judge by.

    A kept document that was stored later is held out, and judged as it is stored. One whose text is among the training
    documents is not used for judging.
    """
    trained, ids = set(kept.trained.tolist()), {document.id for document in kept.documents}
    texts = {document.text for document in kept.documents}
    learnt: list[Document] = []
    held: list[Document] = []
    rows: list[Tensor] = []
    held_rows: list[Tensor] = []
    seen: set[str | None] = set()  # ids and texts of kept documents that are stored
    shown.start(Stage("reading the datastore", len(store)))
    for documents, vectors in store.export(BATCH):
        digests = digests_of(str(document.id) for document in documents).tolist()
        is_held = []
        for document, digest in zip(documents, digests, strict=True):
            is_later = digest not in trained
            is_kept = document.text in texts or (is_later and document.id in ids)
            if is_kept:
                seen |= {document.text, document.id} if is_later else {document.text}
            is_held.append(is_later and (is_kept or digest % ONE_IN == 0))
            (held if is_held[-1] else learnt).append(document)
        mask = torch.tensor(is_held)
        rows.append(vectors[~mask])
        held_rows.append(vectors[mask])
        shown.advance(len(learnt) + len(held))
    if not any(document.labels for document in learnt):
        raise DataError(
            f"None of the {len(learnt)} stored documents to learn from has a label. Add labelled documents first."
        )
    rest = [row for row, one in enumerate(kept.documents) if one.text not in seen and one.id not in seen]
    unit = torch.cat(held_rows)
    embeddings = torch.cat([_mean_length(method, kept, held) * unit, kept.vectors[rest]])
    own_ids = [document.id for document in held] + [None] * len(rest)
    return learnt, torch.cat(rows), Judged([*held, *(kept.documents[row] for row in rest)], embeddings, own_ids)


def _mean_length(method: DENN, kept: Kept, held: Sequence[Document]) -> float:
    """Return the mean length of embeddings, which stored vectors have lost and a head that was never refitted needs."""
    if method.network.reads_unit_vectors or not held:
        return 1.0
    vectors = kept.vectors if len(kept.vectors) else method.embed([document.text for document in held[:SAMPLED]])
    return float(vectors.norm(dim=1).mean())


def check_enough(folder: Path, kept: Kept, documents: int) -> None:
    """Raise a DataError if there are too few documents to tune on."""
    if documents and (len(kept.documents) or documents >= FEWEST):
        return
    raise DataError(
        f"{folder} keeps no validation documents, and only {documents} of the documents added since training can be "
        f"held out; a refit needs at least {FEWEST}. Give labelled documents that the model has not seen with --valid "
        "FILE."
    )


def labels_of(
    first: Sequence[str], stored: Sequence[str], learnt: Sequence[Document], held: Sequence[Document]
) -> LabelSpace:
    """Return the labels of stored documents: those of the first training, then those of the datastore, in order.

    Labels added to the datastore after these documents were read are left to the next refit.
    """
    carried = {label for one in (*learnt, *held) for label in (*one.labels, *one.rejected)}
    whole = [name for name in stored if "\n" not in name or name in carried]  # older stores may contain line breaks
    names = list(dict.fromkeys((*first, *whole, *sorted(carried))))
    last = max(place for place, name in enumerate(names) if place < len(first) or name in carried)
    if broken := [name for name in names[: last + 1] if "\n" in name]:
        raise DataError(
            f"The label {broken[0]!r} contains a line break. Relabel its documents with `denn store relabel`."
        )
    counts = Counter(label for document in learnt for label in document.labels)
    return LabelSpace(tuple(names[: last + 1]), tuple(counts[name] for name in names[: last + 1]))

"""The validation documents that a model keeps for refits: written with it, and forgotten on request."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from denn import bundle
from denn.bundle_card import Card
from denn.data.rows import as_line
from denn.datastore import Datastore
from denn.durable import WINDOWS, sync_all
from denn.errors import BundleError, ConflictError, DataError
from denn.locks import alone
from denn.stores.rules import as_ids, check_filter
from denn.types import Document, Where, Which
from denn.untrusted import REMEDY, header, read_tensors, read_text

FOLDER, DOCUMENTS, VECTORS = "validation", "documents.jsonl", "vectors.safetensors"
MOST_BYTES = 64 * 2**20  # limit for the kept documents; if there are more, only some are kept
SOME_BYTES = 2**20  # read when only some of them are needed


@dataclass(frozen=True)
class Kept:
    """Documents that nothing was learnt from, and digests of those that the encoder has learnt from."""

    documents: Sequence[Document]
    vectors: Tensor  # (n,d) embeddings, not of unit length
    trained: Tensor  # (m,) int64: digests of the ids of the training documents

    def save(self, folder: Path) -> None:
        """Write as many documents as there is room for, and their vectors, into a new folder."""
        lines = [as_line(document) for document in self.documents]
        step = math.ceil(sum(map(len, lines)) / MOST_BYTES) or 1
        while sum(map(len, lines[::step])) > MOST_BYTES:
            step += 1
        folder.mkdir()
        (folder / DOCUMENTS).write_bytes(b"".join(lines[::step]))
        save_file({"vectors": self.vectors[::step].contiguous(), "trained": self.trained}, folder / VECTORS)

    @classmethod
    def load(cls, folder: Path) -> Kept:
        """Read what `save` wrote."""
        shapes = {name: shape for name, (_, shape) in header(folder / VECTORS, BundleError).items()}
        lines = read_text(folder / DOCUMENTS, BundleError).split("\n")[:-1]
        width = (shapes.get("vectors") or (0, None))[-1]
        expected = {"vectors": ("F32", (len(lines), width)), "trained": ("I64", (None,))}
        tensors = read_tensors(folder / VECTORS, expected, BundleError)
        return cls(_documents(lines, folder / DOCUMENTS), tensors["vectors"], tensors["trained"])

    def without(self, ids: Collection[str]) -> Kept:
        """Return a copy without some of the documents."""
        rows = [row for row, document in enumerate(self.documents) if document.id not in ids]
        return replace(self, documents=[self.documents[row] for row in rows], vectors=self.vectors[rows])


def with_every_id(documents: Iterable[Document], taken: Iterable[str]) -> list[Document]:
    """Return documents to keep; those without an id get valid-1, valid-2, … but no id that is given or taken."""
    documents = list(documents)
    used = {*taken, *(document.id for document in documents)}
    free = (id for number in count(1) if (id := f"valid-{number}") not in used)
    return [document if document.id else replace(document, id=next(free)) for document in documents]


def digests_of(ids: Iterable[str]) -> Tensor:
    """Return 64 bits of the sha256 of each id: (n,) int64."""
    found = [int.from_bytes(hashlib.sha256(id.encode()).digest()[:8], "little", signed=True) for id in ids]
    return torch.tensor(found, dtype=torch.int64)


@contextmanager
def changing(folder: Path) -> Iterator[tuple[int, ...]]:
    """Keep training runs and other refits away from a model while its files change; yield the lock's descriptors."""
    with ExitStack() as held:
        try:
            bundle.check_is_model(folder)
            lock = held.enter_context(alone(lock_of(folder)))
        except OSError as error:
            raise BundleError(f"The model cannot be locked: {error.strerror}. Make its folder writable.") from error
        if lock is None:
            raise ConflictError("Training or a refit is changing the model. Wait until it is done, then try again.")
        yield lock


def lock_of(folder: Path) -> Path:
    """Return the file to lock while a model changes: in its folder, the only one that all containers share.

    On Windows it is next to the folder, because a folder with an open file cannot be replaced.
    """
    folder = folder.resolve()
    return folder.with_name(f".{folder.name}.lock") if WINDOWS else folder / bundle.LOCK


def forget(folder: Path | None, store: Datastore, which: Which, *, source: str = "", everything: bool = False) -> int:
    """Permanently delete documents from a datastore and from those kept for refits; see `Datastore.forget`.

    A filter by source or time matches only stored documents. Return how many were deleted.
    """
    kept = matching(folder, which)
    if folder is None or not kept:
        return store.forget(which, source=source, everything=everything)
    check_filter(which, everything)
    with changing(folder):
        ids = store.select(which) if isinstance(which, Where) else as_ids(which)
        if stored := [id for id in ids if id not in kept or is_known(store, id)]:
            store.forget(stored, source=source)
        _drop(folder, kept)
    return len({*ids, *kept})


def matching(folder: Path | None, which: Which) -> set[str]:
    """Return the ids of the matching documents among those that a model keeps."""
    if folder is None or not (card := bundle.read_card(folder)).validation:
        return set()
    documents = Kept.load(folder / card.validation).documents
    if not isinstance(which, Where):
        return {str(document.id) for document in documents} & set(as_ids(which))
    if (which.source, which.since, which.before, which.action) != (None, None, None, None):
        return set()
    return {str(document.id) for document in documents if _matches(document, which)}


def some_kept(folder: Path, count: int) -> list[Document]:
    """Return at most `count` of the documents that a model keeps, without reading all of them."""
    if not (name := bundle.read_card(folder).validation):
        return []
    path = folder / name / DOCUMENTS
    try:
        with path.open("rb") as file:
            lines = file.read(SOME_BYTES).split(b"\n")[:-1]  # the last one is empty or incomplete
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}. {REMEDY}") from error
    return _documents(lines[:count], path)


def is_known(store: Datastore, id: str) -> bool:
    """Return whether a document is or was stored."""
    return bool(store.get([id], missing_ok=True) or store.history(1, id))


def _matches(document: Document, where: Where) -> bool:
    carries = not where.labels or not set(where.labels).isdisjoint(document.labels)
    blank = not where.unlabelled or not (document.labels or document.rejected)
    return carries and blank and (where.text is None or where.text in document.text)


def _drop(folder: Path, ids: Collection[str]) -> None:
    """Write the kept documents again without some of them, and point the model to the new folder."""
    card, _ = bundle.read(folder)
    name = bundle.new_name(folder, FOLDER)
    Kept.load(folder / card.validation).without(ids).save(folder / name)
    sync_all(folder / name)
    bundle.write_card(folder, with_folder(folder, card, "validation", name))
    bundle.clear_unused(folder, bundle.read_card(folder))


def with_folder(folder: Path, card: Card, field: str, name: str) -> Card:
    """Return a card that names another folder for learnt or kept files, with the digests of these files."""
    old = getattr(card, field)
    gone = (f"{old}/",) if old else tuple(bundle.LEARNT) if field == "learnt" else ("\0",)
    kept = {path: digest for path, digest in card.digests.items() if not path.startswith(gone)}
    return card.model_copy(update={field: name, "digests": kept | bundle.digests(folder, name)})


def _documents(lines: Iterable[str | bytes], path: Path) -> list[Document]:
    try:
        return [_document(json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError, RecursionError, DataError) as error:
        raise BundleError(f"{path} is damaged: a line is not a document. {REMEDY}") from error


def _document(row: dict[str, object]) -> Document:
    """Return the document of a line; raise a TypeError or a ValueError for anything else."""
    text, id, labels, rejected = row["text"], row["id"], row["labels"], row.get("rejected", [])
    if not (isinstance(text, str) and isinstance(id, str) and isinstance(labels, list) and isinstance(rejected, list)):
        raise TypeError("not a document")
    if not all(isinstance(label, str) for label in (*labels, *rejected)):
        raise TypeError("a label is not a string")
    return Document(text, tuple(labels), id, tuple(rejected))

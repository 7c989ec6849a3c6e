"""Copy one datastore to another, of any kind."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

import torch

from denn.datastore import Datastore
from denn.durable import sync
from denn.errors import StoreError
from denn.protocols import Progress
from denn.stores.embedded import transfer
from denn.stores.embedded.checking import check
from denn.types import Stage
from denn.wording import counted

BATCH = 4096  # documents stored per change
SOURCE = "copy"  # source of these changes in the copy's history


def copy(source: Datastore, target: Datastore, progress: Progress) -> int:
    """Fill an empty store with all documents of another and compare the two; return the number of documents.

    The history and the list of forgotten ids are not copied.
    """
    if len(target):
        found = counted(len(target), "document")
        raise StoreError(f"the target datastore contains {found}, expected none. Choose another.")
    if source.dimension != target.dimension:
        raise StoreError(f"the target datastore has dimension {target.dimension}, expected {source.dimension}.")
    total = len(source)
    progress.start(Stage("copying", total))
    done = 0
    for documents, vectors in source.export(BATCH):
        target.add(documents, vectors, source=SOURCE)
        done += len(documents)
        progress.advance(done)
    progress.start(Stage("comparing", done))
    _compare(source, target, progress)
    return done


def copy_whole(source: Path, target: Path, progress: Progress) -> int:
    """Copy the file of an embedded store with its history to a new file; return the number of documents.

    Other processes may change the original meanwhile. The copy is checked before it gets its name.
    """
    if target.exists():
        raise StoreError(f"{target} already exists. Choose another path.")
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # left by a process that was killed
        transfer.copy_file(source, part, progress)
        progress.start(Stage("checking"))
        found = check(part, progress.advance)
        if found.problems:
            raise StoreError(f"the datastore is damaged, so it was not copied: {found.problems[0]}")
        part.rename(target)
        sync(target.parent)
    except OSError as error:
        raise StoreError(f"the copy {target} cannot be written: {error.strerror or error}.") from error
    finally:
        part.unlink(missing_ok=True)
    return int(found.facts["documents"])


def _compare(source: Datastore, target: Datastore, progress: Progress) -> None:
    """Read both stores from beginning to end; raise a StoreError if they differ."""
    done = 0
    for one, other in zip_longest(source.export(BATCH), target.export(BATCH)):
        same = (
            one is not None and other is not None and one[0] == other[0] and torch.allclose(one[1], other[1], atol=1e-6)
        )
        if not same:
            raise StoreError(
                f"the copy differs from the original after {done} documents. Was it written to meanwhile? "
                "Delete the copy and copy again."
            )
        done += len(one[0])
        progress.advance(done)

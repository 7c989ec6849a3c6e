"""An approximate index on disk: a header of one block, the vectors, their rows, and the index as faiss writes it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from denn.stores.embedded.approximate import Approximate, faiss
from denn.stores.embedded.mapped import MappedVectors

log = logging.getLogger(__name__)

KIND = b"denn index "
MAGIC = KIND + b"3\n"
BLOCK = 4096  # bytes of the header, padded with spaces
FACTS = [field.name for field in fields(Approximate) if field.name not in ("ivf", "vectors", "rows")]


def beside(store: Path) -> Path:
    """Return the path of a store's index."""
    return store.with_name(store.name + ".faiss")


def read_header(file: Path | BinaryIO) -> dict[str, Any]:
    """Return the header of an index, empty if there is none or it cannot be read."""
    try:
        if isinstance(file, Path):
            with file.open("rb") as opened:
                return read_header(opened)
        file.seek(0)
        block, size = file.read(BLOCK), os.fstat(file.fileno()).st_size
        header = json.loads(block.removeprefix(MAGIC)) if block.startswith(MAGIC) else {}
        whole = size == header["bytes"] >= BLOCK + (4 * header["dimension"] + 8) * header["covered"]
        numbers = all(isinstance(header[name], int | float) for name in FACTS)
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    return header if whole and numbers else {}


def is_older(file: BinaryIO) -> bool:
    """Return whether a file is an index in a former format, which is built again when it is needed."""
    file.seek(0)
    start = file.read(len(MAGIC))
    return start.startswith(KIND) and start != MAGIC


class Body:
    """The part of a new file after the header: vectors, rows and index, hashed as they are written."""

    def __init__(self, file: BinaryIO) -> None:
        """Leave space for the header; the vectors come next, in row order."""
        self.file, self.digest = file, hashlib.sha256()
        file.write(b" " * BLOCK)

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes."""
        self.digest.update(data)
        return self.file.write(data)


def finish(index: Approximate, body: Body) -> None:
    """Write the rest after the vectors, and the header; everything is on disk when this returns."""
    file = body.file
    body.write(index.rows.numpy().astype("<i8").tobytes())
    writer = faiss().PyCallbackIOWriter(body.write)
    faiss().write_index(index.ivf, writer)
    del writer  # it writes the last bytes when it is deleted
    header = {name: getattr(index, name) for name in FACTS}
    header |= {"covered": len(index.rows), "dimension": index.vectors.shape[1], "bytes": file.tell()}
    header |= {"digest": body.digest.hexdigest()}
    file.seek(0)
    file.write((MAGIC + json.dumps(header).encode()).ljust(BLOCK))
    file.flush()
    os.fsync(file.fileno())


def load(path: Path) -> Approximate | None:
    """Read an index; None if it is missing or incomplete, because it is a cache and can be built again."""
    header = read_header(path)
    if not header:
        return None
    after = BLOCK + 4 * header["covered"] * header["dimension"]
    try:
        with path.open("rb") as file:
            file.seek(BLOCK)
            if hashlib.file_digest(file, "sha256").hexdigest() != header.get("digest"):
                log.warning("the index %s is damaged; it will be built again", path.name)
                return None
            file.seek(after)
            rows = np.frombuffer(bytearray(file.read(8 * header["covered"])), "<i8")
            ivf = faiss().read_index(faiss().PyCallbackIOReader(file.read))
            vectors = MappedVectors(file, len(rows), header["dimension"], BLOCK)
        if not (ivf.ntotal == len(rows) > 0 and 0 < header["probes"] <= ivf.nlist and ivf.d == vectors.shape[1]):
            return None
    except (OSError, ValueError, TypeError, AttributeError, RuntimeError) as error:  # RuntimeError: what faiss raises
        log.warning("the index %s cannot be used (%s); it will be built again", path.name, error)
        return None
    facts = {name: header[name] for name in FACTS}
    return Approximate(ivf, vectors, torch.from_numpy(rows.astype(np.int64)), **facts)

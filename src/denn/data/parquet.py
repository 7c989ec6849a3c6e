"""Read Parquet files row by row; a process with limited memory decodes them, because declared sizes may be wrong."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from denn.data.compressed import COMPRESSIONS, LONGEST_ROW, PIECE, ROW_COST, TOO_LONG, Expansion, arrow, open_bytes
from denn.data.rows import Columns, Row, Rows, is_pattern
from denn.errors import DataError

log = logging.getLogger(__name__)

DECODER = Path(__file__).with_name("parquet_decoder.py")
MEMORY = 3 << 29  # bytes that the decoder may use
SECONDS = 60  # limit for the decoder's CPU time, plus one second per MiB
BIGGEST_COPY = 4 << 30  # bytes of a compressed file, which is decompressed to disk
OUT_OF_TIME = 24  # SIGXCPU, which Windows lacks
HEADER = 1 << 24  # bytes of the decoder's first line
# One arena and the system's own allocator reserve no more addresses than they use.
ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1"}


def parquet_rows(path: Path, columns: Columns, first: int = 0, rows: int | None = None) -> Rows:
    """Yield the rows of a Parquet file, which may itself be compressed; all, or `rows` of them from `first`."""
    pyarrow = arrow("Reading Parquet files")
    if not _has_limits():
        log.warning("%s: this system cannot limit memory for reading Parquet. Read only files that you trust.", path)
    with open_bytes(path) as stream, _seekable(path, stream) as file, _decoding(file, columns, first, rows) as decoder:
        output = cast(IO[bytes], decoder.stdout)
        try:
            if header := output.readline(HEADER):
                yield from enumerate(_rows(path, columns, json.loads(header), output), first + 1)
        except (pyarrow.ArrowException, OSError, ValueError):
            output.close()  # stops a decoder that is still running
        _check_end(path, decoder)


def parquet_count(path: Path, columns: Columns) -> int:
    """Return the number of rows that a Parquet file declares; raise a DataError if a column is missing."""
    pyarrow = arrow("Reading Parquet files")
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(path)
        columns.among(metadata.schema.to_arrow_schema().names, str(path))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or ["?"])[0][:200]
        raise DataError(f"{path}: not a Parquet file, or truncated or damaged ({reason}).") from None
    return max(0, int(metadata.num_rows))


def _has_limits() -> bool:
    """Return whether this system can limit the resources of a process."""
    try:
        import resource  # noqa: F401
    except ImportError:
        return False
    return True


def _rows(path: Path, columns: Columns, header: dict[str, Any], output: IO[bytes]) -> Iterator[Row]:
    columns.among(header["names"], str(path))
    expansion = Expansion(path)
    expansion.add(ROW_COST * header["rows"])
    with arrow("Reading Parquet files").ipc.open_stream(output) as batches:
        for batch in batches:
            expansion.add(batch.nbytes)
            for row in range(batch.num_rows):
                yield _row(batch, row)


def _row(batch: Any, row: int) -> Row:
    try:
        return {name: column[row].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except UnicodeDecodeError as error:
        return DataError(f"byte {error.object[error.start]:#04x} at position {error.start + 1} is not UTF-8")


@contextmanager
def _seekable(path: Path, stream: BinaryIO) -> Iterator[BinaryIO]:
    """Decompress a compressed file to a temporary one, because Parquet is read from its end."""
    if path.suffix.lower() not in COMPRESSIONS:
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        while piece := stream.read(PIECE):
            if copy.tell() + len(piece) > BIGGEST_COPY:
                raise DataError(
                    f"{path}: it decompresses to more than {BIGGEST_COPY >> 30} GiB, the limit for compressed Parquet "
                    "files. Decompress it first; Parquet compresses its own columns."
                )
            try:
                copy.write(piece)
            except OSError as error:
                raise DataError(
                    f"{path}: it cannot be decompressed to {tempfile.gettempdir()} ({error.strerror}). Free some space "
                    "there, or decompress it first."
                ) from None
        copy.seek(0)
        yield cast(BinaryIO, copy)


@contextmanager
def _decoding(file: BinaryIO, columns: Columns, first: int, rows: int | None) -> Iterator[subprocess.Popen[bytes]]:
    """Start the decoder on an open file, and stop it when its rows are no longer needed."""
    seconds = SECONDS + os.fstat(file.fileno()).st_size // 2**20
    order = {
        "columns": [*columns.all, *columns.one_hot],
        "first": first,
        "rows": rows,
        "beginnings": [begin for column in columns.one_hot if (begin := is_pattern(column)) is not None],
        "memory": MEMORY,
        "seconds": seconds,
        "longest": LONGEST_ROW,
        "too_long": TOO_LONG,
    }
    command = [sys.executable, "-P", str(DECODER), json.dumps(order)]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=file.fileno(), stdout=pipe, stderr=pipe, env=environment) as decoder:
        try:
            yield decoder
        finally:
            decoder.kill()


def _check_end(path: Path, decoder: subprocess.Popen[bytes]) -> None:
    """Raise the error that the decoder ended with."""
    complaint = cast(IO[bytes], decoder.stderr).read(HEADER).decode(errors="replace").strip()
    code = decoder.wait()
    if code == 2:
        raise DataError(f"{path}: {complaint}.")
    if code == -OUT_OF_TIME:
        raise DataError(f"{path}: decoding takes too long for a file of this size. Write it again with pyarrow.")
    if code:
        raise DataError(f"{path}: not a Parquet file, or truncated or damaged.")

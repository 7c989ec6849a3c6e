"""Read plain or compressed files as bytes and lines, rejecting damaged files and decompression bombs."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, AnyStr, BinaryIO, cast

from denn.errors import DataError, MissingExtraError

COMPRESSIONS = (".gz", ".xz", ".zst", ".lz4")
BOM = b"\xef\xbb\xbf"
PIECE = 1 << 16  # bytes decompressed at once
LONGEST_ROW = 32 << 20  # bytes of a line, of a row, or of a file that is read whole
TOO_LONG = f"it has more than {LONGEST_ROW >> 20} MiB, the limit for a row"
EXPANSION = 1000  # factor by which a compressed file may expand, beyond FREE
FREE = 1 << 30  # bytes to which any file may expand
ROW_COST = 256  # bytes added to each row's size, because small rows take more space in memory than in a file
DECODER_MEMORY = 192 << 20  # bytes; xz -9 and zstd --ultra -22 stay below it, zstd refuses windows above 128 MiB itself


def uncompressed_suffix(path: Path) -> str:
    """Return the extension of a file without that of its compression."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path).suffix.lower()


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or compressed file; raise a DataError, at its end at the latest, if it is truncated or damaged."""
    try:
        with path.open("rb") as file:
            if path.suffix.lower() in COMPRESSIONS:
                if not file.peek(1):
                    raise EOFError  # the file does not even have a header
                yield cast(BinaryIO, io.BufferedReader(_Decompressed(path, file), PIECE))
            else:
                yield cast(BinaryIO, file)
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        temporary = isinstance(error, OSError) and error.errno is not None  # of the system, not of a decompressor
        raise DataError(f"{path}: {_reason(error)}.") from (error if temporary else None)


def _reason(error: Exception) -> str:
    message = str(error)
    if isinstance(error, EOFError) or message.startswith("Truncated compressed"):
        return "the compressed file is truncated. Copy or download it again"
    if "Memory usage limit" in message or "too much memory" in message:
        return (
            f"decompressing it needs more than {DECODER_MEMORY >> 20} MiB of memory, the limit. Compress it again at a "
            "lower level"
        )
    return f"cannot be read ({message}). Check the file, its extension and permissions"


class Expansion:
    """Counts the bytes a file expands to, and rejects sizes that only a decompression bomb reaches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limit = max(FREE, EXPANSION * path.stat().st_size)
        self._count = 0

    def add(self, count: int) -> None:
        """Count bytes; raise a DataError above the limit."""
        self._count += count
        if self._count > self._limit:
            raise DataError(
                f"{self._path}: it expands to more than {EXPANSION:,} times its size and more than {FREE >> 30} GiB, "
                "the limit for compressed files. If you trust it, decompress it first and use the plain file."
            )


class _Decompressed(io.RawIOBase):
    """The content of a compressed file as a stream, decompressed piece by piece."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._pieces = _pieces(path, file)
        self._expansion = Expansion(path)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (piece := next(self._pieces, None)) is not None:
            self._expansion.add(len(piece) + ROW_COST * piece.count(b"\n"))
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _pieces(path: Path, file: BinaryIO) -> Iterator[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".xz":
        return _xz_pieces(file)
    if suffix == ".gz":
        return iter(partial(gzip.open(file).read1, PIECE), b"")
    stream = arrow(f"Reading {suffix} files").CompressedInputStream(file, {".zst": "zstd", ".lz4": "lz4"}[suffix])
    return iter(partial(stream.read, PIECE), b"")


def arrow(what: str) -> Any:
    """Import pyarrow for `what`, or name the extra that installs it."""
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise MissingExtraError(what, "pyarrow", "parquet") from error


def _xz_pieces(file: BinaryIO) -> Iterator[bytes]:
    """Decompress stream after stream; Python's own reader has no memory limit and ignores damage after the first."""
    rest = file.read(PIECE)
    while rest:
        stream = lzma.LZMADecompressor(memlimit=DECODER_MEMORY)
        while not stream.eof:
            if stream.needs_input and not rest and not (rest := file.read(PIECE)):
                raise EOFError
            yield stream.decompress(rest, PIECE)
            rest = b""
        rest = stream.unused_data.lstrip(b"\0")  # zeros are padding
        while not rest and (more := file.read(PIECE)):
            rest = more.lstrip(b"\0")


def read_whole(path: Path, most: int | None = None) -> bytes:
    """Read a whole file, of a kind that is always small: at most as many bytes as a row may have, or `most`."""
    most = LONGEST_ROW if most is None else most
    with open_bytes(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise DataError(f"{path}: it has more than {most >> 20} MiB, the limit for such a file.")
    return content


def read_lines(stream: Iterable[AnyStr], name: object) -> Iterator[AnyStr]:
    """Yield lines with their line ends, bytes without a byte order mark; only \\n ends a line."""
    limited = getattr(stream, "readline", None)
    lines = iter(stream) if limited is None else iter(partial(limited, LONGEST_ROW + 1), limited(0))
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_ROW:
            raise DataError(f"{name}, line {number}: {TOO_LONG}. Split the text.")
        yield line.removeprefix(BOM) if number == 1 and isinstance(line, bytes) else line  # type: ignore[misc]

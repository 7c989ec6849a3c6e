"""Corpus files row by row: JSON lines, CSV, TSV and Parquet, plain or compressed, in constant memory."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from denn.data.rows import Columns, Row, Rows, Table, describe, missing, parse_id, parse_text
from denn.errors import DataError

BOM = b"\xef\xbb\xbf"
LONGEST_FIELD = 2**31 - 1  # of CSV; the csv module's own limit is 131,072 characters
ROWS_AT_ONCE = 1024  # of Parquet


def read_table(path: str | Path, columns: Columns) -> Table:
    """Open a file by its extension: .jsonl, .csv, .tsv or .parquet, also with .gz, .xz, .zst or .lz4 behind it."""
    path = _existing(path)
    kind, unit = _format(path, FORMATS)
    return Table(str(path), unit, kind(path, columns))


def iterate_texts(
    source: str | Path | IO[str] | IO[bytes], *, text_column: str = "text", id_column: str = "id"
) -> Iterator[tuple[str, str | None]]:
    """Yield (text, id or None) from a file or a stream in constant memory.

    In a stream, a .txt file or a file without extension, a line that starts with { is a JSON object, any other is
    the text itself; a blank line is an empty text, but is skipped after a JSON object as it is in .jsonl files.
    """
    columns = Columns(text_column, id=id_column, needs_labels=False)
    if isinstance(source, str | Path):
        path = _existing(source)
        kind, unit = _format(path, FORMATS | TEXT_FORMATS)
        table = Table(str(path), unit, kind(path, columns))
    else:
        # The bytes below a text stream keep U+2028 and lone carriage returns inside their line.
        lines = getattr(source, "buffer", source)
        table = Table(str(getattr(source, "name", "the stream")), "line", _text_rows(lines, columns))
    for number, row in table.rows:
        try:
            if isinstance(row, DataError):
                raise row
            yield read_text(row, columns)
        except DataError as error:
            raise DataError(f"{table.place(number)}: {error}.") from None


def read_text(row: Mapping[str, object], columns: Columns) -> tuple[str, str | None]:
    """Return the text and the id of a row."""
    if columns.text not in row:
        raise DataError(missing(columns.text, row))
    return parse_text(row[columns.text]), parse_id(row.get(columns.id))


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or compressed file for reading; a truncated or damaged one is an error, at its end at the latest."""
    try:
        with _open(path) as stream:
            yield stream
    except EOFError:
        raise DataError(f"{path}: the compressed file is truncated. Copy or download it again.") from None
    except (OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: cannot be read ({error}). Check the file, its extension and permissions.") from None


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a file: {_known(FORMATS)}.")
    if not path.exists():
        raise DataError(f"{path}: there is no such file. Check the path.")
    return path


def _format(path: Path, formats: dict[str, _Format]) -> _Format:
    suffix = (path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path).suffix.lower()
    if suffix not in formats:
        raise DataError(f"{path}: unknown extension {suffix!r}, expected {_known(formats)}.")
    return formats[suffix]


def _known(formats: Iterable[str]) -> str:
    return f"{', '.join(filter(None, formats))}, each also with {', '.join(COMPRESSIONS)} behind it"


def _open(path: Path) -> BinaryIO:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(BinaryIO, gzip.open(path))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.open(path))
    if suffix == ".zst":
        return cast(BinaryIO, io.BufferedReader(_Zstd(path), 1 << 16))
    if suffix == ".lz4":
        import pyarrow

        return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(str(path), compression="lz4"), 1 << 16))
    return path.open("rb")


class _Zstd(io.RawIOBase):
    """Zstandard frames as a stream; the library's own reader takes a truncated file for a complete one."""

    def __init__(self, path: Path) -> None:
        import zstandard

        self._frame = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._file = path.open("rb")
        self._current: Any = None  # the frame that is being read
        self._input = b""
        self._output = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output and self._feed():
            pass
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size

    def _feed(self) -> bool:
        """Decompress one more piece; return whether there was one."""
        self._input = self._input or self._file.read(1 << 14)
        if not self._input:
            if self._current is not None:
                raise EOFError
            return False
        self._current = self._current or self._frame()
        try:
            self._output = self._current.decompress(self._input)
        except self._error as error:
            raise OSError(str(error)) from None
        self._input = self._current.unused_data if self._current.eof else b""
        self._current = None if self._current.eof else self._current
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


def _lines(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines with their ends, without the byte order mark; only \\n ends a line."""
    for number, line in enumerate(stream):
        yield line.removeprefix(BOM) if number == 0 else line


def _decoded(line: str | bytes) -> str:
    try:
        return line if isinstance(line, str) else line.decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"byte {byte:#04x} at position {error.start + 1} is not UTF-8. Save the file in UTF-8"
        ) from None


def _json_row(line: str) -> Row:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return DataError(f"not JSON ({error}), expected an object with text, labels and perhaps id")
    return value if isinstance(value, dict) else DataError(f"got {describe(value)}, expected a JSON object in {{}}")


def _json_rows(path: Path, columns: Columns) -> Rows:
    with open_bytes(path) as stream:
        for number, line in enumerate(_lines(stream), 1):
            try:
                if text := _decoded(line).strip():
                    yield number, _json_row(text)
            except DataError as error:
                yield number, error


def _text_rows(stream: Iterable[str | bytes], columns: Columns) -> Rows:
    objects = False  # whether the last line that was not blank held a JSON object
    for number, line in enumerate(stream, 1):
        try:
            text = _decoded(line).removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")
        except DataError as error:
            yield number, error
            continue
        blank = not text.strip()
        objects = objects if blank else text.lstrip().startswith("{")
        if not objects:
            yield number, {columns.text: "" if blank else text}
        elif not blank:
            yield number, _json_row(text)


def _text_file_rows(path: Path, columns: Columns) -> Rows:
    with open_bytes(path) as stream:
        yield from _text_rows(stream, columns)


def _csv_rows(path: Path, columns: Columns, delimiter: str = ",") -> Rows:
    csv.field_size_limit(LONGEST_FIELD)
    with open_bytes(path) as stream:
        # Bytes that are not UTF-8 become lone surrogates, so that one bad row does not hide the others.
        text = (line.decode(errors="surrogateescape") for line in _lines(stream))
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            header = next(reader)
        except (StopIteration, csv.Error) as error:
            got = "the file is empty" if isinstance(error, StopIteration) else f"not well-formed CSV ({error})"
            raise DataError(f"{path}: {got}, expected a header line with the column names.") from None
        columns.among(header, str(path))
        number = reader.line_num + 1
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, DataError(f"not well-formed CSV ({error})")
                fields = []
            if fields:
                yield number, _csv_row(header, fields)
            number = reader.line_num + 1


def _csv_row(header: list[str], fields: list[str]) -> Row:
    if len(fields) != len(header):
        return DataError(
            f"got {len(fields)} fields, expected {len(header)} as in the header. Quote delimiters in texts"
        )
    for field in fields:
        try:
            field.encode()
        except UnicodeEncodeError as error:
            byte = ord(field[error.start]) - 0xDC00
            return DataError(f"byte {byte:#04x} in the field {field[:20]!a}… is not UTF-8. Save the file in UTF-8")
    return dict(zip(header, fields, strict=True))


def _tsv_rows(path: Path, columns: Columns) -> Rows:
    return _csv_rows(path, columns, delimiter="\t")


def _parquet_rows(path: Path, columns: Columns) -> Rows:
    import pyarrow
    from pyarrow import parquet

    with open_bytes(path) as stream, tempfile.TemporaryFile() as copy:
        if path.suffix.lower() in COMPRESSIONS:  # Parquet is read from its end
            shutil.copyfileobj(stream, copy)
            stream = cast(BinaryIO, copy)
        try:
            file = parquet.ParquetFile(stream)
            batches = file.iter_batches(ROWS_AT_ONCE, columns=columns.among(file.schema_arrow.names, str(path)))
            rows = (_parquet_row(batch, row) for batch in batches for row in range(batch.num_rows))
            yield from enumerate(rows, 1)
        except pyarrow.ArrowException as error:
            raise DataError(f"{path}: not a Parquet file, or truncated or damaged ({error}).") from None


def _parquet_row(batch: Any, row: int) -> Row:
    try:
        return {name: column[row].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except UnicodeDecodeError as error:
        return DataError(f"byte {error.object[error.start]:#04x} at position {error.start + 1} is not UTF-8")


_Format = tuple[Callable[[Path, Columns], Rows], str]
FORMATS: dict[str, _Format] = {
    ".jsonl": (_json_rows, "line"),
    ".ndjson": (_json_rows, "line"),
    ".csv": (_csv_rows, "line"),
    ".tsv": (_tsv_rows, "line"),
    ".parquet": (_parquet_rows, "row"),
}
TEXT_FORMATS: dict[str, _Format] = {".txt": (_text_file_rows, "line"), "": (_text_file_rows, "line")}
COMPRESSIONS = (".gz", ".xz", ".zst", ".lz4")

"""Read corpus files and folders in constant memory: JSON lines, CSV, TSV and Parquet, plain or compressed."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, cast

from denn.data.compressed import COMPRESSIONS, LONGEST_ROW, TOO_LONG, open_bytes, read_lines, uncompressed_suffix
from denn.data.folders import annif_rows, folder_table, has_annif_lines
from denn.data.parquet import parquet_rows
from denn.data.rows import Columns, Row, Rows, Table, describe, missing, parse_id, parse_text
from denn.data.spreadsheets import is_ours, restore
from denn.errors import DataError

log = logging.getLogger(__name__)


def read_table(path: str | Path, columns: Columns) -> Table:
    """Open a file by its extension: .jsonl, .csv, .tsv or .parquet, optionally followed by .gz, .xz, .zst or .lz4.

    A folder contains .txt files, with the labels of each in a .tsv or .key file of the same name.
    """
    return _open(path, columns, FORMATS)


def _open(path: str | Path, columns: Columns, formats: dict[str, _Format]) -> Table:
    path = Path(path)
    if path.is_dir():
        return folder_table(path, columns)
    if not path.exists():
        raise DataError(f"{path}: no such file. Check the path.")
    kind, unit = _format(path, formats)
    return Table(str(path), unit, kind(path, columns))


def iterate_texts(
    source: str | Path | IO[str] | IO[bytes],
    *,
    text_column: str = "text",
    id_column: str = "id",
    format: str | None = None,
    extent: tuple[int, int] | None = None,
) -> Iterator[tuple[str, str | None]]:
    """Yield (text, id or None) from a file or a stream in constant memory.

    In a stream, a .txt file or a file without extension, a line that starts with { is a JSON object, and any other
    line is a text. A blank line is an empty text, but is skipped after a JSON object, as in .jsonl files. A stream
    whose first line is a header with the text column is CSV or TSV. `format` ("lines", "csv" or "tsv") decides on
    streams and on files of unknown extension. `extent` limits a Parquet file to some rows: the first, counted from 0,
    and their number.
    """
    columns = Columns(text_column, id=id_column, needs_labels=False)
    if extent is not None:
        path = Path(cast(str | Path, source))
        table = Table(str(path), "row", parquet_rows(path, columns, *extent))
    elif isinstance(source, str | Path):
        known = FORMATS | TEXT_FORMATS
        if format is not None and uncompressed_suffix(Path(source)) not in FORMATS:
            known = {uncompressed_suffix(Path(source)): _BY_NAME[format]}
        table = _open(source, columns, known)
    else:
        # Reading the bytes below a text stream keeps U+2028 and lone carriage returns inside their line.
        lines = getattr(source, "buffer", source)
        name = str(getattr(source, "name", "the stream"))
        table = Table(name, "line", _stream_rows(read_lines(lines, name), name, columns, format))
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


def _format(path: Path, formats: dict[str, _Format]) -> _Format:
    suffix = uncompressed_suffix(path)
    if suffix not in formats:
        raise DataError(f"{path}: unknown extension {suffix!r}; expected {_known(formats)}.")
    return formats[suffix]


def _known(formats: Iterable[str]) -> str:
    return f"{', '.join(filter(None, formats))}, each optionally followed by {', '.join(COMPRESSIONS)}"


def _decoded(line: str | bytes) -> str:
    try:
        return line if isinstance(line, str) else line.decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(
            f"byte {byte:#04x} at position {error.start + 1} is not UTF-8. Save the file as UTF-8"
        ) from None


def _json_row(line: str) -> Row:
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        return DataError(f"not JSON ({error}); expected an object with text, labels and optionally id")
    except ValueError:  # Python does not convert longer numbers
        return DataError("a number has more than 4,300 digits; expected an object with text, labels and optionally id")
    return value if isinstance(value, dict) else DataError(f"got {describe(value)}; expected a JSON object in {{}}")


def _json_rows(path: Path, columns: Columns) -> Rows:
    with open_bytes(path) as stream:
        for number, line in enumerate(read_lines(stream, path), 1):
            try:
                if text := _decoded(line).strip():
                    yield number, _json_row(text)
            except DataError as error:
                yield number, error


def _text_rows(stream: Iterable[str | bytes], columns: Columns) -> Rows:
    objects = False  # whether the last line that was not blank contained a JSON object
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


def _stream_rows(lines: Iterator[str | bytes], name: str, columns: Columns, format: str | None) -> Rows:
    """Yield the rows of a stream; without a format, a first line that names the text column means CSV or TSV."""
    first = next(lines, None)
    if first is None:
        return
    if format is None:
        header = (first if isinstance(first, str) else first.decode(errors="replace")).rstrip("\r\n")
        fields = {kind: header.replace('"', "").split(mark) for kind, mark in (("csv", ","), ("tsv", "\t"))}
        tables = (kind for kind, names in fields.items() if columns.text in names and len(names) > 1)
        format = next(tables, "lines")
        if format != "lines":
            log.info(f"reading {name} as {format.upper()}, because its first line names the column {columns.text!r}")
    lines = chain([first], lines)
    if format == "lines":
        yield from _text_rows(lines, columns)
    else:
        yield from _table_rows(lines, name, columns, "," if format == "csv" else "\t")


def _text_file_rows(path: Path, columns: Columns) -> Rows:
    with open_bytes(path) as stream:
        yield from _text_rows(read_lines(stream, path), columns)


def _csv_rows(path: Path, columns: Columns, delimiter: str = ",") -> Rows:
    with open_bytes(path) as stream:
        yield from _table_rows(read_lines(stream, path), str(path), columns, delimiter)


def _table_rows(lines: Iterable[str | bytes], name: str, columns: Columns, delimiter: str) -> Rows:
    csv.field_size_limit(LONGEST_ROW)  # the csv module's own limit is 131,072 characters
    record = _Record(name, lines)
    reader = csv.reader(record.lines(), delimiter=delimiter, strict=True)
    try:
        header = next(reader)
    except (StopIteration, csv.Error) as error:
        got = "the file is empty" if isinstance(error, StopIteration) else f"not well-formed CSV ({error})"
        raise DataError(f"{name}: {got}; expected a header line with column names.") from None
    if isinstance(wrong := _csv_row(header, header), DataError):
        raise DataError(f"{name}, line 1: {wrong}.")
    ours = is_ours(header)
    header = list(map(restore, header)) if ours else header
    columns.among(header, name)
    while True:
        number = record.start(reader.line_num + 1)
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, DataError(f"not well-formed CSV ({error})")
            fields = []
        if fields:
            yield number, _csv_row(header, list(map(restore, fields)) if ours else fields)


class _Record:
    """The lines of the current CSV record, limited in size so that an unclosed quote does not swallow the file."""

    def __init__(self, name: str, lines: Iterable[str | bytes]) -> None:
        self._name, self._lines = name, lines
        self.start(1)

    def start(self, number: int) -> int:
        """Start a record at this line."""
        self._number, self._size = number, 0
        return number

    def lines(self) -> Iterator[str]:
        """Yield lines with lone surrogates for bytes that are not UTF-8, so that one bad row does not hide others."""
        for line in self._lines:
            self._size += len(line)
            if self._size > LONGEST_ROW:
                place = f"{self._name}, line {self._number}"
                raise DataError(f"{place}: {TOO_LONG}. Check for a quote that is never closed.")
            yield line if isinstance(line, str) else line.decode(errors="surrogateescape")


def _csv_row(header: list[str], fields: list[str]) -> Row:
    if len(fields) != len(header):
        return DataError(
            f"got {len(fields)} fields, expected {len(header)} as in the header. Quote texts that contain delimiters"
        )
    for field in fields:
        try:
            field.encode()
        except UnicodeEncodeError as error:
            byte = ord(field[error.start]) - 0xDC00
            return DataError(f"byte {byte:#04x} in the field {field[:20]!a}… is not UTF-8. Save the file as UTF-8")
    return dict(zip(header, fields, strict=True))


def _tsv_rows(path: Path, columns: Columns) -> Rows:
    return annif_rows(path, columns) if has_annif_lines(path) else _csv_rows(path, columns, delimiter="\t")


_Format = tuple[Callable[[Path, Columns], Rows], str]
FORMATS: dict[str, _Format] = {
    ".jsonl": (_json_rows, "line"),
    ".ndjson": (_json_rows, "line"),
    ".csv": (_csv_rows, "line"),
    ".tsv": (_tsv_rows, "line"),
    ".parquet": (parquet_rows, "row"),
}
TEXT_FORMATS: dict[str, _Format] = {".txt": (_text_file_rows, "line"), "": (_text_file_rows, "line")}
_BY_NAME: dict[str, _Format] = {"lines": TEXT_FORMATS[".txt"], "csv": FORMATS[".csv"], "tsv": FORMATS[".tsv"]}

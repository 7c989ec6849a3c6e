"""Read documents in Annif's formats: folders of .txt files with subject files, and lines of text and URIs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from denn.data.compressed import BOM, open_bytes, read_lines, read_whole
from denn.data.rows import Columns, Row, Rows, Table
from denn.errors import DataError

SUBJECTS = (".tsv", ".key")  # the first one found is used, as in Annif
_URI = r"(?:<[^<>\s]+>|https?://[^<>\s]+)"
LINE = re.compile(rf"[^\t]+\t\s*{_URI}(?:\s+{_URI})*\s*")  # matches a line of a corpus without a header


def folder_table(folder: Path, columns: Columns) -> Table:
    """Read the .txt files of a folder; `report.txt` has its subjects in `report.tsv` or `report.key`."""
    texts = sorted(path for path in folder.glob("*.txt") if path.is_file())
    labelled = [path for path in texts if _subjects_file(path)]
    if not texts or (columns.needs_labels and not labelled):
        found = f"{len(texts)} .txt files, none with a .tsv or .key file" if texts else "no .txt file"
        raise DataError(
            f"{folder} is a folder, expected a file, or a folder of .txt files with their labels in .tsv or .key files "
            f"of the same names; found {found}."
        )
    return Table(str(folder), "file", _folder_rows(texts, columns), [path.name for path in texts])


def _folder_rows(texts: Sequence[Path], columns: Columns) -> Rows:
    for number, path in enumerate(texts, 1):
        yield number, _document(path, columns)


def _document(path: Path, columns: Columns) -> Row:
    try:
        row: dict[str, object] = {columns.id: path.stem, columns.text: _read(path)}
        if subjects := _subjects_file(path):
            row[columns.labels] = [label for line in _read(subjects).splitlines() if (label := _subject(line))]
    except DataError as error:
        return DataError(str(error).rstrip("."))
    return row


def _subjects_file(text: Path) -> Path | None:
    return next((path for suffix in SUBJECTS if (path := text.with_suffix(suffix)).is_file()), None)


def _read(path: Path) -> str:
    try:
        return read_whole(path).removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"byte {byte:#04x} of {path.name} is not UTF-8. Save the file as UTF-8") from None


def _subject(line: str) -> str:
    """Return the URI of a line such as `<URI> tab label`, or its label if it has no URI."""
    fields = [field for field in map(str.strip, line.split("\t")) if field]
    uri = next((field for field in fields if field.startswith("<") and field.endswith(">")), None)
    return uri[1:-1] if uri else (fields or [""])[0]


def has_annif_lines(path: Path) -> bool:
    """Recognise a TSV file of texts and URIs, which has no header, by its first line."""
    with open_bytes(path) as stream:
        first = next(iter(read_lines(stream, path)), b"")
    return LINE.fullmatch(first.decode(errors="replace")) is not None


def annif_rows(path: Path, columns: Columns) -> Rows:
    """Yield the rows of a file with a text, a tab and URIs on each line; quotes have no special meaning."""
    with open_bytes(path) as stream:
        yield from enumerate(map(lambda line: _line(line, columns), read_lines(stream, path)), 1)


def _line(line: bytes, columns: Columns) -> Row:
    try:
        text, tab, uris = line.decode().partition("\t")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        return DataError(f"byte {byte:#04x} at position {error.start + 1} is not UTF-8. Save the file as UTF-8")
    if not tab and columns.needs_labels:
        return DataError("there is no tab; expected a text, a tab and the URIs of its labels, as in the first line")
    return {
        columns.text: text.strip("\r\n"),
        columns.labels: [uri.removeprefix("<").removesuffix(">") for uri in uris.split()],
    }

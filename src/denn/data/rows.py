"""One row of a corpus: what is accepted as a text, as labels and as an id, and what is said about anything else."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from denn.errors import DataError

SEPARATORS = ("|", ";", ",")
REJECTED = "rejected"  # the column of labels that a person decided against
SHOWN = 40  # characters of a value in a message
NAMES_SHOWN = 20

# A reader yields the error of a row that cannot be read, and raises the error of a source that cannot be read.
Row = Mapping[str, object] | DataError
Rows = Iterator[tuple[int, Row]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns to read; the id column may be missing where it has its usual name.

    A column `rejected` is read too, unless another of them has that name.
    """

    text: str = "text"
    labels: str = "labels"
    id: str = "id"
    needs_labels: bool = True

    @property
    def all(self) -> list[str]:
        """All columns that are read where they are found, each once."""
        return list(dict.fromkeys((self.text, self.labels, self.id, REJECTED)))

    def rejected(self, row: Mapping[str, object]) -> object:
        """Return the rejected labels of a row as they are written, None where there are none."""
        found = None if REJECTED in (self.text, self.labels, self.id) else row.get(REJECTED)
        return (
            None if isinstance(found, bool | int | float) else found
        )  # a column of that name that means something else

    def among(self, found: Sequence[str], name: str) -> list[str]:
        """Return those of the wanted columns that were found; a missing or repeated one is an error."""
        optional = () if self.needs_labels else (self.labels,)
        for column in (self.text, self.labels, self.id):
            if column in found or column in optional or column == "id":
                continue
            raise DataError(f"{name}: {missing(column, found)}.")
        wanted = [column for column in self.all if column in found]
        if repeated := next((column for column in wanted if found.count(column) > 1), None):
            raise DataError(f"{name}: the column {repeated!r} occurs twice. Rename or remove one of them.")
        return wanted


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with their numbers, counted from 1 in lines of a file or in rows."""

    name: str
    unit: str  # "line" or "row"
    rows: Rows

    def place(self, number: int) -> str:
        """Name a row as error messages do."""
        return f"{self.name}, {self.unit} {number}"


def missing(column: str, found: Iterable[str]) -> str:
    """Say that a column is missing, which were found, and which of them may have been meant."""
    names = [str(name) for name in islice(found, NAMES_SHOWN + 1)]
    close = difflib.get_close_matches(column.lower(), [name.lower() for name in names], n=1)
    meant = next((f" Did you mean {name!r}?" for name in names if close and name.lower() == close[0]), "")
    listed = ", ".join(map(short, names[:NAMES_SHOWN])) or "none"
    return (
        f"there is no column {column!r}; found: {listed}{' and more' * (len(names) > NAMES_SHOWN)}.{meant} "
        "Rename it, or name it by text_column, labels_column or id_column (--text-column …)"
    )


def short(text: str) -> str:
    """Quote a text for a message, cut where it is long."""
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def describe(value: object) -> str:
    """Name the type of a value in a reader's words, with the value where it is short."""
    kinds = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    kinds |= {list: "a list", tuple: "a list", dict: "an object", bytes: "bytes"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    if value is None or (isinstance(value, list | tuple | dict | str | bytes) and len(value) > SHOWN):
        return kind
    try:
        shown = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return kind
    return kind if len(shown) > SHOWN else f"{kind} ({shown})"


def parse_text(value: object) -> str:
    """Accept a string, empty or not, that UTF-8 can encode and databases can store."""
    if not isinstance(value, str):
        raise DataError(f"the text is {describe(value)}, expected a string")
    return _storable(value, "the text")


def parse_labels(value: object, column: str = "label") -> tuple[str, ...] | str:
    """Accept a list of strings; a string is returned as it is, to be split once the separator is known."""
    if value is None:
        return ()
    if isinstance(value, str):
        return _storable(value, f"the {column} string")
    if not isinstance(value, list | tuple):
        raise DataError(_wrong_labels(describe(value), column))
    if wrong := [label for label in value if not isinstance(label, str)]:
        raise DataError(_wrong_labels(f"a list with {describe(wrong[0])}", column))
    return _clean(value)


def split_labels(joined: str, separator: str | None, explicit: bool) -> tuple[str, ...]:
    """Split a label string; a JSON list is read as such unless the separator was given explicitly."""
    if explicit or not joined.lstrip().startswith("["):
        return _clean([joined] if separator is None else joined.split(separator))
    try:
        labels = json.loads(joined)
    except (ValueError, RecursionError):
        labels = None
    if not isinstance(labels, list):
        raise DataError(
            f"the labels start with '[' but are no JSON list, got {describe(joined)}. "
            'Write ["a", "b"] or a|b, or give the separator'
        )
    return tuple(parse_labels(labels))


def find_separator(joined: Iterable[str]) -> str | None:
    """Return the first of | ; , that occurs anywhere in the column; JSON lists do not count."""
    strings = [labels for labels in joined if not labels.lstrip().startswith("[")]
    return next((mark for mark in SEPARATORS if any(mark in labels for labels in strings)), None)


def parse_id(value: object) -> str | None:
    """Accept a string or a whole number; null and the empty string mean that there is none."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"the id is {describe(value)}, expected a string or a whole number")
    return _storable(value, "the id")


def _wrong_labels(got: str, column: str) -> str:
    return (
        f"{column} column of the wrong type: got {got}, expected a list of strings or one string. "
        "Write label names instead of numbers or codes"
    )


def _clean(labels: Iterable[str]) -> tuple[str, ...]:
    stripped = dict.fromkeys(label.strip() for label in labels)
    for label in stripped:
        _storable(label, "a label")
        if len(label.splitlines()) > 1:
            raise DataError(f"the label {short(label)} has a line break in it, expected a name on one line")
    return tuple(label for label in stripped if label)


def _storable(value: str, what: str) -> str:
    if "\0" in value:
        raise DataError(f"{what} has a NUL character at position {value.index(chr(0)) + 1}. Remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise DataError(
            f"{what} has the lone surrogate U+{code:04X} at position {error.start + 1}, no character. Remove it"
        ) from None
    return value

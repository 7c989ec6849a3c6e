"""Parse one row of a corpus: its text, labels and id, with an error for anything else."""

from __future__ import annotations

import ast
import difflib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from denn.errors import DataError
from denn.types import Document

SEPARATORS = ("|", ";", ",")
REJECTED = "rejected"  # the column of labels that a person rejected
SHOWN = 40  # characters of a value in a message
NAMES_SHOWN = 20
LONGEST_LIST = 100_000  # characters of a list as Python writes it: its syntax tree takes a hundred times as much memory
_STRING = r"""(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
# Python would join strings without a comma between them, which is how NumPy prints arrays.
PYTHON_LIST = re.compile(rf"\[\s*(?:{_STRING}(?:\s*,\s*{_STRING})*\s*(?:,\s*)?)?\]")
SET = {"": False, "0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}

# A reader yields errors about single rows, and raises errors about the whole source.
Row = Mapping[str, object] | DataError
Rows = Iterator[tuple[int, Row]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The names of the columns to read; the id column is optional under its default name.

    A column `rejected` is read too, unless one of the others has that name.
    """

    text: str = "text"
    labels: str = "labels"
    id: str = "id"
    needs_labels: bool = True
    one_hot: tuple[str, ...] = ()  # columns of 0 and 1 instead of labels; a name that ends in * is a prefix

    @property
    def all(self) -> list[str]:
        """All columns to read if they exist, each once."""
        return list(dict.fromkeys((self.text, self.labels, self.id, REJECTED)))

    def given(self, row: Mapping[str, object]) -> object:
        """Return the labels of a row as written, or those whose columns contain 1."""
        if not self.one_hot:
            return row.get(self.labels)
        return [label for column, label in self.one_hot_among(row).items() if _is_set(row[column], column)]

    def one_hot_among(self, found: Iterable[str]) -> dict[str, str]:
        """Return the columns of 0 and 1 that were found, each with its label."""
        others, names, chosen = self.all, dict.fromkeys(found), {}
        for wanted in self.one_hot:
            if wanted in names:
                chosen[wanted] = str(wanted)
            elif (begin := is_pattern(wanted)) is not None:
                matching = (name for name in names if name not in others and str(name).startswith(begin))
                chosen |= {name: str(name).removeprefix(begin) for name in matching}
        return chosen

    def require_labels(self, found: Iterable[str], name: str) -> None:
        """Raise a DataError if a source lacks its label column or columns."""
        found = list(found)
        for wanted in self.one_hot:
            if not replace(self, one_hot=(wanted,)).one_hot_among(found):
                raise DataError(f"{name}: {missing(str(wanted), found)}.")
        if self.one_hot or not self.needs_labels or self.labels in found:
            return
        others = any(column not in self.all for column in found)
        hint = ". If each label has a column of 0 and 1, name these: --label-columns a,b or '*' (label_columns)"
        raise DataError(f"{name}: {missing(self.labels, found)}{hint * others}.")

    def rejected(self, row: Mapping[str, object]) -> object:
        """Return the rejected labels of a row as written; None if there are none."""
        found = None if REJECTED in (self.text, self.labels, self.id) else row.get(REJECTED)
        return (
            None if isinstance(found, bool | int | float) else found
        )  # numbers or booleans: a column that only happens to have this name

    def among(self, found: Sequence[str], name: str) -> list[str]:
        """Return the requested columns that were found; raise a DataError if one is missing or occurs twice."""
        for column in (self.text, self.id):
            if column not in found and column != "id":
                raise DataError(f"{name}: {missing(column, found)}.")
        self.require_labels(found, name)
        wanted = [column for column in (*self.all, *self.one_hot_among(found)) if column in found]
        if repeated := next((column for column in wanted if found.count(column) > 1), None):
            raise DataError(f"{name}: the column {repeated!r} occurs twice. Rename or remove one of them.")
        return wanted


@dataclass(frozen=True, slots=True)
class Table:
    """Numbered rows, counted from 1 in lines of a file or in rows."""

    name: str
    unit: str  # "line", "row" or "file"
    rows: Rows
    names: Sequence[str] = ()  # file names, if each row is a file

    def place(self, number: int) -> str:
        """Return the location of a row for error messages."""
        return f"{self.name}, {self.names[number - 1] if self.names else f'{self.unit} {number}'}"


def missing(column: str, found: Iterable[str]) -> str:
    """Return the error for a missing column: list those found, and suggest a similar one."""
    names = [str(name) for name in islice(found, NAMES_SHOWN + 1)]
    close = difflib.get_close_matches(column.lower(), [name.lower() for name in names], n=1)
    similar = next((f" Did you mean {name!r}?" for name in names if close and name.lower() == close[0]), "")
    listed = ", ".join(map(short, names[:NAMES_SHOWN])) or "none"
    return (
        f"there is no column {column!r}; found: {listed}{' and more' * (len(names) > NAMES_SHOWN)}.{similar} "
        "Rename it, or set text_column, labels_column or id_column (--text-column …)"
    )


def short(text: str) -> str:
    """Quote a text for a message, shortened if it is long."""
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")


def describe(value: object) -> str:
    """Name the type of a value in plain words, with the value if it is short."""
    kinds = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    kinds |= {list: "a list", tuple: "a list", dict: "an object", bytes: "bytes"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    if value is None or (isinstance(value, list | tuple | dict | str | bytes) and len(value) > SHOWN):
        return kind
    try:
        shown = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        return kind
    return kind if len(shown) > SHOWN else f"{kind} ({shown})"


def is_pattern(column: str) -> str | None:
    """Return the prefix of a pattern such as topic_*; None if it is not a pattern."""
    return column[:-1] if isinstance(column, str) and column.endswith("*") else None


def _is_set(value: object, column: str) -> bool:
    """Return whether a label's column contains 1; an empty value means 0."""
    known = SET.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(known, bool | int | float) and known in (0, 1):
        return bool(known)
    if value is None:
        return False
    raise DataError(
        f"the label column {short(str(column))} contains {describe(value)}, expected 0 or 1. Name the label columns "
        "with label_columns (--label-columns a,b)"
    )


def as_row(document: Document) -> dict[str, object]:
    """Return a document as a row of a corpus."""
    row: dict[str, object] = {"id": document.id, "text": document.text, "labels": document.labels}
    return row | ({REJECTED: document.rejected} if document.rejected else {})


def as_line(document: Document) -> bytes:
    """Return a document as a line of a JSON lines file."""
    return json.dumps(as_row(document), ensure_ascii=False).encode() + b"\n"


def parse_text(value: object) -> str:
    """Accept a string, empty or not, that UTF-8 can encode and databases can store."""
    if not isinstance(value, str):
        raise DataError(f"the text is {describe(value)}, expected a string")
    return _storable(value, "the text")


def parse_labels(value: object, column: str = "label") -> tuple[str, ...] | str:
    """Accept a list of strings; return a string unchanged, to be split once the separator is known."""
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
    """Split a label string; a list of JSON or Python is parsed unless the separator was given explicitly."""
    if explicit or not joined.lstrip().startswith("["):
        return _clean([joined] if separator is None else joined.split(separator))
    try:
        labels = json.loads(joined)
    except (ValueError, RecursionError):
        labels = _python_list(joined.strip())
    if not isinstance(labels, list):
        raise DataError(
            f"the labels start with '[' but are not a JSON or Python list, got {describe(joined)}. "
            "Write [\"a\", \"b\"], ['a', 'b'] or a|b, or give the separator"
        )
    return tuple(parse_labels(labels))


def _python_list(written: str) -> list[str] | None:
    """Read a list of strings as Python writes it, which is what pandas puts into CSV files; None if it is not one."""
    if len(written) > LONGEST_LIST:
        raise DataError(f"the labels have {len(written):,} characters, expected at most {LONGEST_LIST:,} in ['a', 'b']")
    if not PYTHON_LIST.fullmatch(written):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about backslashes without special meaning
        try:
            return list(ast.literal_eval(written))
        except (ValueError, SyntaxError):  # an invalid escape sequence
            return None


def find_separator(joined: Iterable[str]) -> str | None:
    """Return the first of | ; , that occurs anywhere in the column, ignoring lists in brackets."""
    strings = [labels for labels in joined if not labels.lstrip().startswith("[")]
    return next((mark for mark in SEPARATORS if any(mark in labels for labels in strings)), None)


def parse_id(value: object) -> str | None:
    """Accept a string or a whole number; null and the empty string mean no id."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise DataError(f"the id is {describe(value)}, expected a string or a whole number")
    return _storable(value, "the id")


def _wrong_labels(got: str, column: str) -> str:
    return (
        f"the {column} column has the wrong type: got {got}, expected a list of strings or one string. "
        "Write label names instead of numbers or codes"
    )


def _clean(labels: Iterable[str]) -> tuple[str, ...]:
    stripped = dict.fromkeys(label.strip() for label in labels)
    for label in stripped:
        _storable(label, "a label")
        if len(label.splitlines()) > 1:
            raise DataError(f"the label {short(label)} contains a line break, expected a name on one line")
    return tuple(label for label in stripped if label)


def _storable(value: str, what: str) -> str:
    if "\0" in value:
        raise DataError(f"{what} contains a NUL character at position {value.index(chr(0)) + 1}. Remove it")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise DataError(
            f"{what} contains the lone surrogate U+{code:04X} at position {error.start + 1}. Remove it"
        ) from None
    return value

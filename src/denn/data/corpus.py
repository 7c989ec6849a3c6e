"""Corpora from files, frames and lists: check every row, count and report bad rows, and never skip any silently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from denn.config import check_seed
from denn.data.files import read_table, read_text
from denn.data.frames import read_rows
from denn.data.rows import REJECTED, Columns, Table, find_separator, parse_labels, short, split_labels
from denn.data.split import stratified_split
from denn.data.vocabularies import check_known, read_vocabulary, with_ids
from denn.errors import DataError
from denn.types import Corpus, Document, LabelSpace
from denn.vocabulary import Vocabulary

log = logging.getLogger(__name__)

REASONS_SHOWN = 3
PARTS = {"train": "train", "valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}


@dataclass(frozen=True)
class ReadReport:
    """Statistics and problems of one source."""

    name: str
    rows: int = 0
    bad: int = 0
    reasons: tuple[str, ...] = ()  # the first bad rows, each with its place
    unlabelled: int = 0
    empty: int = 0
    labels: int = 0  # distinct
    separator: str | None = None  # the detected label separator, if none was given

    def sentences(self) -> list[str]:
        """Return what is worth knowing, one sentence each."""
        notes = {
            f"skipped {self.bad} of {self.rows} rows as bad: {'; '.join(self.reasons)}": self.bad > 0,
            f"documents without labels: {self.unlabelled}": self.unlabelled > 0,
            f"documents with empty text: {self.empty}": self.empty > 0,
            f"split label strings at {self.separator!r}": self.separator is not None,
        }
        return [f"{self.name}: {sentence}." for sentence, holds in notes.items() if holds]


def read_documents(
    source: object,
    *,
    text_column: str = "text",
    labels_column: str = "labels",
    label_columns: str | Sequence[str] | None = None,
    id_column: str = "id",
    separator: str | None = None,
    skip_bad: bool = False,
    needs_labels: bool = True,
    part: str | None = "document",
) -> tuple[list[Document], ReadReport]:
    """Read a path, a frame, a dataset or a list into documents; bad rows are an error unless `skip_bad`.

    A document without an id gets the id `<part>-<row number>`, or none if `part` is None. Label strings are split at
    `separator`. If none is given, a string that starts with [ is a list of JSON or Python, and others are split at the
    first of | ; , that occurs anywhere in the column. See `read_corpus` for `label_columns`.
    """
    columns = Columns(text_column, labels_column, id_column, needs_labels, _one_hot(label_columns))
    return _read(source, columns, part, separator, None, skip_bad)


def _one_hot(columns: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of one-hot label columns, given as a list or separated by commas."""
    if not isinstance(columns, str):
        return tuple(columns or ())
    named = tuple(filter(None, (column.strip() for column in columns.split(","))))
    if not named:
        raise DataError("the label columns are empty; give their names as in 'sports,politics', or '*' for all.")
    return named


def _read(
    source: object,
    columns: Columns,
    part: str | None,
    separator: str | None,
    usual_separator: str | None,
    skip_bad: bool,
) -> tuple[list[Document], ReadReport]:
    """Read one source; `usual_separator` is used instead of detecting one, and still allows JSON lists."""
    if separator == "":
        raise DataError("the separator is empty. Give a character such as |, or leave it out to detect it.")
    if isinstance(source, str | Path):
        table = read_table(source, columns)
    else:
        table = read_rows(source, part or "documents", columns)
    parsed, bad = _parse(table, columns)
    rows = len(parsed) + bad.count
    if not rows:
        raise DataError(f"{table.name}: there are no rows; expected at least one document.")
    joined = [labels for row in parsed for labels in (row.labels, row.rejected) if isinstance(labels, str)]
    mark = separator or usual_separator or find_separator(joined)
    documents = _finish(table, parsed, bad, part, lambda labels: split_labels(labels, mark, separator is not None))
    reasons = tuple(f"{table.place(number)}: {reason}" for number, reason in bad.first)
    if bad.count and (not skip_bad or not documents):
        raise DataError(_bad_rows(reasons, bad.count, rows))
    report = ReadReport(
        name=table.name,
        rows=rows,
        bad=bad.count,
        reasons=reasons,
        unlabelled=sum(not document.labels for document in documents),
        empty=sum(not document.text for document in documents),
        labels=len({label for document in documents for label in document.labels}),
        separator=None if separator else mark,
    )
    return documents, report


@dataclass(frozen=True, slots=True)
class _Parsed:
    number: int  # line or row number in the source
    ordinal: int  # among all rows, from 1
    text: str
    labels: tuple[str, ...] | str
    rejected: tuple[str, ...] | str
    id: str | None


class _Bad:
    """Counts bad rows and keeps the first reasons; a file may consist of bad rows only."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[tuple[int, str]] = []

    def add(self, number: int, reason: str) -> None:
        """Count a row; each pass adds rows in their order."""
        self.count += 1
        if len(self.first) < REASONS_SHOWN or number < max(self.first)[0]:
            self.first = sorted([*self.first, (number, reason)])[:REASONS_SHOWN]


def _parse(table: Table, columns: Columns) -> tuple[list[_Parsed], _Bad]:
    """Parse all rows, separating well-formed rows from bad ones."""
    parsed: list[_Parsed] = []
    bad = _Bad()
    found: dict[str, None] = {}
    for ordinal, (number, row) in enumerate(table.rows, 1):
        try:
            if isinstance(row, DataError):
                raise row
            text, identity = read_text(row, columns)
            labels, rejected = parse_labels(columns.given(row)), parse_labels(columns.rejected(row), REJECTED)
            parsed.append(_Parsed(number, ordinal, text, labels, rejected, identity))
            found.update(dict.fromkeys(row))
        except DataError as error:
            bad.add(number, str(error))
    if parsed:
        columns.require_labels(found, table.name)
    return parsed, bad


def _finish(
    table: Table, parsed: list[_Parsed], bad: _Bad, part: str | None, split: Callable[[str], tuple[str, ...]]
) -> list[Document]:
    """Split label strings and set ids; of rows with the same id the first is kept, and the others count as bad.

    A row without an id gets its number, or, if another row has that id, a number after the last row.
    """
    documents: list[Document] = []
    owner: dict[str, int] = {}
    given = {row.id for row in parsed}
    later = count(len(parsed) + bad.count + 1)
    for row in parsed:
        identity = row.id
        if identity is None and part:
            numbered = (f"{part}-{number}" for number in chain([row.ordinal], later))
            identity = next(id for id in numbered if id not in given)
        try:
            labels, rejected = (split(some) if isinstance(some, str) else some for some in (row.labels, row.rejected))
            if identity is not None and identity in owner:
                raise DataError(
                    f"the id {short(identity)} is already used in {table.unit} {owner[identity]}, ids must be unique"
                )
            documents.append(Document(row.text, labels, identity, rejected))
            if identity is not None:
                owner[identity] = row.number
        except DataError as error:
            bad.add(row.number, str(error).rstrip("."))
    return documents


def _bad_rows(reasons: tuple[str, ...], bad: int, rows: int) -> str:
    if bad == rows:
        advice = "All rows are bad, so there is nothing to read."
    else:
        advice = "Fix them, or skip them with --skip-bad (in Python: skip_bad=True)."
    return f"{'; '.join(reasons)}. Bad rows: {bad} of {rows}. {advice}"


def read_corpus(
    train: object,
    valid: object = None,
    test: object = None,
    *,
    text_column: str = "text",
    labels_column: str = "labels",
    label_columns: str | Sequence[str] | None = None,
    id_column: str = "id",
    separator: str | None = None,
    skip_bad: bool = False,
    valid_share: float = 0.1,
    seed: int = 0,
    name: str | None = None,
    vocabulary: object = None,
) -> Corpus:
    """Read the splits of a corpus; without `valid`, split off a stratified share of train (0: none).

    Each split is a path, a pandas or polars DataFrame, a Hugging Face Dataset, or a list of Documents, dicts or
    (text, labels) pairs; `train` may also map train, valid (or validation, dev) and test to such splits. If each label
    has a column of 0 and 1, name these with `label_columns`: a list, "sports,politics", `"topic_*"` for all names with
    this prefix (the label is the rest of the name), or `"*"` for all columns except text, labels, id and rejected.

    `vocabulary` gives labels names: a file, a mapping of ids to names, or the result of `read_vocabulary`. Labels may
    then be ids or names, and become ids.
    """
    if not 0 <= valid_share < 1:
        raise DataError(f"valid_share is {valid_share}; it must be at least 0 and less than 1.")
    check_seed(seed)
    names = Vocabulary() if vocabulary is None else read_vocabulary(vocabulary)
    columns = Columns(text_column, labels_column, id_column, one_hot=_one_hot(label_columns))
    usual_separator: str | None = None
    documents: dict[str, list[Document]] = {}
    for part, source in _parts(train, valid, test).items():
        documents[part], report = _read(source, columns, part, separator, usual_separator, skip_bad)
        usual_separator = usual_separator or report.separator  # the separator of train applies to all splits
        for sentence in report.sentences():
            log.warning(sentence)
        if part == "train" and report.labels == 1:
            log.warning("%s: there is only one label, so there is little to learn.", report.name)
        if part == "train" and not report.labels:
            raise DataError(f"{report.name}: no document has a label, so there is nothing to learn. Add labels.")
        documents[part] = list(with_ids(documents[part], names))
    if names:
        check_known((document for part in documents.values() for document in part), names)
    if "valid" not in documents and valid_share:
        documents["train"], documents["valid"] = split_documents(documents["train"], valid_share, seed)
    _warn_of_unseen(documents)
    stem = Path(train).name.split(".")[0] if isinstance(train, str | Path) else "corpus"
    parts = (documents["train"], documents.get("valid", []), documents.get("test", []))
    return Corpus(*parts, name=name or stem, vocabulary=names)


def labelled(source: object, part: str | None = "document", **reading: Any) -> Sequence[Document]:
    """Return documents unchanged, or read them from anything that `read_documents` takes, and log what it reports."""
    if isinstance(source, Sequence) and all(isinstance(item, Document) for item in source):
        return source
    documents, report = read_documents(source, part=part, **reading)
    for sentence in report.sentences():
        log.warning(sentence)
    return documents


def split_documents(
    documents: Sequence[Document], share: float, seed: int = 0
) -> tuple[list[Document], list[Document]]:
    """Split documents in two, putting this share of them and of each label into the second part."""
    space = LabelSpace.of(documents)
    first, second = stratified_split([space.columns(document.labels) for document in documents], share, seed)
    return [documents[row] for row in first], [documents[row] for row in second]


def _parts(train: object, valid: object, test: object) -> dict[str, object]:
    """Return the given sources by split, train first."""
    given: dict[str, object] = {"train": train, "valid": valid, "test": test}
    if isinstance(train, Mapping):
        if valid is not None or test is not None:
            raise DataError("got a mapping of splits together with valid or test. Put all splits into the mapping.")
        if "train" not in train:
            raise DataError(f"got a mapping with {', '.join(map(repr, train))}; expected train, valid and test.")
        if ignored := [repr(key) for key in train if key not in PARTS]:
            log.warning("ignored the splits %s; only train, valid and test are read.", ", ".join(ignored))
        key_of: dict[str, str] = {}
        for key in (key for key in PARTS if train.get(key) is not None):
            if (first := key_of.setdefault(PARTS[key], key)) != key:
                raise DataError(
                    f"got a mapping with both {first!r} and {key!r}, which name the same split; expected one of them. "
                    "Remove the other."
                )
        given = {"train": train["train"], **{part: train[key] for part, key in key_of.items()}}
    return {part: source for part, source in given.items() if source is not None or part == "train"}


def _warn_of_unseen(documents: Mapping[str, Sequence[Document]]) -> None:
    known = {label for document in documents["train"] for label in document.labels}
    for part in ("valid", "test"):
        labels = {label for document in documents.get(part, ()) for label in document.labels}
        if unseen := sorted(labels - known):
            shown = ", ".join(map(repr, unseen[:REASONS_SHOWN]))
            log.warning("%s: labels that do not occur in train and cannot be learnt: %d (%s)", part, len(unseen), shown)

"""Read rows that are already in memory: pandas and polars frames, Hugging Face datasets, and plain lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from denn.data.rows import REJECTED, Columns, Row, Rows, Table, describe
from denn.errors import DataError
from denn.types import Document

EXPECTED = (
    "a path, a pandas or polars DataFrame, a Hugging Face Dataset, "
    "or a list of Documents, dicts or (text, labels) pairs"
)


def read_rows(source: object, name: str, columns: Columns) -> Table:
    """Read a frame, a dataset or a list, recognising frames and datasets without importing their packages."""
    package = type(source).__module__.partition(".")[0]
    readers = {"pandas": _pandas_rows, "polars": _polars_rows, "datasets": _dataset_rows}
    attributes = {"pandas": "columns", "polars": "select", "datasets": "column_names"}  # that a column does not have
    if package in readers and hasattr(source, attributes[package]):
        return Table(name, "row", _numbered(readers[package](source, name, columns)))
    if isinstance(source, list | tuple):
        return Table(name, "row", _numbered(_list_row(item, columns) for item in source))
    raise DataError(f"{name}: got {type(source).__name__}; expected {EXPECTED}.")


def _numbered(rows: Iterator[Row]) -> Rows:
    return enumerate(rows, 1)


def _pandas_rows(frame: Any, name: str, columns: Columns) -> Iterator[Row]:
    wanted = columns.among(list(frame.columns), name)
    values = [frame[column].astype(object) for column in wanted]
    values = [column.where(column.notna(), None).tolist() for column in values]
    for row in zip(*values, strict=True):
        yield {column: _plain(value) for column, value in zip(wanted, row, strict=True)}


def _plain(value: Any) -> object:
    """Turn a NumPy array into a list."""
    return value.tolist() if hasattr(value, "tolist") else value


def _polars_rows(frame: Any, name: str, columns: Columns) -> Iterator[Row]:
    lazy = frame.lazy()  # a LazyFrame then reads only the wanted columns
    wanted = columns.among(lazy.collect_schema().names(), name)
    yield from lazy.select(wanted).collect().iter_rows(named=True)


def _dataset_rows(dataset: Any, name: str, columns: Columns) -> Iterator[Row]:
    if dataset.column_names is not None:  # a streamed dataset may not know them
        columns.among(dataset.column_names, name)
    names = {column: _class_names(feature) for column, feature in (dataset.features or {}).items()}
    classes = {column: names[column] for column in (columns.labels, REJECTED) if names.get(column)}
    for row in dataset:
        try:
            yield {**row, **{column: _named(_plain(row[column]), known) for column, known in classes.items()}}
        except DataError as error:
            yield error


def _class_names(feature: Any) -> Sequence[str]:
    """Return the class names of a ClassLabel column, or of a column with lists of them; otherwise none."""
    if isinstance(feature, list) and feature:  # the older form of a list
        feature = feature[0]
    names: Sequence[str] = getattr(getattr(feature, "feature", feature), "names", None) or ()
    return names


def _named(value: object, names: Sequence[str]) -> object:
    """Turn class numbers into a list of names; -1 means no label, as in published test splits."""
    if value is None or value == -1:
        return []
    numbers: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number < len(names):
            raise DataError(f"the label is {describe(number)}, expected a class number from 0 to {len(names) - 1}")
    return [names[number] for number in numbers]


def _list_row(item: object, columns: Columns) -> Row:
    if isinstance(item, Document):
        rejected = {REJECTED: item.rejected} if item.rejected else {}
        return {**rejected, columns.text: item.text, columns.labels: item.labels, columns.id: item.id}
    if isinstance(item, dict):
        return item
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) == 2:
        return {columns.text: item[0], columns.labels: item[1]}
    return DataError(f"got {describe(item)}; expected a Document, a dict or a (text, labels) pair")

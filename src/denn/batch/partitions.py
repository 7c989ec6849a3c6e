"""Split input files into partitions, each of which has one result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path

from denn.data.files import iterate_texts
from denn.data.parquet import parquet_count
from denn.data.rows import Columns
from denn.errors import DataError

ROWS = 10_000  # per partition of a Parquet file


@dataclass(frozen=True)
class Partition:
    """Some rows of a file; `name` is the name of its result without the extension."""

    name: str
    file: Path
    extent: tuple[int, int] | None = None  # first row, counted from 0, and number of rows; None: the whole file
    state: tuple[int, int] | None = None  # of the file, when it was planned; see `state_of`

    def check_unchanged(self) -> None:
        """Raise a DataError if the file has changed since the partition was planned."""
        if self.state is not None and state_of(self.file) != self.state:
            raise DataError(f"{self.file} has changed since the command started. Run the same command again.")

    @property
    def size(self) -> int | None:
        """The number of rows; None if it is unknown."""
        return None if self.extent is None else self.extent[1]


@dataclass(frozen=True)
class Reading:
    """How to read texts."""

    text_column: str = "text"
    id_column: str = "id"
    format: str | None = None

    def texts(self, partition: Partition) -> Iterator[tuple[str, str | None]]:
        """Yield (text, id or None) of a partition."""
        columns = {"text_column": self.text_column, "id_column": self.id_column}
        return iterate_texts(partition.file, **columns, format=self.format, extent=partition.extent)


def find(pattern: str) -> dict[str, Path]:
    """Return the files that match a pattern, by their names relative to the pattern's fixed part, in order."""
    path = Path(pattern).absolute()
    if path.is_dir():
        raise DataError(f"{pattern} is a folder. Give a file or a pattern in quotes, such as '{pattern}/*.parquet'.")
    try:
        found = {path.name: path} if path.is_file() else matching(pattern)
    except ValueError as error:  # such as "**.jsonl"
        raise DataError(f"{pattern} is not a valid pattern ({str(error).rstrip('.')}).") from None
    if not found:
        raise DataError(f"{pattern}: no such file. Check the path or the pattern.")
    return found


def matching(pattern: str) -> dict[str, Path]:
    """Return the files that match a pattern with wildcards; see `find`."""
    path = Path(pattern).absolute()
    folder = next(folder for folder in path.parents if not has_magic(str(folder)))
    found = {file.relative_to(folder).as_posix(): file for file in folder.glob(str(path.relative_to(folder)))}
    hidden = [name for name in found if any(part.startswith(".") for part in name.split("/"))]
    return {name: found[name] for name in sorted(found.keys() - hidden) if found[name].is_file()}


def state_of(file: Path) -> tuple[int, int]:
    """Return a value that changes with a file."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


def plan(files: dict[str, Path], reading: Reading, rows: int = ROWS) -> list[Partition]:
    """Split Parquet files into partitions of this many rows; every other file is one partition."""
    columns = Columns(reading.text_column, id=reading.id_column, needs_labels=False)
    found: list[Partition] = []
    for name, file in files.items():
        state = state_of(file)  # before its rows are counted
        if file.suffix.lower() != ".parquet":
            found.append(Partition(name, file, state=state))
            continue
        count = parquet_count(file, columns)
        starts: Sequence[int] = range(0, count, rows) or (0,)  # an empty file has an empty result
        found += [Partition(f"{name}.{start:010d}", file, (start, min(rows, count - start)), state) for start in starts]
    return found

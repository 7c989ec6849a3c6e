"""GoEmotions (Demszky et al. 2020): short comments with 28 emotions, in the published split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from denn.data.published import Layout, jsonl, read_lines, read_published
from denn.errors import DataError
from denn.types import Corpus, Document

FILES = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
NAMES = ("emotions.txt", "labels.txt")


def load(folder: Path) -> Corpus:
    """Read `<part>.jsonl`, or the published tables with the names of the emotions in emotions.txt or labels.txt."""
    tables = Layout(tuple(FILES.values()), _read_tables, optional=NAMES)
    return read_published(folder, "goemotions", (jsonl("train", "valid", "test"), tables))


def _read_tables(found: Mapping[str, Path]) -> dict[str, list[Document]]:
    names = next((found[file] for file in NAMES if file in found), None)
    if names is None:
        folder = found["train.tsv"].parent
        raise DataError(
            f"{folder}: there is no {' or '.join(NAMES)}; it should contain the names of the label numbers."
        )
    emotions = dict(enumerate(read_lines(names)))
    return {part: _read_table(found[file], emotions) for part, file in FILES.items()}


def _read_table(path: Path, emotions: Mapping[int, str]) -> list[Document]:
    documents = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            text, labels, identity = line.split("\t")
            names = tuple(emotions[int(label)] for label in labels.split(","))
        except (ValueError, KeyError):
            raise DataError(
                f"{path}, line {number}: got {line[:60]!r}; expected a text, label numbers from 0 to "
                f"{len(emotions) - 1} joined by commas, and an id, separated by tabs."
            ) from None
        documents.append(Document(text, names, identity))
    return documents

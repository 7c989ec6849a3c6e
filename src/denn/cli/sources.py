"""Where a command's documents come from: a file, or a corpus known by its name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from denn.data.corpus import read_corpus, read_documents
from denn.data.known import files_of, folder_of
from denn.encoders.weights import cache_folder
from denn.errors import ConfigError, DataError
from denn.registry import CORPORA, did_you_mean, lookup
from denn.types import Corpus, Document

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """How to read a file of documents."""

    text_column: str = "text"
    labels_column: str = "labels"
    id_column: str = "id"
    separator: str | None = None
    skip_bad: bool = False


def data_folder(given: Path | None) -> Path:
    """Return the folder of known corpora: the one given, or one in the user's cache."""
    return given or cache_folder()


def open_corpus(
    source: str, data_dir: Path | None, reading: Reading, valid: Path | None = None, valid_share: float = 0.1
) -> Corpus:
    """Read a file, split as asked, or a known corpus, split as published."""
    if _is_file(source):
        return read_corpus(source, valid, valid_share=valid_share, **asdict(reading))
    if (reading, valid, valid_share) != (Reading(), None, 0.1):
        raise ConfigError(f"{source} has its own columns and parts; leave out the options that say how to read a file.")
    return _load(source, data_dir)


def open_documents(source: str, data_dir: Path | None, reading: Reading, part: str = "document") -> Sequence[Document]:
    """Read a file, or the test part of a known corpus; `part` names documents without ids as that part's reader did."""
    return read_file(source, reading, part) if _is_file(source) else _load(source, data_dir).test


def read_file(path: str | Path, reading: Reading, part: str = "document") -> list[Document]:
    """Read a file of labelled documents and say what is worth knowing of it."""
    documents, report = read_documents(path, part=part, **asdict(reading))
    for sentence in report.sentences():
        log.warning(sentence)
    return documents


def _is_file(source: str) -> bool:
    """Tell a file from a known corpus; a bare name that is neither is an error."""
    path = Path(source)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return path.is_file() or source not in CORPORA
    if source not in CORPORA:
        raise ConfigError(
            f"There is no file {source!r}, and the corpora known by name are {', '.join(CORPORA)}."
            f"{did_you_mean(source, CORPORA)}"
        )
    return False


def _load(name: str, data_dir: Path | None) -> Corpus:
    folder = folder_of(name, data_folder(data_dir))
    if name != "debian" and not folder.is_dir():  # debian is fetched
        raise DataError(
            f"The corpus {name} is not at {folder}. Say where its folder is with --data-dir or DENN_DATA, or put its "
            f"files there: {files_of(name)}."
        )
    loaded: Corpus = lookup(CORPORA, name, "corpus")(folder)
    return loaded

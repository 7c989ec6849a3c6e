"""Read a command's documents from a file or a known corpus."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from denn.cli.options import IdColumn, LabelColumns, LabelsColumn, Separator, SkipBad, TextColumn
from denn.data.known import files_of, folder_of
from denn.errors import ConfigError, DataError
from denn.registry import CORPORA, did_you_mean, lookup
from denn.types import Corpus, Document
from denn.vocabulary import Vocabulary


@dataclass(frozen=True)
class Reading:
    """Options for reading a file of documents."""

    text_column: TextColumn = "text"
    labels_column: LabelsColumn = "labels"
    label_columns: LabelColumns = None
    id_column: IdColumn = "id"
    separator: Separator = None
    skip_bad: SkipBad = False


def with_reading(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `reading` of a command with the options in `Reading`."""
    options = inspect.signature(Reading, eval_str=True).parameters

    @wraps(command)
    def run(**given: Any) -> None:
        reading = Reading(**{name: given.pop(name) for name in options})
        command(**given, reading=reading)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if name == "reading":
            parameters += [option.replace(kind=parameter.kind) for option in options.values()]
        else:
            parameters.append(parameter)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def data_folder(given: Path | None) -> Path:
    """Return the folder of the known corpora; default: the user's cache."""
    from denn.encoders.weights import cache_folder

    return given or cache_folder()


def open_corpus(
    source: str,
    data_dir: Path | None,
    reading: Reading,
    valid: Path | None = None,
    valid_share: float = 0.1,
    vocabulary: Vocabulary | None = None,
) -> Corpus:
    """Read and split a file, or read a known corpus with its published split."""
    from denn.data.corpus import read_corpus
    from denn.data.vocabularies import check_known, with_vocabulary

    if _is_file(source):
        return read_corpus(source, valid, valid_share=valid_share, vocabulary=vocabulary, **asdict(reading))
    if (reading, valid, valid_share) != (Reading(), None, 0.1):
        raise _not_a_file(source)
    corpus = _load(source, data_dir)
    if vocabulary is None:
        return corpus
    corpus = with_vocabulary(corpus, vocabulary)
    check_known((document for part in (corpus.train, corpus.valid, corpus.test) for document in part), vocabulary)
    return corpus


def open_documents(source: str, data_dir: Path | None, reading: Reading, part: str = "document") -> Sequence[Document]:
    """Read a file, or the test part of a known corpus; `part` determines the ids of documents that have none."""
    if _is_file(source):
        return read_file(source, reading, part)
    if reading != Reading():
        raise _not_a_file(source)
    return _load(source, data_dir).test


def read_file(path: str | Path, reading: Reading, part: str | None = "document") -> Sequence[Document]:
    """Read a file of labelled documents and log what needs attention."""
    from denn.data.corpus import labelled

    return labelled(path, part, **asdict(reading))


def check_needed(reading: Reading, needed: str) -> None:
    """Raise if options for reading a file are given without the file."""
    if reading != Reading():
        raise ConfigError(f"Options for reading a file need {needed}. Add it, or omit them.")


def _not_a_file(source: str) -> ConfigError:
    return ConfigError(f"{source} has its own columns and splits. Omit the options for reading a file.")


def _is_file(source: str) -> bool:
    """Return whether a source is a file rather than a known corpus; raise for a bare name that is neither."""
    path = Path(source)
    if path.exists() or path.suffix or len(path.parts) > 1:
        return path.is_file() or source not in CORPORA
    if source not in CORPORA:
        raise ConfigError(
            f"{source!r} is neither a file nor a known corpus. Known corpora: {', '.join(CORPORA)}."
            f"{did_you_mean(source, CORPORA)}"
        )
    return False


def _load(name: str, data_dir: Path | None) -> Corpus:
    folder = folder_of(name, data_folder(data_dir))
    if name != "debian" and not folder.is_dir():  # debian is downloaded
        raise DataError(
            f"The corpus {name} was not found at {folder}. Set --data-dir or DENN_DATA to its parent folder, or put "
            f"these files there: {files_of(name)}."
        )
    loaded: Corpus = lookup(CORPORA, name, "corpus")(folder)
    return loaded

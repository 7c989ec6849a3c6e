"""The vocabulary of a model in its folder, if its labels have names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from denn.errors import BundleError, TrainingError
from denn.strict_json import dumps
from denn.untrusted import MOST_LARGE_JSON, REMEDY, read_json
from denn.vocabulary import Vocabulary, VocabularyEntry

FILE = "vocabulary.json"
ENTRIES = TypeAdapter(list[VocabularyEntry])


def write_vocabulary(folder: Path, vocabulary: Vocabulary) -> None:
    """Write a vocabulary that is not empty."""
    if not vocabulary:
        return
    entries = [{"id": one.id, "name": one.name, "description": one.description} for one in vocabulary]
    content = dumps(entries, "The vocabulary", TrainingError, indent=0, ensure_ascii=False).encode()
    if len(content) > MOST_LARGE_JSON:
        raise TrainingError(
            f"The vocabulary has {len(content):,} bytes, expected at most {MOST_LARGE_JSON:,}. Leave out descriptions, "
            "or entries that are not used."
        )
    (folder / FILE).write_bytes(content)


def read_vocabulary(folder: Path, files: Collection[str]) -> Vocabulary:
    """Read the vocabulary of a model; it is empty if the bundle has no such file."""
    if FILE not in files:
        return Vocabulary()
    content = read_json(folder / FILE, BundleError, MOST_LARGE_JSON)
    try:
        return Vocabulary(tuple(ENTRIES.validate_python(content)))
    except ValidationError as error:
        raise BundleError(f"{folder / FILE} is damaged: expected ids and names of labels. {REMEDY}") from error

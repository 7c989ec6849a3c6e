"""The vocabulary of a model in its folder, if its labels have names."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from denn.errors import BundleError, TrainingError
from denn.strict_json import dumps
from denn.untrusted import MOST_LARGE_JSON, REMEDY, read_json
from denn.vocabulary import Vocabulary, VocabularyEntry

FILE = "vocabulary.json"
FILES = re.compile(r"vocabulary(-[1-9][0-9]{0,8})?\.json")  # numbered if labels were renamed or merged since training
ENTRIES = TypeAdapter(list[VocabularyEntry])


def write_vocabulary(folder: Path, vocabulary: Vocabulary, name: str = FILE) -> None:
    """Write a vocabulary that is not empty."""
    if not vocabulary:
        return
    entries = [
        {"id": one.id, "name": one.name, "description": one.description}
        | ({"replaced_by": one.replaced_by, "replaced_in": one.replaced_in} if one.replaced_by else {})
        for one in vocabulary
    ]
    content = dumps(entries, "The vocabulary", TrainingError, indent=0, ensure_ascii=False).encode()
    if len(content) > MOST_LARGE_JSON:
        raise TrainingError(
            f"The vocabulary has {len(content):,} bytes, expected at most {MOST_LARGE_JSON:,}. Leave out descriptions, "
            "or entries that are not used."
        )
    (folder / name).write_bytes(content)


def vocabulary_in(files: Collection[str]) -> str | None:
    """Return the name of the vocabulary among the files of a bundle, if it has one."""
    return next((name for name in sorted(files) if FILES.fullmatch(name)), None)


def read_vocabulary(folder: Path, files: Collection[str]) -> Vocabulary:
    """Read the vocabulary of a model; it is empty if the bundle has no such file."""
    name = vocabulary_in(files)
    if name is None:
        return Vocabulary()
    content = read_json(folder / name, BundleError, MOST_LARGE_JSON)
    try:
        return Vocabulary(tuple(ENTRIES.validate_python(content)))
    except ValidationError as error:
        raise BundleError(f"{folder / name} is damaged: expected ids and names of labels. {REMEDY}") from error

"""EUR-LEX57K (Chalkidis et al. 2019): European laws with 4,271 EUROVOC concepts, in the published split."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from denn.data.compressed import read_whole
from denn.data.published import Layout, jsonl, read_published
from denn.errors import DataError
from denn.types import Corpus, Document

NAMES = "EURLEX57K.json"
FOLDERS = {"train": "train", "valid": "dev", "test": "test"}


def load(folder: Path) -> Corpus:
    """Read `<part>.jsonl`, or one JSON file per law in the folders train, dev and test.

    Labels are names if EURLEX57K.json is next to the folders, otherwise concept numbers.
    """
    folders = Layout(tuple(FOLDERS.values()), _read_folders, optional=(NAMES,))
    return read_published(folder, "eurlex57k", (jsonl("train", "valid", "test"), folders))


def _read_folders(found: Mapping[str, Path]) -> dict[str, list[Document]]:
    names = _read_names(found[NAMES]) if NAMES in found else {}
    return {part: _read_folder(found[called], names) for part, called in FOLDERS.items()}


def _read_names(path: Path) -> dict[str, str]:
    try:
        return {number: str(concept["label"]) for number, concept in _read_object(path).items()}
    except (KeyError, TypeError):
        raise DataError(f"{path}: expected an object with a label for each concept number.") from None


def _read_folder(folder: Path, names: Mapping[str, str]) -> list[Document]:
    paths = sorted(folder.glob("*.json"), key=lambda path: path.name)
    if not paths:
        raise DataError(f"{folder}: there are no .json files; expected one per law.")
    return [_read_law(path, names) for path in paths]


def _read_law(path: Path, names: Mapping[str, str]) -> Document:
    law = _read_object(path)
    body: Any = law.get("main_body")
    concepts: Any = law.get("concepts")
    lists = isinstance(body, list) and isinstance(concepts, list)
    pieces = [law.get("header"), law.get("recitals"), *(body if lists else ()), law.get("attachments")]
    if not lists or not all(isinstance(piece, str) for piece in (*pieces, *concepts)):
        raise DataError(
            f"{path}: not a law of EUR-LEX57K; expected strings under header, recitals and attachments, and lists of "
            "strings under main_body and concepts. Download the file again."
        )
    return Document("\n".join(pieces).strip(), tuple(names.get(concept, concept) for concept in concepts), path.stem)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_whole(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}). Download the file again.") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: got a {type(value).__name__}; expected a JSON object in {{}}.")
    return value

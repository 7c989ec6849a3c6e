"""Amazon-531 (McAuley and Leskovec 2013): product reviews with 531 product types, in the split of TaxoClass."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from denn.data.published import Layout, check_equal, jsonl, paired, read_lines, read_published
from denn.errors import DataError
from denn.types import Corpus, Document

SEED = 0  # for the validation split
FILES = ("corpus.txt", "doc2labels.txt")  # TaxoClass's files, in the folders train and test
NAMES = "labels.txt"


def load(folder: Path) -> Corpus:
    """Read `<part>.jsonl`, DENN's or TaxoClass's files; without `valid`, use a random fifth of train for it."""
    ours = jsonl("train", "test", optional=("valid",))
    denn = paired("text_{}", "label_{}", {"train": "train", "test": "test"})
    tables = [f"{part}/{file}" for part in ("train", "test") for file in FILES]
    taxoclass = Layout((*tables, NAMES), _read_taxoclass)
    return read_published(folder, "amazon531", (ours, denn, taxoclass), a_fifth)


def a_fifth(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Split off a random fifth of the documents, keeping their order in both parts."""
    kept = set(random.Random(SEED).sample(range(len(documents)), int(0.8 * len(documents))))
    train = [document for row, document in enumerate(documents) if row in kept]
    return train, [document for row, document in enumerate(documents) if row not in kept]


def _read_taxoclass(found: Mapping[str, Path]) -> dict[str, list[Document]]:
    """Read tables of two columns: id and text, id and label numbers, label number and name."""
    names = _table(found[NAMES])
    parts = {}
    for part in ("train", "test"):
        text_path, label_path = (found[f"{part}/{file}"] for file in FILES)
        texts, labels = _table(text_path), _table(label_path)
        check_equal(text_path, len(texts), label_path, len(labels))
        documents = []
        for key, text in texts.items():
            numbers = labels.get(key)
            if numbers is None:
                raise DataError(f"{label_path}: there are no labels for the document {key!r} of {text_path}.")
            if unknown := [number for number in numbers.split(",") if number not in names]:
                raise DataError(f"{label_path}: the label {unknown[0]!r} of {key!r} is not in {found[NAMES]}.")
            documents.append(Document(text, tuple(names[number] for number in numbers.split(",")), f"{part}-{key}"))
        parts[part] = documents
    return parts


def _table(path: Path) -> dict[str, str]:
    rows = {}
    for number, line in enumerate(read_lines(path), 1):
        key, tab, value = line.partition("\t")
        if not tab or key in rows:
            wrong = f"the id {key!r} occurs twice" if tab else "there is no tab"
            raise DataError(f"{path}, line {number}: {wrong}, expected a unique id, a tab and a value.")
        rows[key] = value.strip()
    return rows

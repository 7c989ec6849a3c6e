"""AAPD (Yang et al. 2018): arXiv abstracts of computer science with 54 subjects, in the split of SGM."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from denn.data.corpus import read_documents
from denn.data.published import SGM, find_file, jsonl, read_published, warn_of_differences
from denn.errors import DataError
from denn.types import Corpus


def load(folder: Path) -> Corpus:
    """Read `<part>.jsonl` or SGM's files of texts and labels."""
    return read_published(folder, "aapd", (jsonl("train", "valid", "test"), *SGM))


def load_extra(folder: Path) -> Corpus:
    """Read the same corpus with the documents of extra.jsonl appended to train."""
    path = find_file(Path(folder), "extra.jsonl")
    if path is None:
        raise DataError(f"{folder}: extra.jsonl, which aapd-extra needs, is missing. Add it, or use the corpus aapd.")
    corpus = load(folder)
    extra, _ = read_documents(path, part="extra")
    corpus = replace(corpus, train=[*corpus.train, *extra], name="aapd-extra")
    warn_of_differences(corpus)
    return corpus

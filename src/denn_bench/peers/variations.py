"""Variations of a corpus, to see what systems make of it: fewer documents or labels, shorter texts, wrong labels."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from denn.data.split import stratified_split
from denn.errors import ConfigError
from denn.registry import did_you_mean
from denn.types import Corpus, Document, LabelSpace

VALID_SHARE = 0.1  # as in `denn train`


def _documents(corpus: Corpus, count: float, chance: random.Random) -> Corpus:
    """Keep this many random documents for training and validation, a tenth of them for validation."""
    pool = [*corpus.train, *corpus.valid]
    chosen = chance.sample(pool, min(int(count), len(pool)))
    columns = [corpus.labels.columns(document.labels) for document in chosen]
    train, valid = stratified_split(columns, VALID_SHARE, chance.getrandbits(32))
    return replace(corpus, train=[chosen[row] for row in train], valid=[chosen[row] for row in valid])


def _labels(corpus: Corpus, count: float, _: random.Random) -> Corpus:
    """Keep this many labels, the most frequent ones. Documents that lose all of theirs stay, without labels."""
    names = LabelSpace.of(corpus.train, corpus.valid, corpus.test).names[: int(count)]
    kept = set(names)

    def fewer(document: Document) -> Document:
        return replace(document, labels=tuple(label for label in document.labels if label in kept))

    return replace(_changed(corpus, fewer, test=True), labels=LabelSpace(names))


def _words(corpus: Corpus, count: float, _: random.Random) -> Corpus:
    """Keep this many words of every text, the first ones."""
    return _changed(corpus, lambda it: replace(it, text=" ".join(it.text.split()[: int(count)])), test=True)


def _flipped(corpus: Corpus, share: float, chance: random.Random) -> Corpus:
    """Replace this share of the labels for training and validation by others, drawn by their frequency."""
    drawn = [label for document in corpus.train for label in document.labels]
    known = set(drawn)

    def mistaken(document: Document) -> Document:
        labels = list(document.labels)
        for place in range(len(labels)):
            if chance.random() < share and known.difference(labels):
                while (other := chance.choice(drawn)) in labels:
                    pass
                labels[place] = other
        return replace(document, labels=tuple(labels))

    return _changed(corpus, mistaken, test=False)


VARIATIONS: dict[str, Callable[[Corpus, float, random.Random], Corpus]] = {
    "documents": _documents,
    "labels": _labels,
    "words": _words,
    "flipped": _flipped,
}


def check(name: str) -> None:
    """Reject the name of an unknown variation."""
    if name not in VARIATIONS:
        hint = did_you_mean(name, VARIATIONS)
        raise ConfigError(f"There is no variation {name[:60]!r}.{hint} Available: {', '.join(VARIATIONS)}.")


def parse(text: str) -> list[str]:
    """Return variations such as `documents=100` from a text such as `documents=100,1000`."""
    name, _, values = text.partition("=")
    check(name)
    found = []
    for value in values.split(","):
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not (0 <= number <= 1 if name == "flipped" else number >= 1 and number.is_integer()):
            expected = "shares such as 0.1" if name == "flipped" else "whole numbers such as 100"
            raise ConfigError(f"Got {text[:60]!r} for --vary, expected {expected} after {name}=.")
        found.append(f"{name}={number:.12g}")
    return list(dict.fromkeys(found))


def varied(corpus: Corpus, variation: str, seed: int) -> Corpus:
    """Return the variation of a corpus; an empty one is the corpus itself."""
    if not variation:
        return corpus
    name, _, value = variation.partition("=")
    return VARIATIONS[name](corpus, float(value), random.Random(f"{variation} {seed}"))


def _changed(corpus: Corpus, change: Callable[[Document], Document], test: bool) -> Corpus:
    def each(documents: Sequence[Document]) -> list[Document]:
        return [change(document) for document in documents]

    return replace(
        corpus, train=each(corpus.train), valid=each(corpus.valid), test=each(corpus.test) if test else corpus.test
    )

"""Recognise a text that is already stored: its labels have been decided."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import cached_property

import torch

from denn.datastore import Datastore
from denn.prediction_types import Scores
from denn.types import Document

COPY = 0.999  # minimum cosine of embeddings for comparing a text with all its neighbours
NEAR, LEAST_SIMILARITY = 5, 0.8  # otherwise compare with this many, if they have at least this cosine
NEAREST, LEAST_OF_NEAREST = 3, 0.5  # lower for the 3 nearest: a typo in a short text moves its embedding far
SHARE_OF_UNDECIDED = 0.001  # share of the original score kept for decided labels, to preserve their order
LEAST_WORDS = 5  # minimum length of a text that may differ from the stored one
LEAST_SHARE, MOST_SHARE = 0.5, 1.1  # length relative to the stored text, in words
MOST_BLANKS = 3  # times as many characters as the other text, for the same words
WORDS_PER_TYPO, LEAST_WORDS_WITH_TYPO = 20, 10
BEGINNINGS = (120, 1200)  # characters of two texts to compare first, because most texts differ there
LEAST_LETTERS = 6  # minimum length of an unusual word with a typo; shorter words are often abbreviations

HYPHENATED = re.compile(r"(?<=\w)[-\u00ad\u2010][ \t\r]*+\n\s*+(?=\w)")
SIGNS = r"\s.,;:!?'\"()\[\]{}\-_`’‘“”«»…–—‐"  # between words, except in −5, .net, 1.5 and 3:2; others belong to words
WORD = re.compile(
    rf"(?:(?<![\w.,:)\]])-(?=\d)|(?<![^\s(\[])\.(?=[^\W\d]))?[^{SIGNS}]+(?:(?<=\d)[.,:](?=\d)[^{SIGNS}]+)*+"
)

IsWord = Callable[[str], bool]  # whether a string is the usual spelling of a word


class Likeness(IntEnum):
    """How similar two texts are, in increasing order."""

    OTHER = 0
    NEARLY_SAME = 1  # except for typos and a missing end
    SAME_WORDS = 2
    SAME = 3  # except for white space


def decide_by_same_text(scores: Scores, texts: Sequence[str], store: Datastore, is_word: IsWord) -> Scores:
    """Give texts that are stored their stored labels; of several documents, the one last changed decides."""
    near = _near_documents(scores)
    if not near:
        return scores
    wanted = sorted({id for ids in near.values() for id in ids})
    stored = {str(document.id): Stored(document) for document in store.get(wanted, missing_ok=True)}
    same: list[str | None] = [None] * len(texts)
    final, column_of = scores.final.clone(), {name: column for column, name in enumerate(scores.names)}
    for row, ids in near.items():
        alike = _most_alike(texts[row], [stored[id] for id in ids if id in stored], is_word)
        if not alike:
            continue
        document = alike[0] if len(alike) == 1 else _last_changed(alike, store)
        same[row] = document.id
        given = torch.zeros(final.shape[1], device=final.device)
        given[[column_of[label] for label in document.labels if label in column_of]] = 1
        final[row] = (1 - SHARE_OF_UNDECIDED) * given + SHARE_OF_UNDECIDED * final[row]
        final[row, [column_of[label] for label in document.rejected if label in column_of]] = 0
    return replace(scores, final=final, same_text=tuple(same))


class Compared:
    """A text to compare with others, split into words at most once and no further than needed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._beginnings: dict[int, list[str]] = {}

    def first_words(self, characters: int) -> list[str]:
        """Return the words at its beginning, without the last ones, which may be cut off or continue."""
        if len(self.text) <= characters:
            return self.words
        if characters not in self._beginnings:
            self._beginnings[characters] = words_of(self.text[:characters])[:-2]
        return self._beginnings[characters]

    @cached_property
    def words(self) -> list[str]:
        """The words of the text."""
        return words_of(self.text)

    @cached_property
    def pieces(self) -> list[str]:
        """The parts between white space."""
        return self.text.split()


class Stored(Compared):
    """The text of a stored document."""

    def __init__(self, document: Document) -> None:
        super().__init__(document.text)
        self.document = document


def _near_documents(scores: Scores) -> dict[int, list[str]]:
    """Return the ids of the close documents of each text that has any, nearest first."""
    found = scores.neighbours
    assert found is not None
    near = found.similarity >= COPY
    near[:, :NEAR] = found.similarity[:, :NEAR] >= LEAST_SIMILARITY
    near[:, :NEAREST] = found.similarity[:, :NEAREST] >= LEAST_OF_NEAREST
    places: dict[int, list[str]] = {}
    for row, place in near.nonzero().tolist():
        places.setdefault(row, []).append(found.ids[row][place])
    return places


def _most_alike(text: str, near: Sequence[Stored], is_word: IsWord) -> list[Document]:
    """Return the documents whose text is most similar; of nearly identical ones, only the nearest."""
    best, found, asked = Likeness.OTHER, list[Document](), Compared(text)
    for stored in near:
        likeness = likeness_of(asked, stored, is_word)
        if likeness > best:
            best, found = likeness, []
        if likeness == best != Likeness.OTHER and not (found and best == Likeness.NEARLY_SAME):
            found.append(stored.document)
    return found


def _last_changed(documents: Sequence[Document], store: Datastore) -> Document:
    """Return the document that was changed last, or the first one if they agree on the labels."""
    if len({(frozenset(document.labels), frozenset(document.rejected)) for document in documents}) == 1:
        return documents[0]
    changes = [store.history(limit=1, id=document.id) for document in documents]
    return max(zip(changes, documents, strict=True), key=lambda one: one[0][0].number if one[0] else 0)[1]


def likeness_of(asked: Compared, stored: Stored, is_word: IsWord) -> Likeness:
    """Compare a text with a stored one."""
    text, other = asked.text, stored.text
    if text == other:
        return Likeness.SAME if text.strip() else Likeness.OTHER
    alike = all(_begin_alike(asked.first_words(size), stored.first_words(size), is_word) for size in BEGINNINGS)
    if not alike and not _begin_with_same(asked.text, stored.text):
        return Likeness.OTHER
    if len(text) <= MOST_BLANKS * len(other) and asked.pieces == stored.pieces:
        return Likeness.SAME if text.strip() else Likeness.OTHER
    if not LEAST_SHARE / MOST_BLANKS <= len(text) / max(1, len(other)) <= MOST_SHARE * MOST_BLANKS:
        return Likeness.OTHER
    if asked.words and asked.words == stored.words:
        return Likeness.SAME_WORDS
    return Likeness.NEARLY_SAME if is_nearly_same(asked.words, stored.words, is_word) else Likeness.OTHER


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, with words joined that a line break splits."""
    return WORD.findall(HYPHENATED.sub("", text).casefold())


def is_nearly_same(own: Sequence[str], stored: Sequence[str], is_word: IsWord) -> bool:
    """Return whether words are those of a stored text except for typos and a missing end.

    One typo is allowed per 20 words, and one in a text of 10 to 19 words.
    """
    if not (len(own) >= LEAST_WORDS and LEAST_SHARE * len(stored) <= len(own) <= MOST_SHARE * len(stored)):
        return False
    typos, here, there = max(len(own) // WORDS_PER_TYPO, int(len(own) >= LEAST_WORDS_WITH_TYPO)), 0, 0
    while here < len(own) and there < len(stored):
        one, other = own[here], stored[there]
        if here == len(own) - 1 and there < len(stored) - 1 and _is_beginning(one, other):
            return True
        step = _step(own[here : here + 2], stored[there : there + 2], is_word)
        typos -= one != other
        if step is None or typos < 0:
            return False
        here, there = here + step[0], there + step[1]
    return here == len(own)


def _begin_alike(own: Sequence[str], stored: Sequence[str], is_word: IsWord) -> bool:
    """Return whether the first words of two texts may be those of the same text; the last one may be cut off."""
    here = there = 0
    while here < len(own) - 1 and there < len(stored) - 1:
        step = _step(own[here : here + 2], stored[there : there + 2], is_word)
        if step is None:
            return False
        here, there = here + step[0], there + step[1]
    return True


def _begin_with_same(text: str, other: str) -> bool:
    """Return whether two texts begin with the same parts between spaces: a hyphen at a line end may change words."""
    own, stored = (some[: BEGINNINGS[0]].split()[:-1] for some in (text, other))
    return all(map(str.__eq__, own, stored))


def _step(own: Sequence[str], stored: Sequence[str], is_word: IsWord) -> tuple[int, int] | None:
    """Return how many of the next two words of each text match except for a typo or a space; None if none do."""
    if own[0] == stored[0] or is_typo(own[0], stored[0], is_word):
        return 1, 1
    if _are_halves(own, stored[0]):
        return 2, 1
    return (1, 2) if _are_halves(stored, own[0]) else None


def _is_beginning(one: str, other: str) -> bool:
    """Return whether a word is the beginning of the other; a number that is cut off is a different number."""
    return other.startswith(one) and not any(sign.isdigit() for sign in other)


def _are_halves(parts: Sequence[str], word: str) -> bool:
    """Return whether a word was split in two; a single letter may be a separate word."""
    return "".join(parts) == word and min(map(len, parts)) > 1


def is_typo(one: str, other: str, is_word: IsWord) -> bool:
    """Return whether two words differ by one missing, doubled, wrong or transposed letter.

    Two usual words, such as not and now, are not typos of each other. Two unusual ones may be names: they must be
    long, and differ by a missing inner letter or by two swapped letters.
    """
    short, long = sorted((one, other), key=len)
    usual = is_word(one) + is_word(other)
    if len(long) > len(short) + 1 or any(sign.isdigit() for sign in one + other) or usual == 2:
        return False
    if usual == 0 and len(short) < LEAST_LETTERS:
        return False
    place = next((at for at, (left, right) in enumerate(zip(short, long, strict=False)) if left != right), len(short))
    if len(short) < len(long):
        return short[place:] == long[place + 1 :] and (usual == 1 or 0 < place < len(short))
    swapped = short[place : place + 2] == long[place : place + 2][::-1] and short[place + 2 :] == long[place + 2 :]
    return swapped or (usual == 1 and short[place + 1 :] == long[place + 1 :])

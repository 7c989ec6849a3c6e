"""A text that is stored already: whoever stored it has decided on its labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch

from denn.protocols import Datastore
from denn.types import Document, Scores

LEAST_SIMILARITY = 0.8  # of embeddings; below it two texts are not compared
COMPARED = 8  # neighbours of a text, at most
SHARE_OF_UNDECIDED = 0.001  # of a score is left to a label that was decided on, so that their order stays
LEAST_WORDS = 5  # of a text that may differ from the stored one
LEAST_SHARE, MOST_SHARE = 0.5, 1.1  # of the stored text's words
WORDS_PER_TYPO = 20
SHORTEST_TYPO = 3  # characters of the longer word

HYPHENATED = re.compile(r"(?<=\w)[-\u00ad\u2010]\s*\n\s*(?=\w)")
WORD = re.compile(r"\w+")


def decide_by_same_text(scores: Scores, texts: Sequence[str], store: Datastore) -> Scores:
    """Give texts that are stored the labels that are stored with them; the newest of several documents decides."""
    candidates = _candidates(scores)
    if not candidates:
        return scores
    wanted = sorted({id for ids in candidates.values() for id in ids})
    stored = {str(document.id): document for document in store.get(wanted, missing_ok=True)}
    same: list[str | None] = [None] * len(texts)
    final, column_of = scores.final.clone(), {name: column for column, name in enumerate(scores.names)}
    for row, ids in candidates.items():
        document = _same(texts[row], [stored[id] for id in ids if id in stored])
        if document is None:
            continue
        same[row] = document.id
        given = torch.zeros(final.shape[1])
        given[[column_of[label] for label in document.labels if label in column_of]] = 1
        final[row] = (1 - SHARE_OF_UNDECIDED) * given + SHARE_OF_UNDECIDED * final[row]
        final[row, [column_of[label] for label in document.rejected if label in column_of]] = 0
    return replace(scores, final=final, same_text=tuple(same))


def _candidates(scores: Scores) -> dict[int, list[str]]:
    """Return the ids of the near documents of each text that has any, nearest first."""
    found = scores.neighbours
    assert found is not None
    near = found.similarity[:, :COMPARED] >= LEAST_SIMILARITY
    return {
        row: [id for id, is_near in zip(found.ids[row], near[row].tolist(), strict=False) if is_near]
        for row in near.any(1).nonzero()[:, 0].tolist()
    }


def _same(text: str, documents: Sequence[Document]) -> Document | None:
    """Return the newest document of this very text, or the first of nearly the same."""
    own = words_of(text)
    nearly = None
    for document in reversed(documents):  # of equal vectors the oldest comes first
        other = words_of(document.text)
        if own == other and own:
            return document
        if is_nearly_same(own, other):
            nearly = document
    return nearly


def words_of(text: str) -> list[str]:
    """Return the words of a text, without their case and without what breaks lines."""
    return WORD.findall(HYPHENATED.sub("", text).casefold())


def is_nearly_same(own: Sequence[str], stored: Sequence[str]) -> bool:
    """Tell whether words are those of a stored text but for typos and a missing end."""
    if not (len(own) >= LEAST_WORDS and LEAST_SHARE * len(stored) <= len(own) <= MOST_SHARE * len(stored)):
        return False
    typos, here, there = 1 + len(own) // WORDS_PER_TYPO, 0, 0
    while here < len(own) and there < len(stored):
        one, other = own[here], stored[there]
        cut_off = here == len(own) - 1 and other.startswith(one)
        if one == other or cut_off or is_typo(one, other):
            here, there = here + 1, there + 1
        elif "".join(own[here : here + 2]) == other:
            here, there = here + 2, there + 1
        elif one == "".join(stored[there : there + 2]):
            here, there = here + 1, there + 2
        else:
            return False
        typos -= one != other and not cut_off
        if typos < 0:
            return False
    return len(own) - here <= typos


def is_typo(one: str, other: str) -> bool:
    """Tell whether words differ in one letter that is missing, doubled, wrong, or has changed places with the next."""
    short, long = sorted((one, other), key=len)
    if len(long) < SHORTEST_TYPO or len(long) > len(short) + 1 or any(sign.isdigit() for sign in one + other):
        return False
    place = next((at for at, (left, right) in enumerate(zip(short, long, strict=False)) if left != right), len(short))
    if len(short) < len(long):
        return short[place:] == long[place + 1 :]
    swapped = short[place : place + 2] == long[place : place + 2][::-1] and short[place + 2 :] == long[place + 2 :]
    return swapped or short[place + 1 :] == long[place + 1 :]

"""TF-IDF of words, of pairs of neighbouring words and of the beginnings and endings of words, as sparse rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Matrix = Any  # a scipy.sparse.csr_matrix, which has no types

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # written without spaces: each is a word
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]+")
LONGEST = 40  # characters of a word that are read; more is data, not language
BEGINNINGS, ENDINGS = (3, 4, 5), (3, 4)  # lengths in characters; a word that is no longer has none
CACHED = 300_000  # words whose columns are remembered; all are forgotten when there are more
CHUNK = 2048  # texts at a time


def affixes(word: str) -> list[str]:
    """Return the beginnings and endings of a word; the hyphen, which no word has, marks them."""
    begins = [f"{word[:length]}-" for length in BEGINNINGS if len(word) > length]
    return begins + [f"-{word[-length:]}" for length in ENDINGS if len(word) > length]


@dataclass(frozen=True)
class Tokens:
    """The words of n texts: `words[ids[offsets[i] : offsets[i + 1]]]` are those of text i, in order."""

    words: list[str]  # each once
    ids: NDArray[np.int32]
    offsets: Integers  # (n + 1,)

    @classmethod
    def of(cls, texts: Iterable[str], report: Callable[[int], None] | None = None) -> Self:
        """Read the words of texts in lower case."""
        numbers: dict[str, int] = {}
        parts, ends = [np.zeros(0, dtype=np.int32)], [0]
        for text in texts:
            found = [numbers.setdefault(word[:LONGEST], len(numbers)) for word in WORD.findall(text.lower())]
            parts.append(np.array(found, dtype=np.int32))
            ends.append(ends[-1] + len(found))
            if report and len(ends) % CHUNK == 0:
                report(len(ends) - 1)
        return cls(list(numbers), np.concatenate(parts), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, begin: int, end: int) -> Tokens:
        """Return the words of some of the texts."""
        offsets = self.offsets[begin : end + 1]
        return Tokens(self.words, self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def texts(self) -> Integers:
        """Return the text of each token."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


@dataclass(frozen=True)
class Lists:
    """Lists of columns one after the other: list i is `columns[offsets[i] : offsets[i + 1]]`."""

    columns: Integers
    offsets: Integers

    def take(self, which: NDArray[Any]) -> tuple[Integers, Integers]:
        """Return the columns of some lists one after the other, and the position in `which` that each came from."""
        sizes = np.diff(self.offsets)[which]
        ends = np.cumsum(sizes)
        shifts = self.offsets[which] - (ends - sizes)
        positions = np.repeat(np.arange(len(which)), sizes)
        return self.columns[np.arange(len(positions)) + shifts[positions]], positions


class Ngrams:
    """Which terms are columns and what each weighs: words, then their beginnings and endings, then pairs of words.

    A text is a vector of length √2, or 1 if all its terms are of one kind: z = (x, y), with x the beginnings and
    endings, y the rest, each of length 1 and proportional to

        (1 + ln c_t) · (1 + ln((1 + N) / (1 + N_t)))

    where c_t counts the term in the text and N_t of the N training texts have it.
    """

    def __init__(self, words: list[str], endings: list[str], pairs: Integers, idf: Floats) -> None:
        self.words = words
        self.endings = endings
        self.pairs = pairs  # (P,) left · W + right, ascending
        self.idf = idf  # (V,)
        self._columns = {term: column for column, term in enumerate([*words, *endings])}
        self._known: dict[str, list[int]] = {}

    @classmethod
    def of(cls, tokens: Tokens, *, least: int, most_words: int, most_endings: int, most_pairs: int) -> Self:
        """Collect the most frequent terms of training texts that occur in at least `least` of them."""
        having = _texts_having(tokens)
        words = [tokens.words[number] for number in _most_frequent(having, least, most_words)]
        endings: dict[str, int] = {}
        for word, times in zip(tokens.words, having.tolist(), strict=True):
            for ending in affixes(word):
                endings[ending] = endings.get(ending, 0) + times
        spelt = list(endings)
        chosen = [spelt[number] for number in _most_frequent(np.array([*endings.values()], int), least, most_endings)]
        self = cls(words, chosen, np.zeros(0, np.int64), np.zeros(0, np.float32))
        if most_pairs:
            keys, times = np.unique(self._pair_keys(tokens, self.lists(tokens.words))[0], return_counts=True)
            self.pairs = keys[_most_frequent(times, least, most_pairs)]
        return self

    def learn(self, tokens: Tokens) -> Matrix:
        """Weigh the terms by how many of the training texts have them; return the (N,V) float32 rows of these texts."""
        rows = self._counts(tokens)
        having = np.bincount(rows.indices, minlength=self.terms)
        self.idf = (1 + np.log((1 + len(tokens)) / (1 + having))).astype(np.float32)
        return self._weigh(rows)

    @property
    def terms(self) -> int:
        """The number V of columns."""
        return len(self.words) + len(self.endings) + len(self.pairs)

    def rows(self, tokens: Tokens) -> Matrix:
        """Return the (n,V) float32 rows of texts."""
        return self._weigh(self._counts(tokens))

    def lists(self, words: Sequence[str]) -> Lists:
        """Return the columns of each word: its own, if it has one, then those of its beginnings and endings."""
        known, columns, offsets = self._known, list[int](), [0]
        for word in words:
            found = known.get(word)
            if found is None:
                found = [self._columns[term] for term in (word, *affixes(word)) if term in self._columns]
                if len(known) >= CACHED:
                    known.clear()
                known[word] = found
            columns += found
            offsets.append(len(columns))
        return Lists(np.array(columns, dtype=np.int64), np.array(offsets, dtype=np.int64))

    def entries(self, tokens: Tokens, lists: Lists) -> tuple[Integers, Integers, int]:
        """Return the columns of everything that texts hold, the token each begins at, and where the pairs begin."""
        columns, tokens_of = lists.take(tokens.ids)
        keys, places = self._pair_keys(tokens, lists)
        at = np.minimum(np.searchsorted(self.pairs, keys), max(len(self.pairs) - 1, 0))
        fits = self.pairs[at] == keys if len(self.pairs) else np.zeros(0, dtype=bool)
        first = len(self.words) + len(self.endings)
        return np.concatenate([columns, first + at[fits]]), np.concatenate([tokens_of, places[fits]]), len(columns)

    def pair(self, column: int) -> str:
        """Name the pair of words of a column."""
        left, right = divmod(int(self.pairs[column - len(self.words) - len(self.endings)]), len(self.words))
        return f"{self.words[left]} {self.words[right]}"

    def _pair_keys(self, tokens: Tokens, lists: Lists) -> tuple[Integers, Integers]:
        """Return the keys of all pairs of neighbours that are known words, and the place of the first of each."""
        own = np.full(len(tokens.words), -1, dtype=np.int64)
        filled = np.flatnonzero(np.diff(lists.offsets))
        first = lists.columns[lists.offsets[filled]]
        own[filled] = np.where(first < len(self.words), first, -1)
        known = own[tokens.ids]
        fits = (known[:-1] >= 0) & (known[1:] >= 0)
        ends = tokens.offsets[1:-1]
        fits[ends[(ends > 0) & (ends < len(known))] - 1] = False  # the next word is that of another text
        places = np.flatnonzero(fits)
        return known[places] * len(self.words) + known[places + 1], places

    def _counts(self, tokens: Tokens) -> Matrix:
        """Count every term in every text: (n,V) float32."""
        from scipy.sparse import vstack

        lists = self.lists(tokens.words)
        if len(tokens) <= CHUNK:
            return self._count(tokens, lists)
        begins = range(0, len(tokens), CHUNK)
        return vstack([self._count(tokens.part(b, min(b + CHUNK, len(tokens))), lists) for b in begins], format="csr")

    def _count(self, tokens: Tokens, lists: Lists) -> Matrix:
        from scipy.sparse import csr_matrix

        columns, places, _ = self.entries(tokens, lists)
        keys = np.sort(tokens.texts()[places] * self.terms + columns)
        starts = np.flatnonzero(np.concatenate([keys[:1] >= 0, keys[1:] != keys[:-1]]))
        counts = np.diff(starts, append=len(keys)).astype(np.float32)
        keys = keys[starts]
        offsets = np.searchsorted(keys, np.arange(len(tokens) + 1) * self.terms)
        indices = keys - np.repeat(np.arange(len(tokens)) * self.terms, np.diff(offsets))
        return csr_matrix((counts, indices.astype(np.int32), offsets), shape=(len(tokens), self.terms))

    def _weigh(self, rows: Matrix) -> Matrix:
        """Turn counts into weights, in place."""
        first, end = len(self.words), len(self.words) + len(self.endings)
        for begin in range(0, rows.shape[0], CHUNK):
            offsets = rows.indptr[begin : begin + CHUNK + 1]
            within = slice(offsets[0], offsets[-1])
            columns = rows.indices[within]
            values = (1 + np.log(rows.data[within])) * self.idf[columns]
            part = 2 * np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) + ((columns >= first) & (columns < end))
            lengths = np.sqrt(np.bincount(part, weights=values * values))
            rows.data[within] = values / lengths[part]
        return rows


def _texts_having(tokens: Tokens) -> Integers:
    """Count the texts that have each word."""
    having = np.zeros(len(tokens.words), dtype=np.int64)
    for begin in range(0, len(tokens), CHUNK):
        part = tokens.part(begin, min(begin + CHUNK, len(tokens)))
        keys = np.unique(part.texts() * len(tokens.words) + part.ids)
        having += np.bincount(keys % len(tokens.words), minlength=len(tokens.words))
    return having


def _most_frequent(times: Integers, least: int, most: int) -> Integers:
    """Return the places of the values of at least `least`, the largest ones if there are more than `most`."""
    order = np.argsort(-times, kind="stable")[:most]
    return np.sort(order[times[order] >= least])

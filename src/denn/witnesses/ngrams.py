"""TF-IDF of words, pairs of adjacent words, and word beginnings and endings, as sparse rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
Matrix = Any  # a scipy.sparse.csr_matrix, which has no types

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # written without spaces: each is a word
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\W{IDEOGRAPHS}]{{1,40}}")  # anything longer is data, not language
BEGINNINGS, ENDINGS = (3, 4, 5), (3, 4)  # lengths in characters; only longer words have them
CACHED = 300_000  # words whose columns are cached; if there are more, the cache is cleared before the next texts
CHUNK = 2048  # texts at a time


def affixes(word: str) -> list[str]:
    """Return the beginnings and endings of a word, marked by a hyphen, which no word contains."""
    begins = [f"{word[:length]}-" for length in BEGINNINGS if len(word) > length]
    return begins + [f"-{word[-length:]}" for length in ENDINGS if len(word) > length]


@dataclass(frozen=True)
class WordTokens:
    """The words of n texts: `words[ids[offsets[i] : offsets[i + 1]]]` are those of text i, in order."""

    words: list[str]  # each once
    ids: NDArray[np.int32]
    offsets: Integers  # (n + 1,)

    @classmethod
    def of(cls, texts: Iterable[str], report: Callable[[int], None] | None = None) -> Self:
        """Split texts into words in lower case."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__
        parts, ends = [np.zeros(0, dtype=np.int32)], [0]
        for text in texts:
            found = [numbers[word] for word in WORD.findall(text.lower())]
            parts.append(np.array(found, dtype=np.int32))
            ends.append(ends[-1] + len(found))
            if report and len(ends) % CHUNK == 0:
                report(len(ends) - 1)
        return cls(list(numbers), np.concatenate(parts), np.array(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, begin: int, end: int) -> WordTokens:
        """Return the words of some of the texts."""
        offsets = self.offsets[begin : end + 1]
        return WordTokens(self.words, self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def texts(self) -> Integers:
        """Return the text of each token."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


@dataclass(frozen=True)
class Columns:
    """The columns of D words: `columns[offsets[i] : offsets[i + 1]]` are all of word i; `own[i]` is its own, or −1."""

    columns: Integers
    offsets: Integers  # (D + 1,)
    own: Integers  # (D,)

    def of(self, words: NDArray[Any]) -> tuple[Integers, Integers]:
        """Return the columns of some words one after the other, and the position in `words` that each came from."""
        begins = self.offsets[words]
        sizes = self.offsets[words + 1] - begins
        ends = np.cumsum(sizes)
        places = np.repeat(np.arange(len(words)), sizes)
        return self.columns[np.arange(len(places)) + (begins - ends + sizes)[places]], places


class Ngrams:
    """The terms that are columns, and their weights: words, then their beginnings and endings, then pairs of words.

    A text is a vector of length √2, or 1 if all its terms are of one kind: z = (x, y), with x the beginnings and
    endings, y the rest, each of length 1 and proportional to

        (1 + ln c_t) · (1 + ln((1 + N) / (1 + N_t)))

    where c_t counts the term in the text, and N_t of the N training texts contain it.
    """

    def __init__(self, words: list[str], endings: list[str], pairs: Integers, idf: Floats) -> None:
        self.words = words
        self.endings = endings
        self.pairs = pairs  # (P,) left · W + right, ascending
        self.idf = idf  # (V,)
        self._columns = {term: column for column, term in enumerate([*words, *endings])}
        self._known: dict[str, list[int]] = {}

    @classmethod
    def of(
        cls,
        tokens: WordTokens,
        *,
        least: int,
        most_words: int,
        most_endings: int,
        most_pairs: int,
        watch: Callable[[], None] = lambda: None,
    ) -> Self:
        """Collect the most frequent terms that occur in at least `least` training texts.

        `watch` is called from time to time, and may raise an error to stop the work.
        """
        having = _texts_having(tokens, watch)
        words = [tokens.words[number] for number in _most_frequent(having, least, most_words)]
        endings: dict[str, int] = {}
        for word, times in zip(tokens.words, having.tolist(), strict=True):
            for ending in affixes(word):
                endings[ending] = endings.get(ending, 0) + times
        watch()
        spelt = list(endings)
        chosen = [spelt[number] for number in _most_frequent(np.array([*endings.values()], int), least, most_endings)]
        self = cls(words, chosen, np.zeros(0, np.int64), np.zeros(0, np.float32))
        if most_pairs:
            keys, times = np.unique(self._pair_keys(tokens, self.columns(tokens.words))[0], return_counts=True)
            self.pairs = keys[_most_frequent(times, least, most_pairs)]
        return self

    def learn(self, tokens: WordTokens, watch: Callable[[], None] = lambda: None) -> Matrix:
        """Compute the terms' weights from how many training texts contain them; return their (N,V) float32 rows."""
        counted = []
        for part in self._counts(tokens):
            watch()
            counted.append(part)
        having = sum(np.bincount(columns, minlength=self.terms) for _, columns, _ in counted)
        self.idf = (1 + np.log((1 + len(tokens)) / (1 + having))).astype(np.float32)
        return self._stacked([self._weigh(*counted.pop(0)) for _ in range(len(counted))])

    def has_word(self, word: str) -> bool:
        """Return whether a word is a term."""
        return self._columns.get(word, self.terms) < len(self.words)

    @property
    def terms(self) -> int:
        """The number V of columns."""
        return len(self.words) + len(self.endings) + len(self.pairs)

    def rows(self, tokens: WordTokens) -> Matrix:
        """Return the (n,V) float32 rows of texts."""
        return self._stacked([self._weigh(*part) for part in self._counts(tokens)])

    def columns(self, words: Sequence[str]) -> Columns:
        """Return the columns of words: their own, if they have one, and those of their beginnings and endings."""
        if len(self._known) > CACHED:
            self._known = {}  # other threads may still be reading the old one
        known, get = self._known, self._columns.get
        for word in words:
            if word not in known:
                known[word] = [c for c in map(get, (word, *affixes(word))) if c is not None]
        found = [known[word] for word in words]
        offsets = np.cumsum([0, *map(len, found)])
        own = [own[0] if own and own[0] < len(self.words) else -1 for own in found]
        return Columns(np.array([*chain.from_iterable(found)], np.int64), offsets, np.array(own, np.int64))

    def entries(self, tokens: WordTokens, columns: Columns) -> tuple[Integers, Integers, int]:
        """Return the columns of all terms in texts, the token each begins at, and where the pairs begin."""
        found, places = columns.of(tokens.ids)
        if not len(self.pairs):
            return found, places, len(found)
        keys, begins = self._pair_keys(tokens, columns)
        at = np.searchsorted(self.pairs[:-1], keys)
        fits = self.pairs[at] == keys
        pairs = len(self.words) + len(self.endings) + at[fits]
        return np.concatenate([found, pairs]), np.concatenate([places, begins[fits]]), len(found)

    def pair(self, column: int) -> str:
        """Return the two words of a pair's column."""
        left, right = divmod(int(self.pairs[column - len(self.words) - len(self.endings)]), len(self.words))
        return f"{self.words[left]} {self.words[right]}"

    def _pair_keys(self, tokens: WordTokens, columns: Columns) -> tuple[Integers, Integers]:
        """Return the keys of all adjacent pairs of known words, and the position of the first word of each."""
        own = columns.own[tokens.ids]
        fits = (own[:-1] >= 0) & (own[1:] >= 0)
        ends = tokens.offsets[1:-1]
        fits[ends[(ends > 0) & (ends < len(own))] - 1] = False  # the next word belongs to another text
        places = np.flatnonzero(fits)
        return own[places] * len(self.words) + own[places + 1], places

    def _counts(self, tokens: WordTokens) -> Iterator[tuple[Floats, Integers, Integers]]:
        """Count terms in chunks of texts: (entries,) counts, (entries,) columns and (texts + 1,) offsets."""
        columns = self.columns(tokens.words)
        for begin in range(0, len(tokens), CHUNK):
            part = tokens.part(begin, min(begin + CHUNK, len(tokens))) if len(tokens) > CHUNK else tokens
            found, places, _ = self.entries(part, columns)
            firsts = np.arange(len(part) + 1) * self.terms
            keys = np.sort(found + np.repeat(firsts[:-1], np.diff(part.offsets))[places])
            starts = np.flatnonzero(np.diff(keys, prepend=-1))
            counts = np.diff(starts, append=len(keys)).astype(np.float32)
            keys = keys[starts]
            offsets = np.searchsorted(keys, firsts)
            yield counts, (keys - np.repeat(firsts[:-1], np.diff(offsets))).astype(np.int32), offsets.astype(np.int32)

    def _weigh(self, counts: Floats, columns: Integers, offsets: Integers) -> Matrix:
        """Return the weighted rows of counts."""
        from scipy.sparse import csr_matrix

        first, end = len(self.words), len(self.words) + len(self.endings)
        values = (1 + np.log(counts)) * self.idf[columns]
        part = np.repeat(np.arange(0, 2 * len(offsets) - 2, 2), np.diff(offsets))
        part += (columns >= first) & (columns < end)
        values /= np.sqrt(np.bincount(part, weights=values * values))[part]
        shape = (len(offsets) - 1, self.terms)
        return csr_matrix((values, columns, offsets), shape=shape)

    def _stacked(self, rows: list[Matrix]) -> Matrix:
        from scipy.sparse import csr_matrix, vstack

        if len(rows) == 1:
            return rows[0]
        return vstack(rows, format="csr") if rows else csr_matrix((0, self.terms), dtype=np.float32)


def _texts_having(tokens: WordTokens, watch: Callable[[], None]) -> Integers:
    """Count the texts that contain each word."""
    having = np.zeros(len(tokens.words), dtype=np.int64)
    for begin in range(0, len(tokens), CHUNK):
        watch()
        part = tokens.part(begin, min(begin + CHUNK, len(tokens)))
        keys = np.unique(part.texts() * len(tokens.words) + part.ids)
        having += np.bincount(keys % len(tokens.words), minlength=len(tokens.words))
    return having


def _most_frequent(times: Integers, least: int, most: int) -> Integers:
    """Return the positions of values of at least `least`; only the `most` largest if there are more."""
    order = np.argsort(-times, kind="stable")[:most]
    return np.sort(order[times[order] >= least])

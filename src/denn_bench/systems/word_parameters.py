"""The parameters of networks that read words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from denn.training.bounds import Length
from denn.training.network import NeuralParameters
from denn.types import Corpus
from denn_bench.encoders.words import WordEncoder


@dataclass(frozen=True, kw_only=True)
class WordParameters(NeuralParameters):
    """Parameters of word vectors, which are trained with the rest."""

    max_length: Length = 320  # words
    vocabulary: PositiveInt = 30_000  # the most frequent words of the training documents
    word_width: PositiveInt = 300
    word_spread: PositiveFloat = 0.1  # standard deviation of randomly initialised vectors
    word_vectors: str | None = None  # GloVe or word2vec text file to initialise the word vectors

    def new_encoder(self, corpus: Corpus) -> WordEncoder:
        """Collect the words of the training documents."""
        return WordEncoder.of(
            (document.text for document in corpus.train), size=self.vocabulary, width=self.word_width,
            max_length=self.max_length, spread=self.word_spread, vectors=self.word_vectors, precision=self.precision,
        )  # fmt: skip

    def load_encoder(self, folder: Path) -> WordEncoder:
        """Read vocabulary and trained vectors."""
        return WordEncoder.load(folder, self.max_length, self.precision)

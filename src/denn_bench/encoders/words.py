"""Whole words with one vector each, for the systems before BERT."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from denn.encoders.layout import Layout
from denn.encoders.precision import Precision
from denn.encoders.tokens import CHARACTERS_PER_TOKEN, Tokens
from denn.errors import BundleError, EncoderError
from denn.untrusted import REMEDY, header, read_lines, read_tensors

INFERENCE_TOKENS = {
    "cpu": 16_384,
    "cuda": 65_535,
}  # per pass: recurrent layers go word by word, so process many texts at once
PAD, UNKNOWN = 0, 1
SPECIAL = ("<pad>", "<unknown>")
VOCABULARY, VECTORS = "vocabulary.txt", "embedding.safetensors"
WORD = re.compile(r"\w+|[^\w\s]")


class WordEncoder(nn.Module):
    """A vocabulary and a trainable vector for each of its words."""

    kernels = None  # ours are for transformers

    def __init__(self, words: Sequence[str], width: int, max_length: int, precision: Precision = "auto") -> None:
        super().__init__()
        self.words = tuple(words)
        self.index = {word: number for number, word in enumerate(self.words)}
        self.max_length = max_length
        self.precision = precision
        self.embedding = nn.Embedding(len(self.words), width, padding_idx=PAD)

    @classmethod
    def of(
        cls, texts: Iterable[str], *, size: int, width: int, max_length: int,
        spread: float = 0.1, vectors: str | None = None, precision: Precision = "auto",
    ) -> WordEncoder:  # fmt: skip
        """Use the `size` most frequent words of these texts, with vectors from a file if it has them, otherwise random.

        Random vectors have the standard deviation `spread`, or that of the file's vectors if there is a file.
        """
        counts = Counter(word for text in texts for word in split(text))
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[:size]
        self = cls((*SPECIAL, *frequent), width, max_length, precision)
        lines = read_vectors(Path(vectors), width) if vectors is not None else ()
        known = {self.index[word]: vector for word, vector in lines if word in self.index}
        if known:
            spread = float(torch.stack(list(known.values())).std(correction=0)) or spread
        nn.init.normal_(self.embedding.weight, std=spread)
        with torch.no_grad():
            self.embedding.weight[PAD] = 0
            for row, vector in known.items():
                self.embedding.weight[row] = vector
        return self

    @classmethod
    def load(cls, folder: Path, max_length: int, precision: Precision = "auto") -> WordEncoder:
        """Load what `save` wrote."""
        found = header(folder / VECTORS, BundleError).get("weight", ("", ()))[1]
        words = read_lines(folder / VOCABULARY, BundleError, found[0] if found else 0)
        if tuple(words[: len(SPECIAL)]) != SPECIAL:
            raise BundleError(f"{folder / VOCABULARY} does not start with {' and '.join(SPECIAL)}. {REMEDY}")
        weights = read_tensors(folder / VECTORS, {"weight": ("F32", (len(words), None))}, BundleError)
        with torch.device("meta"):
            self = cls(words, weights["weight"].shape[1], max_length, precision)
        self.embedding.load_state_dict(weights, assign=True)
        return self

    def save(self, folder: Path) -> None:
        """Save the vocabulary, one word per line, and the vectors."""
        folder.mkdir()
        (folder / VOCABULARY).write_text("\n".join(self.words), encoding="utf-8")
        save_file({"weight": self.embedding.weight.detach().cpu()}, folder / VECTORS)

    @property
    def width(self) -> int:
        """Return the width of a word vector."""
        return self.embedding.embedding_dim

    @property
    def device(self) -> torch.device:
        """Return the device of the vectors."""
        return self.embedding.weight.device

    @property
    def pass_tokens(self) -> int:
        """Return the number of tokens in an inference pass."""
        return INFERENCE_TOKENS[self.device.type]

    def autocast(self) -> AbstractContextManager[None]:
        """Multiply matrices in bfloat16 if requested, or by default on CUDA."""
        half = self.precision == "bfloat16" or (self.precision == "auto" and self.device.type == "cuda")
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Convert texts to word numbers on the CPU, truncated; an empty text becomes one unknown word."""
        flat: list[int] = []
        offsets, truncated = [0], 0
        for text in texts:
            words = split(text[: self.max_length * CHARACTERS_PER_TOKEN])
            truncated += len(words) > self.max_length
            flat += [self.index.get(word, UNKNOWN) for word in words[: self.max_length]] or [UNKNOWN]
            offsets.append(len(flat))
        return Tokens(torch.tensor(flat, dtype=torch.int32), torch.tensor(offsets), truncated)

    def forward(self, ids: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        """Return the (n,T,d) vectors of packed texts, zeros after each, and the (n,T) bool mask of real words."""
        real = torch.arange(layout.longest, device=ids.device) < layout.sizes[:, None]
        padded = ids.new_full(real.shape, PAD)
        padded[layout.document, layout.positions] = ids
        return self.embedding(padded), real


def split(text: str) -> list[str]:
    """Return the words of a text in lower case, including punctuation marks."""
    return WORD.findall(text.lower())


def name_vectors(encoder: WordEncoder, names: Sequence[str], vectors: str | None = None) -> Tensor:
    """Return the (L,d) mean vectors of the words in each name, without punctuation if there are words.

    A word that the encoder lacks is looked up in the file of vectors; an unknown word gets a random vector, the
    same in every name. A name without words gets its own random vector.
    """
    parts = [_words_of_name(name) for name in names]
    lacking = dict.fromkeys(word for words in parts for word in words if word not in encoder.index)
    found = {word: _random_vector(encoder) for word in lacking}
    if vectors is not None and found:
        found |= {word: vector for word, vector in read_vectors(Path(vectors), encoder.width) if word in found}
    weight = encoder.embedding.weight.detach().cpu()
    rows = [
        torch.stack([found[word] if word in found else weight[encoder.index[word]] for word in words]).mean(0)
        if words
        else _random_vector(encoder)
        for words in parts
    ]
    return torch.stack(rows)


def _words_of_name(name: str) -> list[str]:
    words = split(name.replace("_", " "))
    return [word for word in words if word[0].isalnum()] or words


def _random_vector(encoder: WordEncoder) -> Tensor:
    """Draw a random vector of about the length of word vectors."""
    return torch.randn(encoder.width) * float(encoder.embedding.weight.detach().std())


def read_vectors(path: Path, width: int) -> Iterable[tuple[str, Tensor]]:
    """Read a GloVe or word2vec text file: per line, a word and its numbers."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file):
                word, *values = line.rstrip().rsplit(" ", width)
                if number == 0 and len(values) == 1:  # word2vec's first line: number of words, width
                    continue
                if len(values) != width:
                    raise EncoderError(
                        f"{path}, line {number + 1}: got {len(values)} numbers for {word!r}, expected {width}. Set "
                        "word_width to the file's."
                    )
                yield word, torch.tensor([float(value) for value in values])
    except OSError as error:
        raise EncoderError(f"The word vectors {path} cannot be read: {error.strerror}. Choose another file.") from error
    except ValueError as error:
        raise EncoderError(f"{path} is not a text file of word vectors: {error}.") from error

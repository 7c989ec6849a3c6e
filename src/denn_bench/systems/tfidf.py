"""TF-IDF features for the classic systems, with their sparse matrices and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import PositiveInt
from safetensors.numpy import save_file
from torch import Tensor

from denn.errors import BundleError, DataError
from denn.untrusted import REMEDY, first_line, header, read_lines, read_tensors
from denn.witnesses.sparse_linear import available_cores

Matrix = Any  # a scipy.sparse.csr_matrix; scipy comes with an extra and has no types
WORDS, WEIGHTS = "vocabulary.txt", "idf.safetensors"


@dataclass(frozen=True, kw_only=True)
class TfidfParameters:
    """Parameters of the terms and threads."""

    min_df: PositiveInt = 2  # minimum number of training documents with a term, or all if there are fewer
    bigrams: bool = False  # also use pairs of adjacent words
    max_features: PositiveInt | None = None  # use only the most frequent terms
    jobs: PositiveInt | None = None  # threads; None: one per core
    seed: int = 0


class Tfidf:
    """Terms of lower-cased words with at least two characters; a text is x = z / ‖z‖ with

        z_t = (1 + ln c_t) · (1 + ln((1 + N) / (1 + N_t)))

    where c_t counts the term in the text and N_t of the N training documents have it. A text without known terms is 0.
    """

    def __init__(self, vectorizer: Any) -> None:
        self.vectorizer = vectorizer

    @classmethod
    def of(cls, texts: Sequence[str], parameters: TfidfParameters) -> tuple[Self, Matrix]:
        """Collect the terms of training documents, and also return their (N,V) float64 rows."""
        self = cls(_vectorizer(parameters, min_df=min(parameters.min_df, len(texts))))
        try:
            return self, self.vectorizer.fit_transform(texts)
        except ValueError as error:  # of an empty vocabulary
            raise DataError(
                f"Got {len(texts)} training documents without a word that {parameters.min_df} of them share, expected "
                "texts with common words. Use --set min_df=1, or texts with words of at least two characters."
            ) from error

    def __call__(self, texts: Sequence[str]) -> Matrix:
        """Return the (n,V) float64 rows of texts."""
        return self.vectorizer.transform(texts)

    def save(self, folder: Path) -> None:
        """Save the terms, one per line in column order, and their weights."""
        (folder / WORDS).write_text("\n".join(self.vectorizer.get_feature_names_out()), encoding="utf-8")
        save_file({"idf": self.vectorizer.idf_}, folder / WEIGHTS)

    @classmethod
    def load(cls, folder: Path, parameters: TfidfParameters) -> Self:
        """Load what `save` wrote."""
        found = header(folder / WEIGHTS, BundleError).get("idf", ("", ()))[1]
        terms = read_lines(folder / WORDS, BundleError, found[0] if found else 0)
        weights = read_tensors(folder / WEIGHTS, {"idf": ("F64", (len(terms),))}, BundleError)
        vectorizer = _vectorizer(parameters, vocabulary={term: column for column, term in enumerate(terms)})
        vectorizer.idf_ = weights["idf"].numpy()
        return cls(vectorizer)

    @property
    def terms(self) -> int:
        """Return the number V of terms."""
        return len(self.vectorizer.vocabulary)


def _vectorizer(parameters: TfidfParameters, **extra: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    ngrams = (1, 2 if parameters.bigrams else 1)
    return TfidfVectorizer(sublinear_tf=True, ngram_range=ngrams, max_features=parameters.max_features, **extra)


def in_threads(task: Callable[[int], Any], count: int, jobs: int | None) -> Iterator[Any]:
    """Yield task(0) … task(count − 1) in this order, computed in parallel.

    Threads are enough: liblinear and scipy release the GIL, and the rows are shared.
    """
    with ThreadPoolExecutor(jobs or available_cores()) as pool:
        yield from pool.map(task, range(count))


def to_arrays(matrix: Matrix, name: str) -> dict[str, Any]:
    """Return the arrays of a sparse matrix under names with a common prefix, for a file."""
    import numpy as np

    parts = {f"{name}.{part}": getattr(matrix, part) for part in ("data", "indices", "indptr")}
    return parts | {f"{name}.shape": np.asarray(matrix.shape, dtype=np.int64)}


def array_types(name: str, kind: str = "F32") -> dict[str, tuple[str, tuple[int | None, ...]]]:
    """Return the arrays that `from_arrays` expects in a file, with values of this type."""
    parts: dict[str, str] = {"data": kind, "indices": "I32", "indptr": "I32"}
    return {f"{name}.{part}": (type_, (None,)) for part, type_ in parts.items()} | {f"{name}.shape": ("I64", (2,))}


def from_arrays(arrays: Mapping[str, Tensor], name: str, rows: int | None, columns: int, file: Path) -> Matrix:
    """Return the sparse matrix saved by `to_arrays` after checking its shape; None allows any number of rows."""
    from scipy.sparse import csr_matrix

    data, indices, indptr, shape = (arrays[f"{name}.{part}"].numpy() for part in ("data", "indices", "indptr", "shape"))
    if shape[1] != columns or rows not in (None, shape[0]) or len(indptr) - 1 != shape[0]:
        raise BundleError(f"{file}: the size of the matrix {name!r} does not match the terms and labels. {REMEDY}")
    try:
        matrix = csr_matrix((data, indices, indptr), shape=tuple(shape.tolist()))
        matrix.check_format(full_check=True)  # a column outside the shape would read out of bounds
    except ValueError as error:
        raise BundleError(f"{file}: the matrix {name!r} is damaged ({first_line(error)}). {REMEDY}") from error
    return matrix

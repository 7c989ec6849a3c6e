"""denn as a scikit-learn estimator: texts and labels in, labels out in the same form as `fit` got them."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from denn import bundle
from denn.build import train
from denn.core.thresholds import decide
from denn.data.corpus import split_documents
from denn.data.rows import parse_text
from denn.datastore import Datastore
from denn.errors import ConfigError, DataError
from denn.model import Model, load
from denn.prediction_types import Scores
from denn.types import Corpus, Document, LabelSpace

Form = Literal["lists", "dense", "sparse"]  # form of the labels: lists of strings, or an indicator matrix

SHARED_MEMORY = "*-shm"  # SQLite's, created again when the database is opened


class InputError(DataError, ValueError):
    """Texts or labels are invalid; scikit-learn expects a ValueError."""


class DennClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Multi-label text classifier.

    `X` is a sequence of texts. `y` is an indicator matrix (n × labels, dense or sparse) or a sequence of lists of label
    names; `predict` returns the same form. `parameters` are further ones of `denn.train`. A share of the documents,
    `valid_share`, tunes the combination and the thresholds; the others are learnt from, and are the evidence.

    After `fit`, `model_` is the `denn.Model`, which predicts with evidence, and `classes_` are the labels in column
    order: numbers, the columns of a frame, or sorted names. The model's folder is a temporary one; `save` keeps it.
    """

    def __init__(
        self,
        encoder: str = "minilm",
        *,
        effort: str | None = None,
        time_budget: float | str | None = None,
        combination: str = "learnt",
        optimise: str = "micro_f1",
        device: str = "auto",
        threshold: float | None = None,
        min_labels: int = 0,
        valid_share: float = 0.1,
        random_state: int | np.random.RandomState | None = 0,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.encoder = encoder
        self.effort = effort
        self.time_budget = time_budget
        self.combination = combination
        self.optimise = optimise
        self.device = device
        self.threshold = threshold
        self.min_labels = min_labels
        self.valid_share = valid_share
        self.random_state = random_state
        self.parameters = parameters

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        tags.classifier_tags.multi_label, tags.classifier_tags.multi_class = True, False
        return tags

    def fit(self, X: Iterable[str], y: Any) -> Self:
        """Train a model on texts and their labels; ids of the evidence are row numbers."""
        texts = _texts(X)
        rows, self.classes_, self._form = _read_labels(y)
        if len(rows) != len(texts):
            raise InputError(f"Got labels for {len(rows):,} texts, expected {len(texts):,}. Give labels for each text.")
        names = tuple(map(str, self.classes_))
        documents = [
            Document(text, tuple(names[column] for column in columns), str(number))
            for number, (text, columns) in enumerate(zip(texts, rows, strict=True))
        ]
        seed = self._seed()
        parts = split_documents(documents, self.valid_share, seed) if self.valid_share else (documents, [])
        given: dict[str, Any] = {} if self.effort is None else {"effort": self.effort}
        folder = Path(tempfile.mkdtemp(prefix="denn-"))
        try:
            model = train(
                Corpus(*parts, labels=LabelSpace(names)),
                out=folder / "model",
                progress=False,  # like other scikit-learn estimators; a search fits many
                allow_poor=True,  # like other scikit-learn estimators; scoring will show it
                encoder=self.encoder,
                time_budget=self.time_budget,
                combination=self.combination,
                optimise=self.optimise,
                device=self.device,
                seed=seed,
                **given,
                **(self.parameters or {}),
            )
        except BaseException:
            _discard(None, folder)
            raise
        self.model_ = _with_folder(model, folder)
        return self

    def predict(self, X: Iterable[str]) -> Any:
        """Predict labels in the form that `fit` got: lists of names, or an indicator matrix."""
        scores = self._scores(X)
        thresholds = self.model_.decision_thresholds(scores, self.threshold)
        chosen = decide(scores.final, thresholds, self.min_labels)[:, : len(self.classes_)].numpy()
        if self._form == "lists":
            return [self.classes_[row].tolist() for row in chosen]
        return sparse.csr_array(chosen, dtype=int) if self._form == "sparse" else chosen.astype(int)

    def predict_proba(self, X: Iterable[str]) -> NDArray[np.float64]:
        """Return the (n,L) scores of the labels, in the order of `classes_`."""
        return self._scores(X).final[:, : len(self.classes_)].double().numpy()

    def score(self, X: Iterable[str], y: Any, sample_weight: Any = None) -> float:
        """Return the share of texts whose labels are all correct, as scikit-learn's classifiers do."""
        check_is_fitted(self)
        if self._form != "lists":
            return float(super().score(X, y, sample_weight))
        right = [set(own) == set(other) for own, other in zip(self.predict(X), y, strict=True)]
        return float(np.average(right, weights=sample_weight))

    def save(self, path: str | Path) -> None:
        """Copy the model to a new folder, for `denn.load`, the command line and the service."""
        check_is_fitted(self)
        target = Path(path).resolve()
        if target.exists():
            raise ConfigError(f"{target} already exists. Give a new folder.")
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.part")
        shutil.rmtree(beside, ignore_errors=True)  # of a save that was interrupted
        shutil.copytree(self._folder, beside, ignore=shutil.ignore_patterns(SHARED_MEMORY))
        bundle.replace(beside, target)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle, with the files of the model's folder, so that it loads elsewhere."""
        state = dict(super().__getstate__())
        if "model_" in state:
            files = (path for path in self._folder.rglob("*") if path.is_file() and not path.match(SHARED_MEMORY))
            state["model_"] = {path.relative_to(self._folder).as_posix(): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Write the files of the model to a temporary folder and load it."""
        files = state.pop("model_", None)
        super().__setstate__(state)
        if files is None:
            return
        folder = Path(tempfile.mkdtemp(prefix="denn-"))
        for name, content in files.items():
            path = folder / "model" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.model_ = _with_folder(load(folder / "model"), folder)

    @property
    def _folder(self) -> Path:
        folder = self.model_.folder
        assert folder is not None
        return folder

    def _scores(self, X: Iterable[str]) -> Scores:
        check_is_fitted(self)
        return self.model_.scores(_texts(X))

    def _seed(self) -> int:
        """Return the seed: the given number, or one drawn from the given generator."""
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))


def _with_folder(model: Model, folder: Path) -> Model:
    """Delete a temporary folder with its model, at the latest when the program ends."""
    weakref.finalize(model, _discard, model.method.store, folder)
    return model


def _discard(store: Datastore | None, folder: Path) -> None:
    if store is not None:
        store.close()
    shutil.rmtree(folder, ignore_errors=True)


def _texts(X: Iterable[str]) -> list[str]:
    """Check texts; the error gives the number of the first one that is not a text."""
    if isinstance(X, str) or not isinstance(X, Iterable):
        raise InputError(f"Got {type(X).__name__}, expected a list of texts.")
    if hasattr(X, "columns"):
        raise InputError("Got a table, expected a list of texts. Pass its column of texts, such as X['text'].")
    texts = list(X)
    if not texts:
        raise InputError("Got no texts, expected at least one.")
    for number, text in enumerate(texts):
        try:
            parse_text(text)
        except DataError as error:
            raise InputError(f"Text {number}: {error}.") from None
    return texts


def _read_labels(y: Any) -> tuple[Sequence[Sequence[int]], NDArray[Any], Form]:
    """Return the label columns of each text, the labels in column order, and their original form."""
    if y is None:
        raise InputError("DennClassifier requires y to be passed, but the target y is None.")
    is_sparse, is_frame = sparse.issparse(y), hasattr(y, "columns")
    is_matrix = is_sparse or is_frame or getattr(y, "ndim", 1) > 1
    if isinstance(y, Iterable) and not is_matrix and _is_lists(rows := list(y)):
        names = sorted({label for row in rows for label in row})
        column_of = {name: column for column, name in enumerate(names)}
        return [[column_of[label] for label in row] for row in rows], np.array(names, dtype=object), "lists"
    try:
        indicators = y if is_sparse else np.asarray(y)
    except ValueError:  # rows of different lengths
        raise InputError(
            "Unknown label type: got rows of different lengths that are not lists of strings, expected an indicator "
            "matrix of 0 and 1 (n × labels) or a list of labels for each text, such as [['a', 'b'], []]."
        ) from None
    columns, width = _columns_of(indicators)
    return columns, np.asarray(y.columns) if is_frame else np.arange(width), "sparse" if is_sparse else "dense"


def _is_lists(rows: Sequence[Any]) -> bool:
    """Return whether labels are lists of names rather than rows of an indicator matrix."""

    def is_list(row: object) -> bool:
        is_array = isinstance(row, np.ndarray) and row.dtype.kind in "OU"  # pandas reads lists from Parquet as arrays
        return is_array or isinstance(row, list | tuple | set | frozenset)

    return all(is_list(row) and all(isinstance(label, str) for label in row) for row in rows)


def _columns_of(indicators: Any) -> tuple[list[list[int]], int]:
    """Return the columns that are 1 in each row, and the number of columns; anything but 0 and 1 is an error."""
    if indicators.ndim == 2 and indicators.dtype.kind in "biuf":
        matrix = sparse.csr_array(indicators, copy=True)
        matrix.eliminate_zeros()
        if (matrix.data == 1).all():
            return [row.tolist() for row in np.split(matrix.indices, matrix.indptr[1:-1])], matrix.shape[1]
    raise InputError(
        f"Unknown label type: got an array of shape {indicators.shape} and type {indicators.dtype}, expected an "
        "indicator matrix of 0 and 1 (n × labels) or a list of labels for each text, such as [['a', 'b'], []]."
    )

"""Files with the witnesses' scores on one split, so that combinations can be compared without corpus or model."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from denn.errors import DataError
from denn.prediction_types import Context, Parts
from denn.untrusted import first_line

FORMAT = 1
HIGHEST = 300  # labels of a text whose scores are kept; all others get the lowest of these
PARTS = ("valid", "test")
LOGIT, LABEL = (
    ".logit",
    ".label",
)  # suffixes of a witness's name: (n,m) logits, highest first, and the columns of the labels
UNKNOWN = ".unknown"  # rows and columns of unknown scores, if there are any
REMEDY = "Create it again with `denn bench run --scores`."


@dataclass(frozen=True, eq=False)
class WitnessScores:
    """The witnesses' scores of the texts of one split, and their gold labels."""

    corpus: str
    seed: int
    parts: Parts
    gold: Tensor  # (n,L) bool
    context: Context

    def save(self, path: Path) -> None:
        """Write one compressed file without pickle: the highest scores as float16 logits, the gold labels as pairs."""
        arrays: dict[str, Any] = {
            "format": FORMAT,
            "corpus": self.corpus,
            "seed": self.seed,
            "gamma": self.context.gamma,
            "temperature": self.context.temperature,
            "label_counts": self.context.label_counts.int().numpy(),
            "gold": self.gold.nonzero().int().numpy(),
        }
        if self.context.similarity is not None:
            arrays["similarity"] = self.context.similarity.half().numpy()
        for name, given in self.parts.items():
            unknown = given.isnan()
            if bool(unknown.any()):
                arrays[name + UNKNOWN] = unknown.nonzero().int().numpy()
            scores = given.nan_to_num(0.0)
            above_zero = int((scores > 0).sum(1).max())
            best = scores.topk(min(HIGHEST, above_zero + 1, scores.shape[1]))  # + 1: the others get 0, which is −∞
            arrays[name + LOGIT] = torch.logit(best.values).half().numpy()
            arrays[name + LABEL] = best.indices.int().numpy()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by `save`."""
        try:
            return cls._of(_arrays(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}. {REMEDY}") from error
        except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{path} is not a file of witness scores: {first_line(error)}. {REMEDY}") from error

    @classmethod
    def _of(cls, arrays: dict[str, Any]) -> Self:
        """Check the arrays and return their content; raise ValueError if they do not match."""
        if (found := _array(arrays, "format", "i", ()).item()) != FORMAT:
            raise ValueError(f"its format is {found}, expected {FORMAT}")
        counts = _array(arrays, "label_counts", "i", (None,))
        names = [key.removesuffix(LOGIT) for key in arrays if key.endswith(LOGIT)]
        if not names:
            raise ValueError("it has no witness")
        texts = len(_array(arrays, names[0] + LOGIT, "f", (None, None)))
        parts = {name: _scores(arrays, name, texts, len(counts)) for name in names}
        pairs = _within(_array(arrays, "gold", "i", (None, 2)), "gold", (texts, len(counts)))
        gold = torch.zeros(texts, len(counts), dtype=torch.bool)
        gold[pairs[:, 0], pairs[:, 1]] = True
        similarity = None
        if "similarity" in arrays:
            similarity = torch.from_numpy(_array(arrays, "similarity", "f", (texts, None)).astype(np.float32))
        gamma, temperature = (float(_array(arrays, key, "f", ())) for key in ("gamma", "temperature"))
        context = Context(torch.from_numpy(counts), similarity, gamma, temperature)
        corpus, seed = (_array(arrays, key, kind, ()).item() for key, kind in (("corpus", "U"), ("seed", "i")))
        return cls(corpus, seed, parts, gold, context)

    def only(self, witnesses: Iterable[str]) -> Self:
        """Return the scores of some of the witnesses."""
        return replace(self, parts={name: self.parts[name] for name in witnesses})

    def with_witnesses(self, other: WitnessScores) -> Self:
        """Add the witnesses of another file with the same texts."""
        return replace(self, parts={**self.parts, **other.parts})

    def has_same_texts(self, other: WitnessScores) -> bool:
        """Check whether two files have the same labels and, judging by their gold labels, the same texts."""
        return torch.equal(self.gold, other.gold) and self.has_same_labels(other)

    def has_same_labels(self, other: WitnessScores) -> bool:
        """Check whether the labels of two files have the same numbers of training documents."""
        return torch.equal(self.context.label_counts, other.context.label_counts)


def _arrays(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        archive = np.load(file)  # rejects pickles
        if not isinstance(archive, NpzFile):
            raise ValueError("it is not an npz archive")
        return {key: archive[key] for key in archive.files}


def _array(arrays: dict[str, Any], key: str, kind: str, shape: tuple[int | None, ...]) -> Any:
    """Return an array after checking its kind (i, f or U) and shape; None allows any size."""
    if key not in arrays:
        raise ValueError(f"it has no {key!r}")
    found = arrays[key]
    fits = len(found.shape) == len(shape) and all(
        wanted in (None, size) for size, wanted in zip(found.shape, shape, strict=True)
    )
    if found.dtype.kind != kind or not fits:
        expected = "×".join("any" if size is None else str(size) for size in shape) or "one value"
        raise ValueError(f"{key!r} is {found.dtype} of shape {found.shape}, expected {kind!r} of {expected}")
    if kind == "f" and np.isnan(found).any():
        raise ValueError(f"{key!r} contains values that are not numbers")
    return found


def _within(places: Any, key: str, sizes: tuple[int, ...]) -> Tensor:
    """Return indices as a tensor after checking that they are within these sizes."""
    if (places < 0).any() or (places >= np.array(sizes)).any():
        raise ValueError(f"{key!r} has an index out of range")
    return torch.from_numpy(places.astype(np.int64))


def _scores(arrays: dict[str, Any], name: str, texts: int, labels: int) -> Tensor:
    """Return a witness's (n,L) scores; labels that were not saved get the lowest saved score."""
    logits = torch.from_numpy(_array(arrays, name + LOGIT, "f", (texts, None)).astype(np.float32))
    if not logits.shape[1]:
        raise ValueError(f"{name + LOGIT!r} is empty")
    columns = _within(_array(arrays, name + LABEL, "i", tuple(logits.shape)), name + LABEL, (labels,))
    scores = torch.sigmoid(logits[:, -1:].expand(-1, labels).scatter(1, columns, logits))
    if name + UNKNOWN in arrays:
        unknown = _within(_array(arrays, name + UNKNOWN, "i", (None, 2)), name + UNKNOWN, (texts, labels))
        scores[unknown[:, 0], unknown[:, 1]] = torch.nan
    return scores

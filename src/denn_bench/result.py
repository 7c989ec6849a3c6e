"""The result of one run, read from its JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from denn.config import make_recipe
from denn.errors import ConfigError, DataError
from denn.registry import METHODS, lookup
from denn.strict_json import loads

SCHEMA = 1
TIMES = (
    "seconds", "training_seconds", "validation_seconds", "tokens_per_second", "epoch_seconds", "matrix_rate", "mfu",
    "inference_ms_per_text", "inference_ms_per_text_without_neighbours", "prediction_ms_per_text",
    "prediction_ms_per_text_with_evidence",
)  # fmt: skip
BUILT_IN = {
    "combination": "confidence",
    "layer_decay": 1.0,
    "witnesses": ["classifier", "neighbours"],
    "epsilon": 1e-8,
    "word_dropout": None,
    "word_spread": 0.1,
    "head_dropout": None,
    "label_dropout": 0.0,
    "label_width": None,
}  # parameters that older results lack and whose default has changed since
PREDICTION = tuple(name for name in TIMES if name.endswith(("per_text", "neighbours", "evidence")))
BRIEF = ("epoch_seconds", *PREDICTION)  # from a short separate run


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a recipe on a corpus with a seed; docs/benchmark.md explains the keys of `data`."""

    name: str
    corpus: str
    recipe: str
    seed: int
    data: dict[str, Any]

    @property
    def answer(self) -> str:
        """Return the part that is the system's own answer: the best sequence of labels if it writes one."""
        return "sequence" if "sequence" in self.data["test"]["systems"] else "final"

    def metric(self, part: str, threshold: str, name: str) -> float:
        """Return a metric on the test split, for example ("final", "tuned", "micro_f1")."""
        found: Any = self.data["test"]["systems"]
        for kind, key in (("part", part), ("threshold", threshold), ("metric", name)):
            if key not in found:
                raise DataError(f"The result {self.name} has no {kind} {key!r}. Available: {', '.join(found)}.")
            found = found[key]
        return float(found)

    def f1(self, part: str, threshold: str) -> tuple[float, float]:
        """Return micro- and macro-F1 on the test split."""
        return self.metric(part, threshold, "micro_f1"), self.metric(part, threshold, "macro_f1")

    def decisions(self, part: str) -> Tensor:
        """Return the (n,L) bool decisions of a part on the test split, at its tuned threshold."""
        columns = self.data["decisions"]
        if part not in columns:
            known = ", ".join(name for name in columns if name != "gold")
            raise DataError(f"The result {self.name} has no part {part!r}. Available: {known}.")
        return _matrix(columns[part], len(self.data["test"]["per_label"]["label"]))

    def gold(self) -> Tensor:
        """Return the (n,L) bool labels of the test split."""
        return self.decisions("gold")


def completed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of a result, with parameters added since set to the value that was fixed then.

    A recipe that the current method rejects is returned unchanged.
    """
    try:
        known = {field.name for field in fields(lookup(METHODS, recipe["method"], "method").Parameters)}
        parameters = {name: value for name, value in BUILT_IN.items() if name in known} | recipe["parameters"]
        if "epsilon" not in recipe["parameters"] and parameters.get("schedule") == "constant":
            parameters["warmup"] = 0.0  # recorded, but a constant schedule ignored it then
        return {**recipe, **json.loads(json.dumps(make_recipe(recipe["method"], parameters).as_dict()))}
    except ConfigError:
        return dict(recipe)


def read(path: Path) -> Result | None:
    """Read a result; None if the file is some other JSON."""
    try:
        data = loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not UTF-8, or not JSON
        raise DataError(f"{path} is not a JSON file. Move it away, or run its benchmark again.") from error
    if not isinstance(data, dict) or "schema" not in data:
        return None
    if data["schema"] != SCHEMA:
        raise DataError(
            f"{path} has schema {data['schema']!r}, but this version of denn reads {SCHEMA}. Run its benchmark again."
        )
    return Result(data["name"], data["corpus"]["name"], data["recipe"]["name"], data["seed"], data)


def read_all(folder: Path) -> list[Result]:
    """Read every result in a folder, by name; skip JSON files without a schema, which are older."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. Run `denn bench run` first, or set the folder with --results.")
    return [_timed(result, folder) for path in sorted(folder.glob("*.json")) if (result := read(path)) is not None]


def _timed(result: Result, folder: Path) -> Result:
    """Fill in the times of a short separate run if a run has none of its own, because it shared a GPU.

    Sharing only slows training down, so an epoch that was faster anyway counts. A short run with all training
    documents predicts as the run itself would, so its prediction times always count. `timed_briefly` marks
    prediction times that were measured with fewer documents.
    """
    costs = result.data.get("cost", {})
    alone = folder / "costs" / f"{result.name}.json"
    found = json.loads(alone.read_text(encoding="utf-8"))["cost"] if alone.is_file() else {}
    times = dict.fromkeys(TIMES) if costs.get("shared") else {}
    kept = found.get("store_documents")
    whole = kept is not None and kept == result.data["corpus"].get("train")
    missing = {name for name in BRIEF if (costs | times).get(name) is None or (whole and name in PREDICTION)}
    filled = {name: found[name] for name in missing if found.get(name) is not None}
    if "epoch_seconds" in filled and costs.get("epoch_seconds") is not None:
        filled["epoch_seconds"] = min(filled["epoch_seconds"], costs["epoch_seconds"])
    if filled and not whole:
        filled["timed_briefly"] = True
    return replace(result, data=result.data | {"cost": costs | times | filled})


def select(results: Iterable[Result], corpus: str | None = None, recipe: str | None = None) -> list[Result]:
    """Return the results of a corpus, of a recipe, or of both, by seed."""
    chosen = (r for r in results if corpus in (None, r.corpus) and recipe in (None, r.recipe))
    return sorted(chosen, key=lambda result: result.seed)


def _matrix(columns: list[list[int]], width: int) -> Tensor:
    """Convert the columns of each row into an (n,width) bool matrix."""
    rows = torch.zeros(len(columns), width, dtype=torch.bool)
    sizes = torch.tensor([len(members) for members in columns])
    members = torch.tensor([column for members in columns for column in members], dtype=torch.int64)
    rows[torch.arange(len(columns)).repeat_interleave(sizes), members] = True
    return rows

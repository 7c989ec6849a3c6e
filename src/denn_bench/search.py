"""Search for settings of a recipe on validation: train each combination and write one line each; no test scores."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from denn import bundle
from denn.evaluation import evaluate
from denn.protocols import Progress
from denn.strict_json import dumps
from denn.types import Corpus
from denn_bench.machine import commit, machine
from denn_bench.measure import cost, rounded, score
from denn_bench.run import Run, clear, trained_model
from denn_bench.summary import markdown

Choices = Mapping[str, Sequence[Any]]


def combinations(choices: Choices) -> list[dict[str, Any]]:
    """Return every combination of the values of some parameters."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def known(file: Path, run: Run, settings: Mapping[str, Any], checksum: str) -> dict[str, Any] | None:
    """Return the line of a combination that was tried before, on the same documents and with the same recipe."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    wanted = (run.corpus, run.settings(), run.seed, json.loads(json.dumps(settings)), checksum)
    for row in map(json.loads, lines):
        if (row["corpus"], row["recipe"], row["seed"], row["settings"], row["digest"]) == wanted:
            return dict(row)
    return None


def attempt(
    run: Run, settings: Mapping[str, Any], corpus: Corpus, checksum: str, file: Path, work: Path, progress: Progress
) -> dict[str, Any]:
    """Train one combination, score it on validation at its tuned threshold, and append the line."""
    begun = time.monotonic()
    work.mkdir(parents=True, exist_ok=True)
    counts = Counter(label for document in corpus.train for label in document.labels)
    with trained_model(run, corpus, work / run.name, progress) as model:
        scores = score(model, corpus.valid, progress).scores
        found = evaluate(scores, corpus.valid, model.card.thresholds, counts).systems["final"]["tuned"]
        spent = cost(model, corpus, time.monotonic() - begun, 0, None, {})
    measured = {
        "valid_micro_f1": found["micro_f1"], "valid_macro_f1": found["macro_f1"], "seconds": spent["seconds"],
        "epochs": spent["epochs"], "stopped_early": spent["stopped_early"],
    }  # fmt: skip
    row = {
        "corpus": run.corpus, "recipe": run.settings(), "seed": run.seed, "settings": dict(settings),
        **rounded(measured), "digest": checksum, "commit": commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"), "versions": bundle.versions(), "machine": machine(),
    }  # fmt: skip
    with file.open("a", encoding="utf-8") as out:
        out.write(dumps(row, f"The search {file}", ensure_ascii=False) + "\n")
    clear(run, work)
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the tried combinations in Markdown, best on validation first."""
    ranked = sorted(rows, key=lambda row: -row["valid_micro_f1"])
    cells = [
        [", ".join(f"{name} = {value}" for name, value in row["settings"].items())]
        + [f"{100 * row[key]:.2f}" for key in ("valid_micro_f1", "valid_macro_f1")]
        for row in ranked
    ]
    return markdown(["settings", "micro-F1 on validation", "macro-F1 on validation"], cells)

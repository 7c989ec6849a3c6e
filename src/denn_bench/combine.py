"""Compare combinations of witnesses on saved scores, without training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from denn import bundle
from denn.combiners.average import Average
from denn.combiners.confidence import Confidence
from denn.combiners.learnt import Learnt
from denn.core.calibration import calibration_error, log_loss
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import FOR_MACRO_F1, HALFWAY, decide, tune_global, tune_per_label
from denn.errors import DataError
from denn.protocols import Combiner
from denn_bench.machine import commit, machine
from denn_bench.witness_scores import PARTS, WitnessScores

WORDS = "words"  # the witness that a folder words-CORPUS-SEED adds to the runs of a corpus
PAPER = ("classifier", "neighbours")
METRICS = ("micro_f1", "macro_f1")
PER_LABEL = {"halfway per label": HALFWAY, "three quarters": FOR_MACRO_F1, "each label's own": 1.0}  # thresholds
SYSTEMS = (*PAPER, WORDS, "average", "confidence", "learnt")  # columns of the table; other witnesses follow

Run = Mapping[str, WitnessScores]  # by part


def compare_all(folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Compare combinations in every run of a folder, of all its witnesses and of the paper's two if it has more."""
    paths = [path for path in sorted(folder.glob("*")) if path.is_dir() and not path.name.startswith(f"{WORDS}-")]
    if not paths:
        raise DataError(
            f"{folder} has no witness scores, expected a folder for each run. Save them with `denn bench run "
            f"CORPUS RECIPE --scores {folder}`."
        )
    found = []
    for path in paths:
        run = read_run(path)
        witnesses = tuple(run["valid"].parts)
        sets = (PAPER, witnesses) if set(PAPER) < set(witnesses) else (witnesses,)
        for some in sets:
            about = {"run": path.name.removesuffix(f"-{run['valid'].seed}"), "seed": run["valid"].seed}
            compared = compare(*(run[part].only(some) for part in PARTS))
            found.append({**about, "witnesses": list(some), **compared})
            say(f"{path.name}, {len(some)} witnesses: {compared['learnt']['why']}")
    facts = {"commit": commit(), "created": datetime.now(UTC).isoformat(timespec="seconds")}
    return {"runs": found, **facts, "versions": bundle.versions(), "machine": machine()}


def read_run(path: Path) -> Run:
    """Read both parts of a run; if it has no words, add those of words-CORPUS-SEED, or of seed 0."""
    run = _read_parts(path)
    corpus, seed = run["valid"].corpus, run["valid"].seed
    candidates = (path.parent / f"{WORDS}-{corpus}-{number}" for number in (seed, 0))
    added = next((other for other in candidates if other.is_dir()), None)
    if added is None or WORDS in run["valid"].parts:
        return run
    others = _read_parts(added)
    for part in PARTS:
        if not run[part].has_same_texts(others[part]):
            raise DataError(
                f"{added / f'{part}.npz'} and {path / f'{part}.npz'} have different documents, so the first cannot add "
                "words to the second. Create both again from one corpus, or move one of them away."
            )
    return {part: run[part].with_witnesses(others[part]) for part in PARTS}


def _read_parts(path: Path) -> Run:
    run = {part: WitnessScores.load(path / f"{part}.npz") for part in PARTS}
    valid, test = (run[part] for part in PARTS)
    if valid.parts.keys() != test.parts.keys() or not valid.has_same_labels(test):
        raise DataError(
            f"valid.npz and test.npz in {path} belong to different runs: their witnesses or labels differ. Create both "
            "again with `denn bench run --scores`."
        )
    return run


def compare(valid: WitnessScores, test: WitnessScores) -> dict[str, Any]:
    """Fit on validation; return every system's scores on the test split and the choice of the learnt one."""
    systems = {name: (valid.parts[name], test.parts[name]) for name in valid.parts}
    learnt: dict[str, Any] = {}
    combiners: dict[str, Combiner] = {"average": Average(), "confidence": Confidence(), "learnt": Learnt()}
    for name, combiner in combiners.items():
        if not set(combiner.hears) <= valid.parts.keys():
            continue
        begun = time.perf_counter()
        learnt = dict(combiner.fit(valid.parts, valid.gold, valid.context))
        learnt["seconds"] = round(time.perf_counter() - begun, 2)
        assert combiner.held_out is not None
        systems[name] = (combiner.held_out, combiner.combine(test.parts, test.context))
    found = {}
    for name, (on_valid, on_test) in systems.items():
        threshold = tune_global(on_valid, valid.gold)
        found[name] = {
            "threshold": threshold,
            **_f1(on_test, threshold, test.gold),
            "calibration_error": round(calibration_error(on_test, test.gold), 5),
            "log_loss": round(log_loss(on_test, test.gold), 5),
            "per_label": {
                kind: _f1(on_test, tune_per_label(on_valid, valid.gold, threshold, share), test.gold)
                for kind, share in PER_LABEL.items()
            },
        }
    return {"systems": found, "learnt": learnt}


def _f1(scores: Tensor, threshold: float | Tensor, gold: Tensor) -> dict[str, float]:
    values = multilabel_scores(decide(scores, threshold), gold)
    return {name: round(values[name], 5) for name in METRICS}


def table(runs: Sequence[Mapping[str, Any]], by_seed: bool = False) -> str:
    """Render test micro-F1 / macro-F1 of every system in Markdown: means over seeds, or each seed."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in runs:
        key = (one["run"], *one["witnesses"], *([one["seed"]] if by_seed else []))
        groups.setdefault(key, []).append(one)
    others = dict.fromkeys(name for one in runs for name in one["witnesses"] if name not in SYSTEMS)
    names = (*SYSTEMS, *others)
    complete = all("per_label" in one["systems"]["learnt"] for one in runs)  # not in files before 19 November 2026
    kinds = PER_LABEL if complete else ()
    head = ["scores", "seed" if by_seed else "seeds", *names, *(f"learnt, {kind}" for kind in kinds)]
    head.append("calibration error, average → learnt")
    lines = ["| " + " | ".join(head) + " |", "|" + len(head) * "---|"]
    for members in groups.values():
        cells = [_mean_f1([one["systems"].get(name) for one in members]) for name in names]
        cells += [_mean_f1([one["systems"]["learnt"]["per_label"][kind] for one in members]) for kind in kinds]
        errors = [
            f"{100 * statistics.mean(one['systems'][name]['calibration_error'] for one in members):.1f}"
            for name in ("average", "learnt")
        ]
        count = members[0]["seed"] if by_seed else len(members)
        lines.append("| " + " | ".join([members[0]["run"], str(count), *cells, " → ".join(errors)]) + " |")
    return "\n".join(lines) + "\n"


def _mean_f1(found: Sequence[Mapping[str, float] | None]) -> str:
    """Render the means of micro-F1 and macro-F1, or nothing if a run lacks the system."""
    known = [one for one in found if one is not None]
    if len(known) < len(found):
        return ""
    return " / ".join(f"{100 * statistics.mean(one[metric] for one in known):.2f}" for metric in METRICS)

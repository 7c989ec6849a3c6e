"""Runs: (corpus × recipe × seed) → train, evaluate, write one JSON file; each run can be resumed."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from denn import bundle
from denn.build import train
from denn.config import Recipe, make_recipe, read_recipe
from denn.errors import ConfigError, DataError
from denn.model import Model, load
from denn.prediction_types import Context
from denn.protocols import Progress
from denn.registry import CORPORA, did_you_mean, lookup
from denn.strict_json import dumps
from denn.types import Corpus, Stage
from denn_bench.machine import commit, machine, matrix_rate, peak_memory, reset_peak_memory
from denn_bench.measure import Scored, cost, measure, rounded, score, speed, sweeps_of
from denn_bench.result import SCHEMA, Result, completed, read
from denn_bench.turns import Turns
from denn_bench.witness_scores import WitnessScores


@dataclass(frozen=True)
class Run:
    """One recipe on one corpus with one seed."""

    corpus: str
    recipe: str
    seed: int
    method: Recipe

    @property
    def name(self) -> str:
        """Return the base name of its files."""
        return f"{self.corpus}-{self.recipe}-{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return the recipe as saved in a result."""
        return {"name": self.recipe, **json.loads(json.dumps(self.method.as_dict()))}


def plan(
    folder: Path,
    corpora: Sequence[str],
    recipes: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, Any] | None = None,
    recipes_of: str | None = None,
) -> list[Run]:
    """Read `<folder>/<corpus>/<recipe>.toml` and list the runs: corpus by corpus, every recipe before the next seed.

    `recipes_of` names another corpus whose recipes to use.
    """
    runs = []
    for corpus in corpora:
        lookup(CORPORA, corpus, "corpus")
        written = {name: _read_recipe(folder, recipes_of or corpus, name) for name in recipes}
        for seed in seeds:
            for name, (method, parameters) in written.items():
                chosen = make_recipe(method, {**parameters, **(settings or {}), "seed": seed})
                runs.append(Run(corpus, name, seed, chosen))
    return runs


def _read_recipe(folder: Path, corpus: str, name: str) -> tuple[str, dict[str, Any]]:
    known = sorted(path.stem for path in (folder / corpus).glob("*.toml"))
    if not known:
        raise ConfigError(f"{folder / corpus} has no recipes, expected {name}.toml. Set the folder with --recipes DIR.")
    if name not in known:
        raise ConfigError(
            f"There is no recipe {name!r} for {corpus}.{did_you_mean(name, known)} Available: {', '.join(known)}."
        )
    method, parameters = read_recipe(folder / corpus / f"{name}.toml")
    return method or "denn", parameters


def on_share(run: Run, share: float) -> Run:
    """Return a run on a share of the training documents, with the share in its name."""
    return run if share == 1 else replace(run, recipe=f"{run.recipe}-{100 * share:g}")


def take_share(corpus: Corpus, share: float) -> Corpus:
    """Return a corpus with a random share of the training documents; smaller shares are subsets of larger ones."""
    if share == 1:
        return corpus
    mixed = random.Random(0).sample(list(corpus.train), len(corpus.train))
    return replace(corpus, train=mixed[: max(1, round(share * len(mixed)))])


def digest(corpus: Corpus) -> str:
    """Return the sha256 of all documents, split by split."""
    found = hashlib.sha256()
    for part in (corpus.train, corpus.valid, corpus.test):
        found.update(json.dumps(len(part)).encode())
        for document in part:
            found.update(json.dumps([document.id, document.text, document.labels]).encode())
    return found.hexdigest()


def finished(run: Run, checksum: str, results: Path) -> Result | None:
    """Return the result of a finished run; a file with other settings or documents under its name is an error."""
    path = results / f"{run.name}.json"
    result = read(path) if path.exists() else None
    if path.exists() and result is None:
        raise ConfigError(f"{path} is not a result of `denn bench run`. Move it away, or choose another --results.")
    if result is not None:
        _check_same(run, result.data["recipe"], checksum, result.data["corpus"]["digest"], f"The result {path}")
    return result


def perform(
    run: Run, corpus: Corpus, checksum: str, results: Path, work: Path, progress: Progress,
    *, keep_model: bool = False, sweeps: bool = False, take_turns: bool = False, shared: bool = False,
    scores: Path | None = None,
) -> Result:  # fmt: skip
    """Train the model unless it exists, evaluate it on test, and write the result file.

    `shared` means that other processes use the GPU at the same time, so times are not comparable. `scores`
    is a folder for the witnesses' scores of all runs.
    """
    if not corpus.test:
        raise DataError(f"The corpus {run.corpus} has no test split to evaluate on.")
    if scores and not corpus.valid:
        raise DataError(f"The corpus {run.corpus} has no validation split to fit combinations on. Omit --scores.")
    results.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    reset_peak_memory()
    with _diary(run, checksum, work) as diary, ExitStack() as stack:
        turns = Turns(progress, work / "turns.lock" if take_turns else None, diary.measure_rate)
        stack.callback(turns.close)
        model = stack.enter_context(trained_model(run, corpus, work / run.name, turns))
        valid = score(model, corpus.valid, progress) if corpus.valid else None
        test = score(model, corpus.test, progress)
        measured = measure(model, corpus, test.scores, valid and valid.scores)
        if scores and valid:
            save_witnesses(run, model, corpus, {"valid": valid, "test": test}, scores / run.name)
        with nullcontext() if shared else turns.alone():  # shared times are not worth waiting for
            timed = speed(model, corpus.test)
        spent = cost(model, corpus, diary.seconds() - turns.waited, diary.peak, diary.content["matrix_rate"], timed)
        if shared:
            spent["shared"] = True
        if sweeps and model.card.method == "denn":
            progress.start(Stage(f"sweeps of {run.name}"))
            measured["sweeps"] = sweeps_of(model, corpus)
        history = model.card.training.get("history", [])
        data = describe(run, corpus, checksum) | rounded({"cost": spent, "history": history, **measured})
        write(results / f"{run.name}.json", data)
    if not keep_model:
        clear(run, work)
    return Result(run.name, run.corpus, run.recipe, run.seed, data)


def save_witnesses(run: Run, model: Model, corpus: Corpus, scored: Mapping[str, Scored], folder: Path) -> None:
    """Save the scores of each witness on validation and test; methods without witnesses save nothing."""
    counts, p = torch.tensor(model.card.corpus["label_counts"]), model.method.parameters
    gamma = getattr(p, "gamma", Context.gamma)
    temperature = getattr(p, "vote_temperature", Context.temperature)
    for part, (scores, similarity) in scored.items():
        if scores.parts:
            context = Context(counts, similarity, gamma, temperature)
            gold = corpus.labels.matrix(getattr(corpus, part))
            WitnessScores(run.corpus, run.seed, scores.parts, gold, context).save(folder / f"{part}.npz")


def clear(run: Run, work: Path) -> None:
    """Delete the model of a run."""
    for folder in (work / run.name, work / f"{run.name}.training"):
        shutil.rmtree(folder, ignore_errors=True)
    (work / f"{run.name}.run.json").unlink(missing_ok=True)


def trained_model(run: Run, corpus: Corpus, folder: Path, progress: Progress) -> Model:
    """Load the finished model of this run, or train it."""
    bundle.recover(folder)
    if (folder / "bundle.json").is_file():
        progress.note(f"{folder} is already trained")
        return load(folder)
    settings = {"method": run.method.method, **vars(run.method.parameters)}
    return train(corpus, out=folder, progress=progress, allow_poor=True, **settings)  # a poor model is a result too


@dataclass
class _Diary:
    """State of a run that survives an interruption: its settings, the time spent, and the peak memory."""

    path: Path
    content: dict[str, Any]
    begun: float

    @property
    def peak(self) -> int:
        return int(self.content["peak_memory_bytes"])

    def measure_rate(self) -> None:
        """Measure the machine's matrix rate just before training."""
        wanted = self.content["recipe"]["parameters"].get("device", "auto")
        self.content["matrix_rate"] = matrix_rate("cuda" if torch.cuda.is_available() and wanted != "cpu" else "cpu")
        write(self.path, self.content)

    def seconds(self) -> float:
        """Return the seconds of this run, including earlier processes."""
        return float(self.content["seconds"]) + time.monotonic() - self.begun


@contextmanager
def _diary(run: Run, checksum: str, work: Path) -> Iterator[_Diary]:
    """Open the diary of a run with the same settings and documents, and save it however the run ends."""
    path = work / f"{run.name}.run.json"
    content = {
        "recipe": run.settings(),
        "digest": checksum,
        "seconds": 0.0,
        "peak_memory_bytes": 0,
        "matrix_rate": None,
    }
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        _check_same(run, content["recipe"], checksum, content["digest"], f"The unfinished run {path}")
    elif (work / run.name).exists():
        raise ConfigError(
            f"{work / run.name} is not a model of `denn bench run`. Move it away, or choose another --work."
        )
    diary = _Diary(path, content, time.monotonic())
    write(path, content)
    try:
        yield diary
    finally:
        peak = max(diary.peak, peak_memory())
        write(path, content | {"seconds": diary.seconds(), "peak_memory_bytes": peak})


def _check_same(run: Run, recipe: Mapping[str, Any], checksum: str, other: str, what: str) -> None:
    """Reject files under a run's name that belong to other settings or documents."""
    flat = [{"method": r["method"], **r["parameters"]} for r in (run.settings(), completed(recipe))]
    names = (flat[0].keys() | flat[1].keys()) - {"checkpoint_seconds"}  # changes no result
    differing = sorted(name for name in names if flat[0].get(name) != flat[1].get(name))
    if differing:
        said = ", ".join(f"{name} = {flat[1].get(name)!r} instead of {flat[0].get(name)!r}" for name in differing)
        raise ConfigError(f"{what} has {said}. Move it away, or rename the recipe.")
    if other != checksum:
        raise DataError(f"{what} belongs to other documents of {run.corpus}. Move it away to run on these.")


def describe(run: Run, corpus: Corpus, checksum: str) -> dict[str, Any]:
    """Describe the run: corpus, recipe, seed, code, versions and machine."""
    sizes = {part: len(getattr(corpus, part)) for part in ("train", "valid", "test", "labels")}
    return {
        "schema": SCHEMA,
        "name": run.name,
        "corpus": {"name": run.corpus, **sizes, "digest": checksum},
        "recipe": run.settings(),
        "seed": run.seed,
        "commit": commit(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": bundle.versions(),
        "machine": machine(),
    }


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON atomically, one line per key."""
    lines = [dumps({key: value}, f"The result {path}", ensure_ascii=False)[1:-1] for key, value in data.items()]
    temporary = path.with_name(path.name + ".part")
    temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    temporary.replace(path)

"""From a corpus to a bundle: train a method, tune thresholds on validation, write the folder in one move."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from denn import bundle
from denn.callbacks import Watched
from denn.clock import Clock
from denn.config import Recipe, make_recipe
from denn.continuing import Origin, open_origin
from denn.data.corpus import read_corpus
from denn.errors import BundleError, ConfigError, DataError, EncoderError, FineTuningError, NoRoomError, TrainingError
from denn.evaluation import evaluate, systems_of, tune, untuned
from denn.methods.effort import with_effort
from denn.model import Model, load
from denn.protocols import Method, Progress
from denn.refusals import check_corpus, locked, model_in, why_poor
from denn.registry import METHODS, lookup
from denn.stores.first_labels import with_first_labels
from denn.training import unfinished
from denn.training.kept import KeptStates
from denn.training.loop import CHECKPOINT
from denn.tries import Try, best_of_tries
from denn.types import Calibrated, Corpus, Stage
from denn.untrusted import first_line
from denn.validation import FOLDER, Kept, digests_of
from denn.vocabulary_file import write_vocabulary

log = logging.getLogger(__name__)

STAGING = "bundle"  # where a model is written, in the folder of its training
STOPPERS = {
    "effort",
    "epochs",
    "patience",
    "time_budget",
    "checkpoint_seconds",
}  # may change when a run is taken up again

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Silent:
    """Progress that nobody watches; notes go to the log."""

    def start(self, stage: Stage) -> None:
        """Ignore a new stage."""

    def advance(self, done: int, **values: object) -> None:
        """Ignore progress."""

    def note(self, message: str) -> None:
        """Log a line."""
        log.info(message)


def train(
    corpus: object,
    *,
    out: str | Path,
    method: str = "denn",
    progress: Progress | None = None,
    callbacks: Sequence[object] = (),
    restart: bool = False,
    replace: bool = False,
    allow_poor: bool = False,
    clock: Clock | None = None,
    continue_from: str | Path | None = None,
    with_store: bool = False,
    **parameters: Any,
) -> Model:
    """Train a method on a corpus, or on anything that `read_corpus` takes, and write the model's folder.

    A run that was killed resumes when the same call is made again; `restart` discards it. The folder appears only when
    everything is done; a model that is there already stays until then, and is replaced only with `replace`. A new
    model that is no better on validation than the most frequent labels alone is written only with `allow_poor`. A
    `time_budget` counts from the call; `clock` gives another budget or start.

    The `effort` is quick (the encoder stays as it is), balanced (quick, then fine-tuning; the better one is kept) or
    best (the same with a large encoder). By default it suits the machine and the time; `epochs` without an effort, or
    None, means one fine-tuning. `continue_from` names a model whose weights, labels and settings are the start, and
    `with_store` adds its stored documents to the training documents.

    `callbacks` are objects with `on_validation(validation)` (see `denn.callbacks.Validation`) or `on_end(model)`.
    """
    folder, shown, begun = Path(out).resolve(), Watched(progress or Silent(), callbacks), time.monotonic()
    make_recipe(method, parameters)  # unknown names are said before anything is read
    corpus = corpus if isinstance(corpus, Corpus) else read_corpus(corpus)
    chosen, origin = with_effort(method, parameters, shown, continues=continue_from is not None), None
    if continue_from is not None:
        origin, corpus = open_origin(continue_from, corpus, method, parameters, with_store, shown)
        chosen = {**origin.parameters, **chosen}
    elif with_store:
        raise ConfigError("Got with_store without a model to continue from. Add --from MODEL, or leave it out.")
    recipe = make_recipe(method, chosen)
    clock = clock or Clock(getattr(recipe.parameters, "time_budget", None), begun)
    check_corpus(corpus)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        if (existing := model_in(folder)) and not replace:
            raise TrainingError(existing.refusal)
        with room(folder, "training"):
            model = _train(corpus, recipe, folder, shown, restart, allow_poor, clock, origin)
    with ExitStack() as failed:
        failed.callback(model.close)
        shown.end(model)
        failed.pop_all()
    return model


def _train(
    corpus: Corpus, recipe: Recipe, folder: Path, shown: Progress, restart: bool, allow_poor: bool, clock: Clock,
    origin: Origin | None,
) -> Model:  # fmt: skip
    """Train and write; nobody else writes to the folder meanwhile."""
    workdir = folder.with_name(folder.name + ".training")
    start = origin.folder if origin else None
    resumed = not restart and (workdir / CHECKPOINT).exists()
    kind: type[Method] = lookup(METHODS, recipe.method, "method")
    recipe = replace(recipe, parameters=kind.plan(recipe.parameters, corpus, clock, shown, start, resumed))
    unfinished.open_folder(workdir, _fingerprint(corpus, recipe, origin), restart)
    made = best_of_tries(
        lambda *tried: _try(corpus, workdir, shown, clock, *tried), recipe, start, workdir, shown, clock
    )
    if made.poor and not allow_poor:
        shutil.rmtree(workdir / STAGING, ignore_errors=True)
        if not unfinished.has_checkpoint(workdir):  # to train on, or to write the model anyway
            unfinished.discard(workdir)
        raise TrainingError(made.poor)
    if origin:
        bundle.add_facts(made.folder, training=origin.facts)
    bundle.replace(made.folder, folder)
    unfinished.discard(workdir)
    return load(folder)


def _try(
    corpus: Corpus, workdir: Path, shown: Progress, clock: Clock,
    recipe: Recipe, start: Path | None, kept: KeptStates | None,
) -> Try:  # fmt: skip
    """Train a method once and write its model into the folder of the training."""
    built, staging = recipe.build(), workdir / STAGING
    built.start, built.kept = start, kept
    shutil.rmtree(staging, ignore_errors=True)
    with unfinished.keeping_what_is_learnt(workdir):
        facts, used = built.fit(corpus, workdir, shown, clock)
    recipe = Recipe(recipe.method, built.parameters)  # less than was asked for, where the time did not suffice
    with ExitStack() as failed:
        failed.callback(shutil.rmtree, staging, ignore_errors=True)  # half a model helps nobody, and takes room
        staging.mkdir()
        shown.start(Stage("writing the model"))
        with _usable():
            built.save(staging)
            bundle.write_labels(staging, corpus.labels)
            write_vocabulary(staging, corpus.vocabulary)
            poor = _finish(staging, used, recipe, facts, shown)
        failed.pop_all()
    return Try(staging, None if getattr(built, "is_baseline", False) else poor)


@contextmanager
def _usable() -> Iterator[None]:
    """Say that a training diverged where the model that it gave cannot be stored or used."""
    try:
        yield
    except (BundleError, DataError, EncoderError) as error:
        raise FineTuningError(
            f"The model was not written, as it cannot be used ({first_line(error).split('. ')[0]}). Train with "
            "--restart and a lower learning rate."
        ) from error


@contextmanager
def room(folder: Path, doing: str) -> Iterator[None]:
    """Say in a sentence that there is no room for a model, whichever library found out."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise NoRoomError(
            f"The {doing} cannot write to {folder.parent}: {reason}. Make room, then run the same command again to "
            "resume."
        ) from error


def _fingerprint(corpus: Corpus, recipe: Recipe, origin: Origin | None = None) -> str:
    """Digest all that decides a run, so that a checkpoint is never taken up by another one."""
    content = recipe.as_dict()
    kept = {name: value for name, value in content["parameters"].items() if name not in STOPPERS}
    digest = hashlib.sha256(json.dumps([content["method"], kept, corpus.labels.names]).encode())
    for part in (corpus.train, corpus.valid):
        for document in part:
            digest.update(json.dumps([document.id, document.text, document.labels]).encode())
    if origin:
        digest.update(origin.digest.encode())
    return digest.hexdigest()


def _finish(staging: Path, corpus: Corpus, recipe: Recipe, facts: Mapping[str, object], shown: Progress) -> str | None:
    """Tune thresholds on the model as it was written, and write bundle.json last; say so of a poor model."""
    counts, poor = Counter(label for document in corpus.train for label in document.labels), None
    card = bundle.Card(
        method=recipe.method,
        parameters=recipe.as_dict()["parameters"],
        corpus={
            "name": corpus.name,
            "train": len(corpus.train),
            "valid": len(corpus.valid),
            "label_counts": [counts[name] for name in corpus.labels.names],
        },
        thresholds=untuned((), len(corpus.labels)),
        metrics={},
        training=dict(facts),
        digests={},
        versions=bundle.versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    bundle.write_card(staging, card)
    found: dict[str, object] = {}
    with load(staging) as model:
        if model.method.store is not None:
            model.method.store = with_first_labels(model.method.store, len(corpus.labels))
        if corpus.valid:
            calibrated = model.method.calibrate(corpus.valid, staging, shown)
            if calibrated is None:
                calibrated = Calibrated(model.scores([d.text for d in corpus.valid]), {}, corpus.valid)
            scores, documents, facts = calibrated.scores, calibrated.documents, {**facts, **calibrated.facts}
            thresholds = tune(scores, documents, getattr(recipe.parameters, "optimise", "micro_f1"))
            metrics = dict(evaluate(scores, documents, thresholds, counts).headline)
            poor = why_poor(scores, documents, counts)
            if calibrated.embeddings is not None:
                Kept(documents, calibrated.embeddings, digests_of(model.store.ids())).save(staging / FOLDER)
                found["validation"] = FOLDER
        else:
            log.warning("there is no validation part: thresholds stay at 0.5, and nothing shows how good the model is")
            thresholds, metrics = untuned(systems_of(model.scores([""])), len(corpus.labels)), {}
        model.method.measure_familiarity(staging)
    found |= {"thresholds": thresholds, "metrics": metrics, "training": dict(facts)}
    card = card.model_copy(update={**found, "digests": bundle.digests(staging)})
    bundle.write_card(staging, card)
    return poor

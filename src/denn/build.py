"""Build a bundle from a corpus: train a method, tune thresholds on validation, and write the folder atomically."""

from __future__ import annotations

import errno
import hashlib
import inspect
import json
import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from denn import bundle
from denn.bundle_card import Card
from denn.callbacks import Watched
from denn.clock import Clock
from denn.config import Recipe, accepts, make_recipe
from denn.continuing import Origin, open_origin
from denn.data.corpus import read_corpus
from denn.errors import BundleError, ConfigError, DataError, EncoderError, FineTuningError, NoRoomError, TrainingError
from denn.evaluation import evaluate, systems_of, tune, untuned
from denn.methods.effort import with_effort
from denn.methods.first_labels import with_first_labels
from denn.model import Model, load
from denn.prediction_types import Calibrated
from denn.progress import displayed
from denn.protocols import Method, Progress
from denn.refusals import check_corpus, locked, model_in, why_poor
from denn.registry import METHODS, lookup
from denn.training import processes, unfinished
from denn.training.kept import KeptStates
from denn.training.loop import CHECKPOINT
from denn.tries import Try, best_of_tries
from denn.types import Corpus, Stage
from denn.untrusted import first_line
from denn.validation import FOLDER, Kept, digests_of, with_every_id
from denn.vocabulary_file import write_vocabulary

log = logging.getLogger(__name__)

STAGING = "bundle"  # subfolder of the training folder where the model is written
STOPPERS = {
    "effort",
    "epochs",
    "patience",
    "time_budget",
    "checkpoint_seconds",
}  # may change when a run is resumed

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


READING = inspect.signature(read_corpus).parameters.keys() - {"train", "seed"}


def train(
    corpus: object,
    *,
    out: str | Path,
    method: str = "denn",
    progress: Progress | bool | None = None,
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

    Make the same call again to resume an interrupted run, or pass `restart` to discard it. The folder appears only when
    training is complete. An existing model stays until then, and is replaced only with `replace`. A model that is no
    better on validation than always predicting the most frequent labels is written only with `allow_poor`.
    `time_budget` counts from the call; pass `clock` for another budget or start time.

    `effort` is quick (use the encoder as it is), balanced (quick, then fine-tune, and keep the better model) or best
    (the same with a large encoder). The default depends on the number of documents, the machine and the time budget;
    `epochs` without an effort, or None, fine-tunes once. `continue_from` names a model whose weights, labels and
    settings training starts with, and `with_store` also trains on its stored documents.

    `callbacks` are objects with `on_validation(validation)` (see `denn.callbacks.Validation`) or `on_end(model)`.
    `progress` shows how far training is: by default in a terminal or notebook, with True always, with False never.
    """
    folder, begun = Path(out).resolve(), time.monotonic()
    with displayed(progress) as display:
        shown = Watched(display, callbacks)
        if misplaced := sorted(name for name in READING & parameters.keys() if not accepts(method, name)):
            name = misplaced[0]
            raise ConfigError(
                f"{name} is a parameter of read_corpus. Write denn.train(denn.read_corpus(…, {name}=…), …)."
            )
        make_recipe(method, parameters)  # report unknown names before reading anything
        corpus = corpus if isinstance(corpus, Corpus) else read_corpus(corpus)
        chosen, origin = with_effort(method, parameters, shown, continues=continue_from is not None), None
        if continue_from is not None:
            origin, corpus = open_origin(continue_from, corpus, method, parameters, with_store, shown)
            chosen = {**origin.parameters, **chosen}
        elif with_store:
            raise ConfigError("with_store needs a model to continue from. Add --from MODEL, or leave it out.")
        recipe = make_recipe(method, chosen)
        processes.check(recipe.parameters)
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
    """Train and write the model; the caller holds the folder's lock."""
    workdir = folder.with_name(folder.name + ".training")
    start = origin.folder if origin else None
    resumed = not restart and ((workdir / CHECKPOINT).exists() or unfinished.first_facts(workdir) is not None)
    kind: type[Method] = lookup(METHODS, recipe.method, "method")
    recipe = replace(recipe, parameters=kind.plan(recipe.parameters, corpus, clock, shown, start, resumed))
    unfinished.open_folder(workdir, _fingerprint(corpus, recipe, origin), restart, processes.count())
    made = best_of_tries(
        lambda *tried: _try(corpus, workdir, shown, clock, *tried), recipe, start, workdir, shown, clock
    )
    if made.poor and not allow_poor:
        shutil.rmtree(workdir / STAGING, ignore_errors=True)
        if not unfinished.has_checkpoint(workdir):  # a checkpoint allows more training, or --allow-poor
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
    """Train a method once and write its model into the training folder."""
    built, staging = recipe.build(), workdir / STAGING
    built.start, built.kept = start, kept
    shutil.rmtree(staging, ignore_errors=True)
    with unfinished.keeping_what_is_learnt(workdir):
        facts, used = built.fit(corpus, workdir, shown, clock)
    recipe = Recipe(recipe.method, built.parameters)  # fit may have reduced them to stay within the time budget
    with ExitStack() as failed:
        failed.callback(shutil.rmtree, staging, ignore_errors=True)  # a partial model is useless and takes space
        staging.mkdir()
        shown.start(Stage("writing the model"))
        with _usable():
            built.save(staging)
            bundle.write_labels(staging, corpus.labels)
            write_vocabulary(staging, corpus.vocabulary)
            is_alone = start is None and kept is None  # it neither continues from a model, nor is continued
            head_epochs = cast(int, facts["head_epochs"]) if is_alone and facts.get("frozen") else 0
            poor = _finish(staging, used, recipe, facts, shown, clock, head_epochs)
        failed.pop_all()
    return Try(staging, None if getattr(built, "is_baseline", False) else poor)


@contextmanager
def _usable() -> Iterator[None]:
    """Raise a FineTuningError if the trained model cannot be stored or used."""
    try:
        yield
    except (BundleError, DataError, EncoderError) as error:
        raise FineTuningError(
            f"The trained model is unusable and was not written ({first_line(error).split('. ')[0]}). Train again with "
            "--restart and a lower learning rate."
        ) from error


@contextmanager
def room(folder: Path, doing: str) -> Iterator[None]:
    """Raise a NoRoomError if the disk is full, whichever library reports it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise NoRoomError(
            f"The {doing} cannot write to {folder.parent}: {reason}. Free some space, then run the same command again "
            "to resume."
        ) from error


def _fingerprint(corpus: Corpus, recipe: Recipe, origin: Origin | None = None) -> str:
    """Hash everything that determines a run, so that no other run resumes its checkpoint."""
    content = recipe.as_dict()
    kept = {name: value for name, value in content["parameters"].items() if name not in STOPPERS}
    digest = hashlib.sha256(json.dumps([content["method"], kept, corpus.labels.names]).encode())
    for part in (corpus.train, corpus.valid):
        for document in part:
            rejected = [document.rejected] if document.rejected else []
            digest.update(json.dumps([document.id, document.text, document.labels, *rejected]).encode())
    if corpus.vocabulary:
        digest.update(json.dumps([astuple(entry) for entry in corpus.vocabulary]).encode())
    if origin:
        digest.update(origin.digest.encode())
    return digest.hexdigest()


def _finish(
    staging: Path, corpus: Corpus, recipe: Recipe, facts: Mapping[str, object], shown: Progress, clock: Clock,
    head_epochs: int,
) -> str | None:  # fmt: skip
    """Tune thresholds on the written model and write bundle.json last; return why the model is poor, or None.

    `head_epochs` is not 0 if only a new head was trained.
    """
    counts, poor = Counter(label for document in corpus.train for label in document.labels), None
    card = Card(
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
            calibrated = None
            if head_epochs:
                calibrated = model.method.calibrate_on_all(corpus.valid, staging, shown, head_epochs, clock)
            if calibrated is None:
                calibrated = model.method.calibrate(corpus.valid, staging, shown)
            if calibrated is None:
                calibrated = Calibrated(model.scores([d.text for d in corpus.valid]), {}, corpus.valid)
            scores, documents, facts = calibrated.scores, calibrated.documents, {**facts, **calibrated.facts}
            thresholds = tune(scores, documents, getattr(recipe.parameters, "optimise", "micro_f1"))
            metrics = dict(evaluate(scores, documents, thresholds, counts).headline)
            poor = why_poor(scores, documents, counts)
            if calibrated.embeddings is not None:
                ids = model.store.ids()
                held_out = documents[: len(calibrated.embeddings)]
                kept = Kept(with_every_id(held_out, ids), calibrated.embeddings, digests_of(ids))
                kept.save(staging / FOLDER)
                found["validation"] = FOLDER
        else:
            log.warning("there are no validation documents: thresholds stay at 0.5, and the model's quality is unknown")
            thresholds, metrics = untuned(systems_of(model.scores([""])), len(corpus.labels)), {}
        model.method.measure_familiarity(staging)
    found |= {"thresholds": thresholds, "metrics": metrics, "training": dict(facts)}
    card = card.model_copy(update={**found, "digests": bundle.digests(staging)})
    bundle.write_card(staging, card)
    return poor

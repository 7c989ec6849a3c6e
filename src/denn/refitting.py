"""Refit a model: learn everything but the encoder again from the datastore, and replace the old parts atomically."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from denn import bundle
from denn.build import room
from denn.bundle_card import Card
from denn.clock import Clock, read_budget
from denn.combiners.judging import NOISE, decide_by_fold, f1_values, folds_of, lead_of, precision_values
from denn.core.thresholds import decide
from denn.datastore import Datastore
from denn.durable import sync_all
from denn.errors import ConflictError
from denn.evaluation import evaluate, tune
from denn.label_editing import with_merges
from denn.methods import relearning
from denn.methods.cross_fitting import CrossFitted, are_few, cross_fit
from denn.methods.denn import DENN
from denn.methods.relearning import Judged
from denn.model import Model, load
from denn.prediction_types import Calibrated
from denn.progress import Silent, displayed
from denn.protocols import Progress
from denn.refit_documents import check_enough, divide, kept_documents, labels_of
from denn.types import Corpus, Document, LabelSpace, Stage
from denn.validation import FOLDER, Kept, changing, with_folder
from denn.witnesses.texts import Texts
from denn.wording import counted, metric_title

ESTIMATING = 10.0  # seconds for thresholds of labels that the current model has not learnt


def refit(
    path: str | Path,
    *,
    valid: Sequence[Document] | None = None,
    force: bool = False,
    time_budget: float | str | None = None,
    progress: Progress | bool | None = None,
) -> Model:
    """Learn head, words, combination and thresholds again from the datastore; keep the encoder.

    Return the model, refitted or unchanged; see `refit_folder`.
    """
    with displayed(progress) as shown:
        refit_folder(path, valid=valid, force=force, time_budget=time_budget, progress=shown)
    return load(path)


@dataclass(frozen=True)
class Outcome:
    """Whether a refit replaced the previous model, and facts about both."""

    taken: bool
    facts: dict[str, object]


def refit_folder(
    path: str | Path,
    *,
    valid: Sequence[Document] | None = None,
    force: bool = False,
    time_budget: float | str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Refit the model in a folder and return the outcome.

    Nothing is tuned on documents that were learnt from: one in ten of those added since training is held out, and the
    model keeps its validation documents, unless `valid` gives others. A refit that is worse than the current model on
    these is applied only with `force`. If the refit is interrupted, or cancelled by an error that `progress` raises,
    the model does not change.
    """
    folder = Path(path).resolve()
    with changing(folder):
        return refit_locked(folder, valid=valid, force=force, time_budget=time_budget, progress=progress)


def refit_locked(
    folder: Path,
    *,
    valid: Sequence[Document] | None = None,
    force: bool = False,
    time_budget: float | str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Refit the model in a folder that the caller has locked with `changing`; see `refit_folder`."""
    shown, clock = progress or Silent(), Clock(read_budget(time_budget))
    with room(folder, "refit"), load(folder) as model:
        _clear(folder)
        return _refit(model, folder, valid, force, clock, shown)


def _refit(
    model: Model, folder: Path, valid: Sequence[Document] | None, force: bool, clock: Clock, shown: Progress
) -> Outcome:
    """Learn, compare and write the result."""
    method, card, begun = cast(DENN, model.method), model.card, time.monotonic()
    store = model.store
    if not model.method.can_refit:
        raise ConflictError(
            f"Only a model of the method 'denn' can be refitted, not one of {card.method!r}. Train again instead."
        )
    kept = kept_documents(model, folder, valid, shown)
    seen = _last_change(store)
    now = replace(kept, documents=with_merges(kept.documents, model.merges()))  # kept as they are: merges can be undone
    learnt, vectors, judged = divide(store, now, method, shown)
    check_enough(folder, kept, len(judged.documents))
    held = [one for one, own_id in zip(judged.documents, judged.own_ids, strict=True) if own_id is not None]
    labels = labels_of(bundle.read_labels(folder).names, store.labels, learnt, held)
    corpus = Corpus(learnt, judged.documents, labels=labels, name=card.corpus["name"])
    epochs = relearning.epochs_of_head(method, len(learnt), clock)
    new = relearning.relearn(method, corpus, vectors, shown, clock, epochs)
    judged = judged.rows(new.drawn(len(judged.documents), shown))
    corpus = replace(corpus, valid=judged.documents)
    name = bundle.new_name(folder, "learnt")
    try:
        (folder / name).mkdir()
        asked = relearning.ask(method, judged.documents, judged.embeddings, judged.own_ids)
        fitted = None
        if "cross_fitted" in card.training and are_few(new, len(learnt) + len(asked)):
            fitted = cross_fit(new, judged, learnt, vectors, epochs, shown, clock)
        found = _learn_combination(new, judged, asked, fitted, folder / name, shown)
        shown.start(Stage("comparing with the current model"))
        before, after, error = _compare(model, asked, _of_judged(new, judged, found))
        facts = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - begun, 1),
            "documents": len(learnt),
            "held_out": len(judged.documents),
            "labels": len(labels),
            "change": seen,  # the last change that the refit has certainly learnt from
            "metric": method.parameters.optimise,
            "before": round(before, 5),
            "after": round(after, 5),
            "standard_error": round(error, 5),
        }
        sentence = describe(facts)
        if after - before < -NOISE * error and not force:
            shown.note(f"{sentence} The model was not changed; use --force to apply the refit.")
            return Outcome(False, facts)
        shown.start(Stage("writing the model"))
        relearning.save(new, folder / name)
        new.measure_familiarity(folder / name)
        bundle.write_labels(folder / name, labels)
        sync_all(folder / name)
        card = with_folder(folder, _refitted(card, corpus, found, facts), "learnt", name)
        if not card.validation or valid is not None:
            card = _keep(folder, card, kept)
        _check_forgotten(store, seen)
        bundle.write_card(folder, card)  # activates the new parts
    finally:
        _clear(folder)
    shown.note(sentence)
    return Outcome(True, facts)


def _learn_combination(
    new: DENN, judged: Judged, asked: Texts, fitted: CrossFitted | None, folder: Path, shown: Progress
) -> Calibrated:
    """Fit the combiner on the documents to judge by, or on cross-fitted ones, which begin with them."""
    if fitted is not None:
        found = new.learn_combination(*fitted, folder, shown)
        return found._replace(facts={**found.facts, "cross_fitted": len(found.documents) - len(asked)})
    shown.start(Stage(f"scoring {len(asked):,} validation documents"))
    own = relearning.with_own_labels(new, asked)
    return new.learn_combination(own, judged.documents, new.hear(own), folder, shown)


def _of_judged(new: DENN, judged: Judged, found: Calibrated) -> Calibrated:
    """Return the scores of the documents to judge by, from a combination that is fitted to them alone.

    The combination of the current model is too, so that only what the refit has learnt makes a difference.
    """
    if len(found.documents) == len(judged.documents):
        return found
    scores = found.scores.rows(0, len(judged.documents))
    assert scores.neighbours is not None
    _, _, final = new.fit_combiner(scores.parts, scores.neighbours, judged.documents)
    return found._replace(scores=replace(scores, final=final), documents=judged.documents)


def _refitted(card: Card, corpus: Corpus, found: Calibrated, facts: dict[str, object]) -> Card:
    """Return the card with the results of the refit, tuned on held-out documents."""
    metric, counts = str(facts["metric"]), dict(zip(corpus.labels.names, corpus.labels.counts, strict=True))
    thresholds = tune(found.scores, found.documents, metric)
    earlier = {"cross_fitted": 0} if "cross_fitted" in card.training else {}
    sizes = {"train": len(corpus.train), "valid": len(corpus.valid), "label_counts": list(corpus.labels.counts)}
    found_now = {
        "format": bundle.FORMATS[-1],
        "corpus": card.corpus | sizes,
        "thresholds": thresholds,
        "metrics": dict(evaluate(found.scores, found.documents, thresholds, counts).headline),
        "training": {**card.training, **earlier, **found.facts},
        "versions": bundle.versions(),
        "refitted": facts,
    }
    return card.model_copy(update=found_now)


def _clear(folder: Path) -> None:
    """Delete old or new parts that bundle.json does not name."""
    bundle.clear_unused(folder, bundle.read_card(folder))


def _keep(folder: Path, card: Card, kept: Kept) -> Card:
    """Write validation documents that the model did not keep before."""
    name = bundle.new_name(folder, FOLDER)
    kept.save(folder / name)
    sync_all(folder / name)
    return with_folder(folder, card, "validation", name)


def _last_change(store: Datastore) -> int:
    """Return the number of the newest change."""
    return max((change.number for change in store.history(1)), default=0)


def _check_forgotten(store: Datastore, seen: int) -> None:
    """Reject a result that was learnt from documents that have since been forgotten."""
    later = store.history(max(0, _last_change(store) - seen))
    if any(change.action == "forget" and change.number > seen for change in later):
        raise ConflictError(
            "Documents were forgotten while the refit learnt from them, so the model was not changed. Refit again."
        )


def _compare(model: Model, asked: Texts, found: Calibrated) -> tuple[float, float, float]:
    """Return the scores of the current model and of the refit, and the standard error of their difference.

    The combination and thresholds for each document come from folds without it: the current model was tuned on most of
    these documents, which would make it look better than it is. Labels that it has not learnt are decided as it decides
    them.
    """
    method, names = cast(DENN, model.method), found.scores.names
    p, gold, known = method.parameters, LabelSpace(names).matrix(found.documents), len(method.names)
    own = relearning.with_own_labels(method, asked)
    _, _, unseen = method.fit_combiner(method.hear(own), own.neighbours, found.documents)
    old = method.combine(method.hear(asked), asked.neighbours)
    if p.optimise == "precision_at_k":
        scores = torch.cat([unseen, old.final[:, known:]], dim=1)
        before = precision_values(_columns(scores, old.names, names), gold)
        after = precision_values(found.scores.final, gold)
    else:
        fold, macro = folds_of(len(gold), p.seed), p.optimise == "macro_f1"
        model.defer_estimates(ESTIMATING, 0.0)  # there may be thousands of later labels
        later = decide(old.final, model.decision_thresholds(old))[:, known:]
        learnt = decide_by_fold(unseen, LabelSpace(method.names).matrix(found.documents), fold, p.optimise)
        before = f1_values(_columns(torch.cat([learnt, later], dim=1), old.names, names), gold, macro=macro)
        after = f1_values(decide_by_fold(found.scores.final, gold, fold, p.optimise), gold, macro=macro)
    return float(before[0]), float(after[0]), lead_of(after, before)[1]


def _columns(values: Tensor, names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return (n,L) values in the columns of other labels, 0 for labels without values."""
    place = {name: column for column, name in enumerate(names)}
    both = [(column, place[name]) for column, name in enumerate(wanted) if name in place]
    into, of = torch.tensor(both, dtype=torch.int64).reshape(-1, 2).T
    return values.new_zeros(len(values), len(wanted)).index_copy_(1, into, values[:, of])


def describe(facts: Mapping[str, object]) -> str:
    """Describe what a refit learnt from, and how it compares with the previous model."""
    before, after, error = (100 * float(str(facts[name])) for name in ("before", "after", "standard_error"))
    labels, documents, held_out = (int(str(facts[name])) for name in ("labels", "documents", "held_out"))
    return (
        f"Learnt {counted(labels, 'label')} from {counted(documents, 'document')}. On "
        f"{counted(held_out, 'held-out document')}: {metric_title(str(facts['metric']))} {before:.1f} before and "
        f"{after:.1f} now (standard error of the difference: {error:.1f})."
    )

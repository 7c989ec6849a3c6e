"""Refit: learn again from the datastore all that is cheap, and put it in the place of the old in one move."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from denn import bundle
from denn.build import Silent, room
from denn.clock import Clock
from denn.combiners.judging import NOISE, decide_by_fold, f1_values, folds_of, lead_of, precision_values
from denn.core.thresholds import decide
from denn.durable import sync_all
from denn.errors import BundleError, ConflictError, DataError
from denn.evaluation import evaluate, tune
from denn.methods import relearning
from denn.methods.denn import DENN
from denn.model import Model, load
from denn.protocols import Datastore, Progress
from denn.types import Calibrated, Corpus, Document, LabelSpace, Stage
from denn.untrusted import REMEDY
from denn.validation import FOLDER, Kept, changing, digests_of, with_folder
from denn.witnesses.texts import Texts

FEWEST = 25  # documents to validate on, if the model keeps none itself
ONE_IN = 10  # documents that were added later is held out
BATCH = 4096  # documents that are read at a time
ESTIMATING = 10.0  # seconds for thresholds of labels that the model so far has not learnt
SAMPLED = 64  # documents that show the mean length of embeddings


def refit(
    path: str | Path,
    *,
    valid: Sequence[Document] | None = None,
    force: bool = False,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> Model:
    """Learn head, words, combination and thresholds again from the datastore; the encoder stays as it is.

    Return the model as it is then; see `refit_folder`.
    """
    refit_folder(path, valid=valid, force=force, time_budget=time_budget, progress=progress)
    return load(path)


@dataclass(frozen=True)
class Outcome:
    """What a refit found on the documents that judge it, and whether it took the place of the model so far."""

    taken: bool
    facts: dict[str, object]


def refit_folder(
    path: str | Path,
    *,
    valid: Sequence[Document] | None = None,
    force: bool = False,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Refit the model of a folder, and say what that changed.

    Nothing is tuned on documents that were learnt from: one in ten of those added since the training is held out, and
    the model keeps its validation documents, unless `valid` gives others. A refit that is worse on these than the
    model was is taken only with `force`. All or nothing: interrupted, or cancelled by an error that `progress` raises,
    it leaves the model as it was.
    """
    folder = Path(path).resolve()
    with changing(folder):
        return refit_locked(folder, valid=valid, force=force, time_budget=time_budget, progress=progress)


def refit_locked(
    folder: Path,
    *,
    valid: Sequence[Document] | None = None,
    force: bool = False,
    time_budget: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Refit the model of a folder from which the caller keeps others away with `changing`; see `refit_folder`."""
    shown = progress or Silent()
    with room(folder, "refit"), load(folder) as model:
        _clear(folder)
        return _refit(model, folder, valid, force, Clock(time_budget), shown)


@dataclass(frozen=True)
class Judged:
    """Documents that combination and thresholds are fitted to, and by which a refit is judged."""

    documents: Sequence[Document]
    embeddings: Tensor  # (n,d)
    own_ids: Sequence[str | None]  # of those that are stored

    def rows(self, rows: Sequence[int]) -> Judged:
        """Return some of them."""
        documents, ids = [self.documents[row] for row in rows], [self.own_ids[row] for row in rows]
        return Judged(documents, self.embeddings[list(rows)], ids)


def _refit(
    model: Model, folder: Path, valid: Sequence[Document] | None, force: bool, clock: Clock, shown: Progress
) -> Outcome:
    """Learn, compare and write."""
    method, card, begun = cast(DENN, model.method), model.card, time.monotonic()
    store = model.store
    if not model.method.can_refit:
        raise ConflictError(f"Got a model of the method {card.method!r}, expected 'denn'. Train again instead.")
    kept = _kept(model, folder, valid, shown)
    seen = _last_change(store)
    learnt, vectors, judged = _divide(store, kept, method, shown)
    _check(folder, kept, len(judged.documents))
    held = [one for one, own_id in zip(judged.documents, judged.own_ids, strict=True) if own_id is not None]
    labels = _labels(bundle.read_labels(folder).names, store.labels, learnt, held)
    corpus = Corpus(learnt, judged.documents, labels=labels, name=card.corpus["name"])
    new = relearning.relearn(method, corpus, vectors, shown, clock)
    judged = judged.rows(new.drawn(len(judged.documents), shown))
    name = bundle.new_name(folder, "learnt")
    try:
        (folder / name).mkdir()
        asked = relearning.ask(method, judged.documents, judged.embeddings, judged.own_ids)
        own = relearning.with_own_labels(new, asked)
        found = new.learn_combination(own, judged.documents, folder / name, shown)
        shown.start(Stage("comparing with the model so far"))
        before, after, error = _compare(model, asked, found)
        facts = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - begun, 1),
            "documents": len(learnt),
            "held_out": len(judged.documents),
            "labels": len(labels),
            "change": seen,  # the last one that was certainly learnt from
            "metric": method.parameters.optimise,
            "before": round(before, 5),
            "after": round(after, 5),
            "standard_error": round(error, 5),
        }
        sentence = describe(facts)
        if after - before < -NOISE * error and not force:
            shown.note(f"{sentence} The model stays as it was; --force takes the refit.")
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
        bundle.write_card(folder, card)  # from here on the new parts count
    finally:
        _clear(folder)
    shown.note(sentence)
    return Outcome(True, facts)


def _refitted(card: bundle.Card, corpus: Corpus, found: Calibrated, facts: dict[str, object]) -> bundle.Card:
    """Return the card with what the refit found, tuned on the documents that were held out."""
    metric, counts = str(facts["metric"]), dict(zip(corpus.labels.names, corpus.labels.counts, strict=True))
    thresholds = tune(found.scores, found.documents, metric)
    sizes = {"train": len(corpus.train), "valid": len(found.documents), "label_counts": list(corpus.labels.counts)}
    found_now = {
        "format": bundle.FORMATS[-1],
        "corpus": card.corpus | sizes,
        "thresholds": thresholds,
        "metrics": dict(evaluate(found.scores, found.documents, thresholds, counts).headline),
        "training": {**card.training, **found.facts},
        "versions": bundle.versions(),
        "refitted": facts,
    }
    return card.model_copy(update=found_now)


def _clear(folder: Path) -> None:
    """Delete what bundle.json does not name, be it the old parts or the new ones."""
    bundle.clear_unused(folder, bundle.read_card(folder))


def _kept(model: Model, folder: Path, valid: Sequence[Document] | None, shown: Progress) -> Kept:
    """Return the validation documents that the model keeps, or those given."""
    card = model.card
    if card.validation:
        kept = Kept.load(folder / card.validation)
        if kept.vectors.shape[1] != model.store.dimension:
            raise BundleError(
                f"{folder}: the vectors of the validation documents are {kept.vectors.shape[1]} wide, those of the "
                f"datastore {model.store.dimension}. {REMEDY}"
            )
    else:  # an older model, whose training documents are the oldest ones
        trained = digests_of(model.store.ids()[: card.corpus["train"]])
        kept = Kept([], torch.zeros(0, model.store.dimension), trained)
    if valid is None:
        return kept
    if not valid:
        raise DataError("Got no validation documents, expected at least one.")
    named = [replace(one, id=one.id or f"valid-{number}") for number, one in enumerate(valid)]
    shown.start(Stage("embedding validation documents", len(named)))
    pieces = []
    for start in range(0, len(named), 256):
        pieces.append(model.embed([document.text for document in named[start : start + 256]]))
        shown.advance(start + len(pieces[-1]))
    return replace(kept, documents=named, vectors=torch.cat(pieces))


def _keep(folder: Path, card: bundle.Card, kept: Kept) -> bundle.Card:
    """Write validation documents that the model did not keep so far."""
    name = bundle.new_name(folder, FOLDER)
    kept.save(folder / name)
    sync_all(folder / name)
    return with_folder(folder, card, "validation", name)


def _divide(store: Datastore, kept: Kept, method: DENN, shown: Progress) -> tuple[list[Document], Tensor, Judged]:
    """Return the stored documents to learn from with their vectors, and all documents to judge by.

    A kept document that was stored later is held out, and judged as it is stored. One whose text is among the training
    documents judges nothing.
    """
    trained, ids = set(kept.trained.tolist()), {document.id for document in kept.documents}
    texts = {document.text for document in kept.documents}
    learnt: list[Document] = []
    held: list[Document] = []
    rows: list[Tensor] = []
    held_rows: list[Tensor] = []
    seen: set[str | None] = set()  # ids and texts of kept documents that are stored
    shown.start(Stage("reading the datastore", len(store)))
    for documents, vectors in store.export(BATCH):
        digests = digests_of(str(document.id) for document in documents).tolist()
        is_held = []
        for document, digest in zip(documents, digests, strict=True):
            is_later = digest not in trained
            is_kept = document.text in texts or (is_later and document.id in ids)
            if is_kept:
                seen |= {document.text, document.id} if is_later else {document.text}
            is_held.append(is_later and (is_kept or digest % ONE_IN == 0))
            (held if is_held[-1] else learnt).append(document)
        mask = torch.tensor(is_held)
        rows.append(vectors[~mask])
        held_rows.append(vectors[mask])
        shown.advance(len(learnt) + len(held))
    if not any(document.labels for document in learnt):
        raise DataError(
            f"None of the {len(learnt)} stored documents to learn from has a label. Add labelled documents first."
        )
    rest = [row for row, one in enumerate(kept.documents) if one.text not in seen and one.id not in seen]
    unit = torch.cat(held_rows)
    embeddings = torch.cat([_mean_length(method, kept, held) * unit, kept.vectors[rest]])
    own_ids = [document.id for document in held] + [None] * len(rest)
    return learnt, torch.cat(rows), Judged([*held, *(kept.documents[row] for row in rest)], embeddings, own_ids)


def _mean_length(method: DENN, kept: Kept, held: Sequence[Document]) -> float:
    """Return the mean length of embeddings, which stored vectors have lost and a head that was never refitted needs."""
    if method.network.reads_unit_vectors or not held:
        return 1.0
    vectors = kept.vectors if len(kept.vectors) else method.embed([document.text for document in held[:SAMPLED]])
    return float(vectors.norm(dim=1).mean())


def _check(folder: Path, kept: Kept, documents: int) -> None:
    """Refuse to tune on nothing, or on too little."""
    if documents and (len(kept.documents) or documents >= FEWEST):
        return
    raise DataError(
        f"{folder} keeps no validation documents, and {documents} of the documents that were added since its training "
        f"are held out, expected at least {FEWEST}. Give labelled documents that it has not seen with --valid FILE."
    )


def _last_change(store: Datastore) -> int:
    """Return the number of the newest change."""
    return max((change.number for change in store.history(1)), default=0)


def _check_forgotten(store: Datastore, seen: int) -> None:
    """Refuse to keep what was learnt from documents that were forgotten meanwhile."""
    later = store.history(max(0, _last_change(store) - seen))
    if any(change.action == "forget" and change.number > seen for change in later):
        raise ConflictError(
            "Documents were forgotten while the refit learnt from them, so the model stays as it was. Refit again."
        )


def _labels(
    first: Sequence[str], stored: Sequence[str], learnt: Sequence[Document], held: Sequence[Document]
) -> LabelSpace:
    """Return the labels of stored documents: those of the first training, then in the order of the datastore.

    One that came to the datastore since these documents were read is left to the next refit.
    """
    carried = {label for one in (*learnt, *held) for label in (*one.labels, *one.rejected)}
    whole = [name for name in stored if "\n" not in name or name in carried]  # an older store may have others
    names = list(dict.fromkeys((*first, *whole, *sorted(carried))))
    last = max(place for place, name in enumerate(names) if place < len(first) or name in carried)
    if broken := [name for name in names[: last + 1] if "\n" in name]:
        raise DataError(
            f"Got the label {broken[0]!r}, expected one line. Relabel its documents with `denn store relabel`."
        )
    counts = Counter(label for document in learnt for label in document.labels)
    return LabelSpace(tuple(names[: last + 1]), tuple(counts[name] for name in names[: last + 1]))


def _compare(model: Model, asked: Texts, found: Calibrated) -> tuple[float, float, float]:
    """Return what the model so far scores on the documents, what the refit scores, and the standard error of that.

    Combination and thresholds of both are those of folds that do not hold the document: the model so far was tuned on
    most of these documents, which would make it look better than it is. Labels that it has not learnt are decided as
    it decides them.
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
        model.defer_estimates(ESTIMATING, 0.0)  # of thresholds of later labels, which may be thousands
        later = decide(old.final, model.decision_thresholds(old))[:, known:]
        learnt = decide_by_fold(unseen, LabelSpace(method.names).matrix(found.documents), fold, p.optimise)
        before = f1_values(_columns(torch.cat([learnt, later], dim=1), old.names, names), gold, macro=macro)
        after = f1_values(decide_by_fold(found.scores.final, gold, fold, p.optimise), gold, macro=macro)
    return float(before[0]), float(after[0]), lead_of(after, before)[1]


def _columns(values: Tensor, names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return (n,L) values in the columns of other labels, 0 for those that have none."""
    place = {name: column for column, name in enumerate(names)}
    both = [(column, place[name]) for column, name in enumerate(wanted) if name in place]
    into, of = torch.tensor(both, dtype=torch.int64).reshape(-1, 2).T
    return values.new_zeros(len(values), len(wanted)).index_copy_(1, into, values[:, of])


def describe(facts: Mapping[str, object]) -> str:
    """Say in a sentence what a refit learnt from, and how much better that is."""
    before, after, error = (100 * float(str(facts[name])) for name in ("before", "after", "standard_error"))
    return (
        f"Learnt {facts['labels']:,} labels from {facts['documents']:,} documents. On {facts['held_out']:,} others: "
        f"{str(facts['metric']).replace('_', ' ')} {before:.1f} before and {after:.1f} now (standard error of the "
        f"difference: {error:.1f})."
    )

"""A trained model: tags texts with evidence, adds and forgets documents, evaluates itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self, cast

from denn.bundle import undisturbed
from denn.bundle_card import Card
from denn.core.thresholds import decide
from denn.data.corpus import labelled
from denn.data.vocabularies import with_ids
from denn.datastore import Datastore
from denn.errors import BundleError, ConfigError, ConflictError, DataError
from denn.evaluation import (
    Evaluation,
    concatenate,
    copies_sentence,
    decision_thresholds,
    evaluate,
    nothing_known_sentence,
    stored_copies,
)
from denn.label_editing import (
    Merges,
    check_known,
    check_mergeable,
    edit,
    merge_scores,
    merged,
    renamed,
    with_merges,
)
from denn.loading import load_parts, locate
from denn.methods.new_labels import NewLabels
from denn.prediction_types import Neighbour, Prediction, Scores
from denn.predictions import checked, neighbours_with_texts, predictions
from denn.protocols import Method, Progress, Retriever
from denn.text_batches import batch_size, check_list, in_batches
from denn.types import Document, LabelSpace, Where, Which
from denn.validation import forget
from denn.vocabulary import Vocabulary
from denn.wording import counted

if TYPE_CHECKING:
    from torch import Tensor

    from denn.analysis.audit import Suspect
    from denn.analysis.queue import Queued

log = logging.getLogger(__name__)


class Model:
    """A bundle in memory."""

    def __init__(
        self,
        method: Method,
        labels: LabelSpace,
        card: Card,
        vocabulary: Vocabulary = Vocabulary(),  # noqa: B008
    ) -> None:
        self.method = method
        self.labels = labels  # those that the model was trained on; the datastore may have more
        self.card = card
        self.vocabulary = vocabulary  # names of labels, including later ones; empty if labels are their own names
        self.folder: Path | None = None  # the folder that it was loaded from
        self._merges = Merges()
        # Used only for labels in a datastore, so the method is a Retriever.
        fallbacks = {part: tuned.fallback for part, tuned in card.thresholds.items()}
        self._new = NewLabels(cast(Retriever, method), fallbacks)

    def __repr__(self) -> str:
        where = "" if self.folder is None else f"{str(self.folder)!r}: "
        return f"Model({where}{self.card.method}, {counted(len(self.labels), 'label')})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A Model cannot be pickled or copied. Pass its folder instead, and call denn.load there.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def retire(self) -> None:
        """Stop background work; leave the datastore open for the model that `renew` made from this one."""
        self._new.close()

    def close(self) -> None:
        """Stop background work and close the datastore."""
        self.retire()
        if self.method.store is not None:
            self.method.store.close()

    def predict(
        self,
        texts: Sequence[str],
        *,
        threshold: float | None = None,
        per_label: bool = False,
        min_labels: int = 0,
        evidence: int | None = None,
    ) -> list[Prediction]:
        """Tag texts, in order.

        Labels are decided by the model's own threshold or thresholds, by `threshold`, or with `per_label` by one
        threshold per label. Labels added after training have their own thresholds, estimated from their documents in
        the datastore, unless `threshold` is given. `min_labels` adds the best labels if fewer pass. `evidence` limits
        the number of neighbours returned (None: all k).
        """
        check_list(texts, "predict")
        return list(
            self.stream(texts, threshold=threshold, per_label=per_label, min_labels=min_labels, evidence=evidence)
        )

    def stream(
        self,
        texts: Iterable[str],
        *,
        threshold: float | None = None,
        per_label: bool = False,
        min_labels: int = 0,
        evidence: int | None = None,
    ) -> Iterator[Prediction]:
        """Tag any number of texts in constant memory; see `predict`."""
        _check_threshold(threshold)
        if evidence is not None and evidence < 0:
            raise ConfigError(f"evidence must be a number of neighbours, 0 or more, or None for all, not {evidence}.")

        def scored() -> Iterator[tuple[Scores, float | Tensor]]:
            for batch, embeddings in self.method.embed_ahead(in_batches(texts, self.batch)):
                with self.method.first():
                    scores = self.score(batch, embeddings=embeddings)
                    chosen = self.decision_thresholds(scores, threshold, per_label)
                yield scores, chosen

        def finish(batch: tuple[Scores, float | Tensor]) -> list[Prediction]:
            return list(self.decide(*batch, min_labels, evidence))

        for found in self.method.finish_behind(scored(), finish):
            yield from found

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts without deciding on labels, by every part and every combination; see `Method.scores`."""
        check_list(texts, "scores")
        if not len(texts):  # an array has no truth value
            raise DataError("There are no texts to score. Give at least one.")
        batches: list[Scores] = []
        done = 0
        for batch, embeddings in self.method.embed_ahead(in_batches(texts, self.batch)):
            own = None if own_ids is None else own_ids[done : done + len(batch)]
            with self.method.first():
                scores = self.score(batch, own, embeddings)
                batches.append(replace(scores, alternatives=self.method.alternatives(scores)).cpu())
            done += len(batch)
        return concatenate(batches)

    def score(
        self,
        texts: Sequence[str],
        own_ids: Sequence[str | None] | None = None,
        embeddings: Tensor | None = None,
    ) -> Scores:
        """Score texts in one batch, on the method's device; `embeddings` come from `Method.embed_ahead`."""
        if embeddings is None:
            scores = self.method.scores(texts, own_ids)
        else:
            scores = cast(Retriever, self.method).scores(texts, own_ids, embeddings)
        return checked(merge_scores(scores, self.merges()))

    def later_thresholds(self, scores: Scores) -> dict[str, Tensor]:
        """Return each part's thresholds for the labels in these scores that were added after training, in order."""
        known = len(self.labels)
        return self._new.thresholds(scores.final[:, known:], scores.names[known:])

    def defer_estimates(self, seconds: float, share: float) -> None:
        """Never let a request wait for the thresholds of later labels; see `NewLabels.defer`."""
        self._new.defer(seconds, share)

    def label_counts(self) -> dict[str, int]:
        """Count the documents of each label in the datastore, or in the training split if there is no datastore.

        Labels that no document carries any more are left out if they were added after training or merged.
        """
        if self.method.store is not None:
            counts, merged = self.method.store.label_counts(), self.merges()
            return {
                label: count
                for label, count in counts.items()
                if count or (label in self.labels and label not in merged)
            }
        return self.training_counts()

    def training_counts(self) -> dict[str, int]:
        """Return the number of documents of each label that the model was trained or refitted on."""
        return dict(zip(self.labels.names, self.card.corpus["label_counts"], strict=True))

    def label_thresholds(self, labels: Sequence[str]) -> list[float]:
        """Return the thresholds that decide labels; those added after training have estimated ones of their own."""
        known = decision_thresholds(self.card.thresholds["final"], len(self.labels))
        tuned = [known] * len(self.labels) if isinstance(known, float) else known.tolist()
        thresholds = dict(zip(self.labels.names, tuned, strict=True))
        thresholds |= self._new.of([label for label in labels if label not in thresholds])
        return [thresholds[label] for label in labels]

    def evaluate(
        self, documents: object, *, stored: bool = False, min_labels: int = 0, scores: Scores | None = None
    ) -> Evaluation:
        """Compare predictions with labels, for documents or anything that `read_corpus` takes as a split.

        `stored` means that the documents may be in the datastore under their own ids; each one is then excluded from
        its own evidence. `scores` are those of the documents, if they were computed before.
        """
        documents = with_ids(labelled(documents, "train" if stored else "document"), self.vocabulary)
        documents = with_merges(documents, self.merges())
        own_ids = [document.id for document in documents] if stored else None
        if own_ids and not set(own_ids) & set(self.store.ids()):
            raise DataError("None of the documents' ids is in the datastore. Evaluate them without --stored.")
        scores = scores or self.scores([document.text for document in documents], own_ids)
        store = None if stored else self.method.store
        if store is not None and (copies := stored_copies(documents, scores, store)):
            log.warning(
                f"{copies_sentence(copies, len(documents))}, or use --stored (stored=True) to exclude each one from "
                "its own evidence."
            )
        if warning := nothing_known_sentence(documents, scores.names):
            log.warning(warning)
        counts = self.training_counts()
        later = self.later_thresholds(scores)
        return evaluate(scores, documents, self.card.thresholds, counts, min_labels, later=later)

    def queue(self, texts: Iterable[str | Document], *, count: int = 100) -> list[Queued]:
        """Choose the unlabelled texts that would teach the model most: uncertain, unfamiliar, and unlike each other.

        Duplicates count once. A document that is already stored, without labels, is excluded from its own evidence.
        Any number of texts can be read; only ten times `count` candidates stay in memory.
        """
        from denn.analysis.queue import queue

        check_list(texts, "queue")
        return queue(self, texts, count)

    def audit(
        self, documents: Sequence[Document] | None = None, *, count: int = 100, progress: Progress | None = None
    ) -> list[Suspect]:
        """Find documents whose labels look wrong, in the datastore or among those given, most suspicious first.

        Each document is judged without what its own labels taught the model. Rejected labels are never suggested, and
        stored documents whose labels were confirmed (`Datastore.relabel`) are skipped until they change.
        """
        from denn.analysis.audit import audit

        given = None if documents is None else with_ids(documents, self.vocabulary)
        return audit(self, given, count, progress)

    @property
    def store(self) -> Datastore:
        """The datastore; a ConflictError if the method has none. See `Datastore` for its operations."""
        if self.method.store is None:
            raise ConflictError(
                f"The method {self.card.method!r} keeps no datastore. Train with a method that does, such as 'denn'."
            )
        return self.method.store

    def add(self, documents: object, *, source: str = "") -> list[str]:
        """Add labelled documents to the datastore durably and return their ids; the next prediction uses them.

        Takes documents, or anything that `read_corpus` takes as a split. Labels may be new, or names in the vocabulary,
        which become ids. The history records `source` as the origin of the documents.
        """
        read = with_ids(labelled(documents, part=None), self.vocabulary)  # the store assigns missing ids
        return self.store.add(read, self.embed([document.text for document in read]), source=source)

    def label_warning(self, labels: Iterable[str]) -> str | None:
        """Return a warning about labels of added documents: some were merged, or cannot be predicted yet."""
        labels = list(dict.fromkeys(labels))
        if merged := next((label for label in labels if label in self.vocabulary.replaced), None):
            return (
                f"The label {merged!r} was merged into {self.vocabulary.replaced[merged]!r}, but documents have it "
                "again, so the model predicts it again. Merge it once more if this was not intended."
            )
        if "neighbours" in self.card.parameters.get("witnesses", ("neighbours",)):
            return None
        new = [label for label in labels if label not in self.labels]
        if not new:
            return None
        more = f" (and {len(new) - 1:,} more)" if len(new) > 1 else ""
        return (
            f"The model cannot predict the new label {new[0]!r}{more} yet, because it does not use the witness "
            "'neighbours'. Run `denn refit`, or train again with that witness."
        )

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed texts for the datastore: (n,d); raise a ConflictError if the method has none."""
        _ = self.store
        return cast(Retriever, self.method).embed(texts)

    def remove(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents from the datastore and return how many were removed; see `Datastore.remove`."""
        return self.store.remove(which, source=source, everything=everything)

    def forget(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Permanently delete documents, including validation documents, and return how many; see `Datastore.forget`."""
        return forget(self.folder, self.store, which, source=source, everything=everything)

    def rename_label(self, label: str, name: str) -> None:
        """Give a label another name, durably; nothing else about the model or its datastore changes.

        The label itself is its id, which stays: documents, files and `Prediction.labels` keep it, and
        `Prediction.vocabulary`, tables and pages show the name. Requests may use either.
        """
        label = self.vocabulary.id(label)
        known = self._known_labels()
        check_known([label], known)
        self._edit(lambda vocabulary: renamed(vocabulary, known, label, name))

    def merge_labels(self, labels: Sequence[str], into: str, *, source: str = "") -> int:
        """Give all documents of some labels another label instead, as one change; return how many documents changed.

        Until a refit, the label gets the highest score of itself and those merged into it, and they are no longer
        predicted. Undoing the change in the datastore's history undoes the merge.
        """
        check_list(labels, "merge_labels")
        gone, kept = self.vocabulary.ids(labels), self.vocabulary.id(into)
        check_known([*gone, kept], self._known_labels())
        check_mergeable(gone, kept, self.store)
        # First: a merge without its change can be repeated, but a change without its merge would still be predicted.
        self._edit(lambda vocabulary: merged(vocabulary, gone, kept))
        before = self.store.last_change
        count = self.store.relabel(Where(labels=gone), add=[kept], drop=gone, source=source)
        if (change := self.store.last_change) != before:
            self._edit(lambda vocabulary: merged(vocabulary, gone, kept, change))
        return count

    def merges(self) -> dict[str, str]:
        """Return merged labels, each with the label that stands for it; see `merge_labels`."""
        return self._merges.of(self.vocabulary, self.method.store)

    def _known_labels(self) -> tuple[str, ...]:
        stored = () if self.method.store is None else self.method.store.labels
        return tuple(dict.fromkeys((*self.labels.names, *stored)))

    def _edit(self, change: Callable[[Vocabulary], Vocabulary]) -> None:
        if self.folder is None:
            raise BundleError("This model has no folder yet. Load it with denn.load, then change its labels.")
        card, self.vocabulary = edit(self.folder, self.card.created, change)
        self.card = self.card.model_copy(update={"digests": card.digests})

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = True,
        revision: str | None = None,
        license: str | None = None,
        token: str | None = None,
        message: str = "Upload a denn model",
    ) -> str:
        """Upload the model with its texts to the Hugging Face hub, privately by default; see `denn.sharing.push`."""
        from denn.sharing import push

        if self.folder is None:
            raise BundleError("This model has no folder yet. Load it with denn.load, then push it.")
        return push(
            self.folder, name, private=private, revision=revision, license=license, token=token, message=message
        )

    def batch(self) -> int:
        """Return how many texts to score at a time: fewer if the datastore has very many labels."""
        labels = len(self.labels if self.method.store is None else self.method.store.labels)
        return batch_size(labels)

    def decision_thresholds(
        self, scores: Scores, threshold: float | None = None, per_label: bool = False
    ) -> float | Tensor:
        """Return the thresholds for these scores: `threshold` or the tuned ones; one number, or one per label."""
        _check_threshold(threshold)
        if threshold is not None:
            return threshold
        later = self.later_thresholds(scores)["final"]
        return decision_thresholds(self.card.thresholds["final"], len(scores.names), later, per_label)

    def decide(
        self, scores: Scores, threshold: float | Tensor, min_labels: int = 0, evidence: int | None = None
    ) -> Iterator[Prediction]:
        """Turn the scores of a batch into predictions; see `predict`."""
        if not isinstance(threshold, int | float):
            threshold = threshold.to(scores.final.device)
        return predictions(self.method, scores, decide(scores.final, threshold, min_labels), evidence, self.vocabulary)

    def neighbours(self, scores: Scores, limit: int | None) -> list[tuple[Neighbour, ...]]:
        """Fetch the texts of the neighbours, leaving out documents that were removed meanwhile."""
        return neighbours_with_texts(self.method.store, scores.neighbours, len(scores.final), limit)


def load(
    path: str | Path, *, device: str | None = None, precision: str | None = None, revision: str | None = None
) -> Model:
    """Load a model from its folder, or from the Hugging Face hub by its name there, checking digests and format.

    A folder always wins over a name; `revision` is a branch, tag or commit on the hub.

    `device` (auto, cpu, cuda or cuda:0) and `precision` (auto, float32, bfloat16 or int8) default to those used in
    training. With precision auto, a CPU predicts in int8 if that is faster and loses at most 0.1 points of micro-F1 on
    the model's validation documents, which is measured once.
    """
    folder = locate(path, revision)
    model = Model(*undisturbed(folder, lambda: load_parts(folder, device, precision)))
    model.folder = folder
    return model


def _check_threshold(threshold: float | None) -> None:
    if threshold is not None and not 0 <= threshold <= 1:
        raise ConfigError(f"The threshold must be a number from 0 to 1, not {threshold}.")

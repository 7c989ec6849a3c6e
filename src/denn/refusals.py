"""What training refuses: a corpus without labels, a folder in use or with another model, a poor model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from denn import bundle
from denn.core.metrics import most_frequent_f1, multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.errors import DataError, StoreError, TrainingError
from denn.locks import alone
from denn.prediction_types import Scores
from denn.stores.address import ELSEWHERE, FILE
from denn.stores.embedded.sqlite import version
from denn.stores.rules import check_labels
from denn.types import Corpus, Document, LabelSpace
from denn.validation import changing, lock_of
from denn.wording import counted


def check_corpus(corpus: Corpus) -> None:
    """Reject a corpus that cannot be trained on or stored, before spending any time on it."""
    if not any(document.labels for document in corpus.train):
        raise DataError(f"None of the {len(corpus.train)} training documents has a label. Add labels to some of them.")
    names = corpus.labels.names
    broken = [name for name in names if name.splitlines() != [name]]
    if broken:
        raise DataError(f"Got the label {broken[0]!r}, expected a name on one line.")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"Got the label {twice[0]!r} twice, expected different names. Rename or remove one.")
    stored = {label for document in corpus.train for label in (*document.labels, *document.rejected)}
    check_labels([*names, *sorted(stored - set(names))])
    ids = Counter(document.id for document in corpus.train if document.id is not None)
    if repeated := [id for id, count in ids.items() if count > 1]:
        raise DataError(f"Two training documents have the id {repeated[0]!r}; expected unique ids.")


@dataclass(frozen=True)
class Existing:
    """An existing model in the output folder of a training run."""

    description: str  # one sentence
    corpus: str  # the name of what it was trained on
    loss: str  # what would be lost with it, or empty

    @property
    def refusal(self) -> str:
        """The error message without --replace."""
        return f"{self.description} Choose another --out, or pass --replace (replace=True)."


def existing_model(out: str | Path) -> Existing | None:
    """Return the model that training to this folder would replace; raise a TrainingError for other content."""
    folder = Path(out).resolve()
    if not folder.parent.is_dir():
        return None
    with locked(folder):
        return model_in(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other training runs out of a folder, and refits away from the model in it, if there is one."""
    with ExitStack() as held:
        beside = folder.with_name(f".{folder.name}.lock")
        if held.enter_context(alone(beside)) is None:
            raise TrainingError(f"Another training run is writing to {folder}. Wait for it, or choose another --out.")
        bundle.recover(folder)
        if (folder / "bundle.json").is_file() and lock_of(folder) != beside:
            held.enter_context(changing(folder))
        yield


def model_in(folder: Path) -> Existing | None:
    """Describe the model in a folder that the caller has locked; raise a TrainingError for other content."""
    if not bundle.is_bundle_or_free(folder):
        raise TrainingError(f"{folder} exists and is not a model; expected a new folder. Choose another --out.")
    if not (folder / "bundle.json").is_file():
        return None
    (words, corpus), loss = bundle.glance(folder), _loss(folder)
    return Existing(f"{folder} already contains a model ({words}){loss and '; ' + loss}.", corpus, loss)


def _loss(folder: Path) -> str:
    """Say what replacing the model would lose of its datastore, if anything."""
    own, elsewhere = folder / "store" / FILE, folder / "store" / ELSEWHERE
    if elsewhere.is_file():
        return "it uses a datastore elsewhere, which a new model would not use"
    try:
        changed = own.is_file() and version(own) > 1
    except StoreError:
        return "its datastore cannot be read"
    return "its datastore has changed since training, and a new model would lose the changes" if changed else ""


def why_poor(scores: Scores, documents: Sequence[Document], counts: Mapping[str, int]) -> str | None:
    """Return why a model is poor: no better on validation than the best constant answer; None if it is better.

    Its micro-F1 is measured at its best threshold, whichever metric the model's own thresholds are tuned for.
    """
    gold = LabelSpace(scores.names).matrix(documents)
    k, constant = most_frequent_f1(torch.tensor([counts.get(name, 0) for name in scores.names]), gold)
    own = multilabel_scores(decide(scores.final, tune_global(scores.final, gold)), gold)["micro_f1"]
    if constant in (0, 1) or own > constant:  # no labels to compare with, or nothing to beat
        return None
    given = "most frequent label" if k == 1 else f"{k} most frequent labels"
    return (
        f"The model was not written: its micro-F1 is {100 * own:.1f} on "
        f"{counted(len(documents), 'held-out document')}, and always predicting the {given} gets "
        f"{100 * constant:.1f}. Run the same command with more epochs or time, or with --restart and a lower learning "
        "rate, more documents per label or --method br. Use --allow-poor to write the model anyway."
    )

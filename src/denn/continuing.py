"""Continue training from a model: with its weights, labels, settings and, on request, its stored documents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from denn.data.vocabularies import with_vocabulary
from denn.errors import ConfigError
from denn.model import Model, load
from denn.protocols import Progress
from denn.types import Corpus, Document, LabelSpace
from denn.wording import counted

OF_THE_RUN = ("device", "effort", "time_budget")  # parameters of an earlier command, not of its model


@dataclass(frozen=True)
class Origin:
    """The model that training continues from."""

    folder: Path
    parameters: Mapping[str, Any]  # used unless others are given
    facts: Mapping[str, object]  # for the bundle
    digest: str  # digest of its bundle.json, which contains the digests of all other files


def open_origin(
    path: str | Path, corpus: Corpus, method: str, given: Mapping[str, Any], with_store: bool, progress: Progress
) -> tuple[Origin, Corpus]:
    """Open a model to continue from; return it and the corpus, with the model's labels first."""
    folder = Path(path).resolve()
    with load(folder) as model:
        if not model.method.can_continue or method != model.card.method:
            raise ConfigError(
                f"{path} was trained with the method {model.card.method!r}; only a model of the method 'denn' can be "
                "continued, with the same method."
            )
        own = {name: value for name, value in model.card.parameters.items() if name not in OF_THE_RUN}
        for name in ("encoder", "pooling"):
            if given.get(name) not in (None, own[name]):
                raise ConfigError(
                    f"Got {name} = {given[name]!r} with a model to continue from, whose encoder cannot change. Leave "
                    f"out {name}."
                )
        corpus = _joined(with_vocabulary(corpus, corpus.vocabulary or model.vocabulary), model, with_store, progress)
    trained = model.card.corpus
    facts = {"corpus": trained["name"], "train": trained["train"], "created": model.card.created}
    digest = hashlib.sha256((folder / "bundle.json").read_bytes()).hexdigest()
    return Origin(folder, own, {"continued_from": facts}, digest), corpus


def _joined(corpus: Corpus, model: Model, with_store: bool, progress: Progress) -> Corpus:
    """Return the corpus with the model's labels first, and with its stored documents if requested.

    Stored documents with a text or an id of the corpus are left out. An id that denn assigned says nothing, because
    every file without ids is numbered alike; such documents get another one.
    """
    parts = (corpus.train, corpus.valid, corpus.test)
    texts, ids = {d.text for part in parts for d in part}, {d.id for d in corpus.train if d.id is not None}
    validating, seen, more = {d.text for d in corpus.valid}, 0, list[Document]()
    for documents, _ in model.store.export():
        seen += sum(document.text in validating for document in documents)
        more += [one for one in documents if one.text not in texts and not (one.id in ids and not _assigned(one.id))]
    if seen:
        progress.note(
            f"{seen:,} of {len(corpus.valid):,} validation documents may have been used to train the original model, "
            "so validation scores are too high; give new documents with --valid"
        )
    if more and with_store:
        progress.note(f"also training on {counted(len(more), 'stored document')} of the original model")
        if others := sum(one.id in ids for one in more):
            progress.note(
                f"new ids for {counted(others, 'stored document')}: the corpus has other texts with these ids"
            )
    elif more:
        progress.note(
            f"the original model's datastore has {counted(len(more), 'document')} not in the corpus; --with-store "
            "trains on the datastore, too"
        )
    stored = [replace(one, id=None) if one.id in ids else one for one in more]  # the new datastore assigns missing ids
    train = [*corpus.train, *(stored if with_store else ())]
    return replace(corpus, train=train, labels=_labels(model.labels, corpus.labels, train, progress))


def _assigned(id: str | None) -> bool:
    """Return whether an id looks like those that denn gives to training documents without one."""
    return id is not None and id.startswith("train-") and id.removeprefix("train-").isdecimal()


def _labels(old: LabelSpace, given: LabelSpace, train: Sequence[Document], progress: Progress) -> LabelSpace:
    """Append the corpus's new labels to the model's own."""
    carried = dict.fromkeys(label for document in train for label in document.labels)
    new = [name for name in dict.fromkeys((*given.names, *carried)) if name not in old]
    lost = sum(name not in carried for name in old.names)
    if new:
        progress.note(f"{counted(len(new), 'new label')}")
    if lost:
        progress.note(f"the model may lose {counted(lost, 'label')} for lack of training documents")
    return LabelSpace((*old.names, *new))

"""Update a model in memory after a refit: load what the refit learnt, and share the encoder and datastore."""

from __future__ import annotations

from pathlib import Path

from denn.bundle import read, read_card, undisturbed
from denn.bundle_card import Card
from denn.errors import BundleError
from denn.model import Model
from denn.registry import METHODS, lookup
from denn.vocabulary_file import read_vocabulary, vocabulary_in


def renew(model: Model) -> Model | None:
    """Return the folder's refitted model, sharing this model's encoder and datastore; None if nothing is new.

    Both models can be used. Call `retire` on the old one when it is no longer needed; `close` would close the
    datastore.
    """
    folder = model.folder
    return None if folder is None else undisturbed(folder, lambda: _renew(model, folder))


def _renew(model: Model, folder: Path) -> Model | None:
    card = read_card(folder)
    if _origin(card) != _origin(model.card):
        raise BundleError(f"{folder} now contains another model, trained at {card.created}. Load it to use it.")
    vocabulary = model.vocabulary
    if names := _vocabulary(card) != _vocabulary(model.card):
        vocabulary = read_vocabulary(folder, card.digests)
    if (card.learnt, card.refitted) == (model.card.learnt, model.card.refitted):
        return _as(folder, Model(model.method, model.labels, _updated(card, model), vocabulary)) if names else None
    card, labels = read(folder, known=model.card)
    learnt = folder / card.learnt if card.learnt else None
    kind = lookup(METHODS, card.method, "method")
    method = kind.load(folder, model.method.parameters, labels, learnt, shared=model.method)
    return _as(folder, Model(method, labels, _updated(card, model), vocabulary))


def _updated(card: Card, model: Model) -> Card:
    return card.model_copy(update={"parameters": model.card.parameters})


def _as(folder: Path, model: Model) -> Model:
    model.folder = folder
    return model


def _vocabulary(card: Card) -> dict[str, str]:
    """Return the file of the vocabulary with its digest, if there is one."""
    name = vocabulary_in(card.digests)
    return {} if name is None else {name: card.digests[name]}


def _origin(card: Card) -> tuple[object, ...]:
    """Return what no refit changes: the method, the time of training, and the files of the encoder."""
    encoder = {name: digest for name, digest in card.digests.items() if name.startswith("encoder/")}
    return card.method, card.created, encoder

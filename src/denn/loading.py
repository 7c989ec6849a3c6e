"""Find a model's folder and load its parts: method, labels, card and vocabulary."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from denn.bundle import read, read_labels
from denn.bundle_card import Card
from denn.config import make_recipe
from denn.errors import BundleError, ConfigError
from denn.hub import is_hub_name
from denn.protocols import Method
from denn.registry import METHODS, lookup
from denn.types import LabelSpace
from denn.vocabulary import Vocabulary
from denn.vocabulary_file import read_vocabulary

log = logging.getLogger(__name__)


class Loaded(NamedTuple):
    """The parts of a model, in memory."""

    method: Method
    labels: LabelSpace
    card: Card
    vocabulary: Vocabulary


def locate(path: str | Path, revision: str | None) -> Path:
    """Return the folder of a model: the path itself, or a download if it is a name on the hub."""
    if isinstance(path, str) and is_hub_name(path):
        from denn.sharing import fetch

        return fetch(path, revision)
    if revision is not None:
        raise ConfigError(f"Got revision={revision!r}, but {path} is not a name on the hub. Leave it out.")
    return Path(path)


def load_parts(folder: Path, device: str | None, precision: str | None) -> Loaded:
    """Load the parts of a model from its folder; see `denn.load`."""
    card, labels = read(folder)
    kind = lookup(METHODS, card.method, "method")
    unsaid = getattr(kind.Parameters, "unsaid", {}).get(card.format, {})
    if unsaid:
        log.info(
            "%s was made by an earlier version of denn and works as it did then; train again to use more witnesses.",
            folder,
        )
    trained = make_recipe(card.method, {**unsaid, **card.parameters}).as_dict()["parameters"]
    card = card.model_copy(update={"parameters": trained})  # with defaults for those that it leaves out
    if trained.get("device") not in (None, "cpu"):  # this machine may not have that GPU
        trained = {**trained, "device": "auto"}
    exact = None if precision == "int8" else precision  # int8 is chosen after loading
    if exact == "auto" and "precision" not in trained:  # a method without an encoder
        exact = None
    given = {name: value for name, value in (("device", device), ("precision", exact)) if value is not None}
    parameters = make_recipe(card.method, {**trained, **given}).parameters
    learnt = {"learnt": folder / card.learnt} if card.learnt else {}  # only refitted methods take this argument
    method: Method = kind.load(folder, parameters, labels, **learnt)
    try:
        vocabulary = read_vocabulary(folder, card.digests)
        _choose_precision(method, card, folder, precision)
        first = read_labels(folder).names if learnt else labels.names  # later ones may have left the datastore
        if method.store is not None and method.store.labels[: len(first)] != first:
            raise BundleError(
                f"{folder}: the datastore's labels do not match labels.txt. Restore the folder from a copy."
            )
    except BaseException:
        if method.store is not None:
            method.store.close()
        raise
    return Loaded(method, labels, card, vocabulary)


def _choose_precision(method: Method, card: Card, folder: Path, precision: str | None) -> None:
    """Predict in 8-bit integers if that was requested, or if precision auto favours it."""
    if precision not in ("auto", "int8"):
        return
    from denn.int8 import prefer_int8, require_int8

    (require_int8 if precision == "int8" else prefer_int8)(method, card, folder)

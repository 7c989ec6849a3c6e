"""Where the served model and its datastore are."""

from __future__ import annotations

from pathlib import Path

from denn.model import Model
from denn.stores.address import of_model


def folder_of(model: Model) -> Path:
    """Return the folder that a model was loaded from."""
    assert model.folder is not None
    return model.folder.resolve()


def address_of(model: Model) -> str:
    """Return the address of a model's datastore, as its folder names it now; empty if the model has none."""
    if model.folder is None or model.method.store is None:
        return ""
    return str(of_model(folder_of(model)))

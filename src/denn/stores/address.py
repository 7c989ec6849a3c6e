"""Addresses of datastores: a model's folder, a file, a database, or memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from denn.errors import StoreError
from denn.registry import STORES, lookup
from denn.types import Datastore

FILE = "store.sqlite"  # in the folder `store` of a model
ELSEWHERE = "address"  # a file beside it where the store is not in the model's folder


def kind_of(address: str | Path) -> str:
    """Return the registered name of the kind of store that an address speaks of."""
    text = str(address)
    if text == "memory:":
        return "memory"
    scheme, found, _ = text.partition("://")
    if not found:
        return "embedded"
    if scheme in ("postgresql", "postgres"):
        return "postgres"
    raise StoreError(f"got the address {text!r}, expected a path, postgresql://…, or memory:.")


def create_store(address: str | Path, dimension: int, labels: tuple[str, ...] = (), **options: Any) -> Datastore:
    """Make an empty store at an address."""
    store: Datastore = lookup(STORES, kind_of(address), "store").create(address, dimension, labels, **options)
    return store


def open_store(address: str | Path, read_only: bool = False, **options: Any) -> Datastore:
    """Open the store at an address; that of a model where the address is its folder."""
    if kind_of(address) == "embedded" and Path(address).is_dir():
        address = of_model(Path(address))
    store: Datastore = lookup(STORES, kind_of(address), "store").open(address, read_only, **options)
    return store


def of_model(folder: Path) -> str | Path:
    """Return where the datastore of a model is."""
    elsewhere = folder / "store" / ELSEWHERE
    if elsewhere.is_file():
        return elsewhere.read_text(encoding="utf-8").strip()
    if not (folder / "store").is_dir():
        raise StoreError(f"the folder {folder} has no datastore. Expected a model of a method that keeps one.")
    return folder / "store" / FILE


def use(folder: Path, address: str | Path | None) -> None:
    """Let a model use the store at an address from the next loading on; None is the one in its own folder.

    The store must have the model's width and begin with its labels.
    """
    elsewhere = folder / "store" / ELSEWHERE
    own = folder / "store" / FILE
    with open_store(own if address is None else address, read_only=True) as new, open_store(folder, True) as old:
        trained = (folder / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1]
        if new.dimension != old.dimension:
            raise StoreError(f"got a datastore of width {new.dimension}, expected {old.dimension}. Copy the model's.")
        if list(new.labels[: len(trained)]) != trained:
            raise StoreError(
                "the datastore does not begin with the model's labels. Copy the model's store there first."
            )
    if address is None:
        elsewhere.unlink(missing_ok=True)
        return
    beside = elsewhere.with_name(ELSEWHERE + ".part")
    beside.write_text(f"{address if '://' in str(address) else Path(address).resolve()}\n", encoding="utf-8")
    beside.replace(elsewhere)

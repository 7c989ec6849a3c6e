"""Addresses of datastores: a model's folder, a file, a database, or memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from denn.datastore import Datastore
from denn.errors import StoreError
from denn.registry import STORES, lookup
from denn.stores.trust import UntrustedError, is_trusted, trust

FILE = "store.sqlite"  # in the folder `store` of a model
ELSEWHERE = "address"  # a file next to it if the store is outside the model's folder


def kind_of(address: str | Path) -> str:
    """Return the registered name of the kind of store at an address."""
    text = str(address)
    if text == "memory:":
        return "memory"
    scheme, found, _ = text.partition("://")
    if not found:
        return "embedded"
    if scheme in ("postgresql", "postgres"):
        return "postgres"
    if scheme in STORES.added:
        return scheme
    raise StoreError(f"got the address {text!r}, expected a path, postgresql://…, or memory:.")


def create_store(address: str | Path, dimension: int, labels: tuple[str, ...] = (), **options: Any) -> Datastore:
    """Create an empty store at an address."""
    store: Datastore = lookup(STORES, kind_of(address), "store").create(address, dimension, labels, **options)
    return store


def open_store(address: str | Path, read_only: bool = False, **options: Any) -> Datastore:
    """Open the store at an address, or the store of a model if the address is its folder."""
    if kind_of(address) == "embedded" and Path(address).is_dir():
        address = of_model(Path(address))
    store: Datastore = lookup(STORES, kind_of(address), "store").open(address, read_only, **options)
    return store


def of_model(folder: Path) -> str | Path:
    """Return the address of a model's datastore; one outside its folder must be trusted on this machine."""
    elsewhere = folder / "store" / ELSEWHERE
    if elsewhere.is_file():
        address = _read_address(elsewhere)
        if not is_trusted(address):
            raise UntrustedError(folder, address)
        return address
    if not (folder / "store").is_dir():
        raise StoreError(f"the folder {folder} has no datastore. Expected a model of a method that keeps one.")
    return folder / "store" / FILE


def use(folder: Path, address: str | Path | None) -> None:
    """Let a model use the store at an address from the next load on; None means the one in its own folder.

    The store must have the same dimension as the model's own and begin with its labels. The store used so far is not
    opened, because it may no longer exist.
    """
    elsewhere, own = folder / "store" / ELSEWHERE, folder / "store" / FILE
    if address is None and not own.is_file():
        raise StoreError(f"the folder {folder} no longer has its own datastore. Copy one to {own} first.")
    with open_store(own if address is None else address, read_only=True) as new:
        if address is not None and own.is_file():
            with open_store(own, read_only=True, index="exact") as old:
                if new.dimension != old.dimension:
                    raise StoreError(f"got a datastore of dimension {new.dimension}, expected {old.dimension}.")
        trained = (folder / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1]
        if list(new.labels[: len(trained)]) != trained:
            raise StoreError(
                "the datastore does not begin with the model's labels. Copy the model's store there first."
            )
    if address is None:
        elsewhere.unlink(missing_ok=True)
        return
    written = str(address) if "://" in str(address) else str(Path(address).resolve())
    trust(written)
    beside = elsewhere.with_name(ELSEWHERE + ".part")
    beside.write_text(f"{written}\n", encoding="utf-8")
    beside.replace(elsewhere)


def _read_address(file: Path) -> str:
    """Read the one line with the address of a model's datastore."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = []
    if len(lines) != 1 or not lines[0].isprintable() or not lines[0].strip():
        raise StoreError(f"{file} is damaged; expected one address. Set it with `denn store use`.")
    return lines[0].strip()

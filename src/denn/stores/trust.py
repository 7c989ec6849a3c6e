"""Datastores outside a model's folder that this user trusts: a model from elsewhere must not choose them."""

from __future__ import annotations

import os
from pathlib import Path

from denn.errors import StoreError

VARIABLE = "DENN_TRUSTED_STORES"  # environment variable with more addresses, separated by white space, for containers


class UntrustedError(StoreError):
    """A model names a datastore that is not trusted on this machine."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        super().__init__(
            f"the model {folder} names the datastore {address!r}, which is not trusted on this machine; opening it "
            f"may send your database password there. If you trust it, run: denn store use {folder} '{address}'"
        )


def config_folder() -> Path:
    """Return the folder for this user's settings: $DENN_CONFIG, or `denn` in the user's configuration folder."""
    if given := os.environ.get("DENN_CONFIG"):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "denn"


def trust(address: str) -> None:
    """Allow models to use the datastore at an address from now on."""
    if is_trusted(address):
        return
    try:
        file = _file()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as out:
            out.write(f"{address}\n")
    except (OSError, RuntimeError) as error:
        raise StoreError(
            f"cannot save that {address} is trusted ({error}). Set {VARIABLE}={address} instead."
        ) from error


def is_trusted(address: str) -> bool:
    """Return whether models may use the datastore at an address."""
    if address in os.environ.get(VARIABLE, "").split():
        return True
    try:
        return address in _file().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, RuntimeError):  # nothing was trusted yet, or there is no home folder
        return False


def _file() -> Path:
    return config_folder() / "trusted-stores"

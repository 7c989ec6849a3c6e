"""The bundle on disk: one folder that holds a model, written beside and renamed, checked when it is read."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from denn import __version__
from denn.errors import BundleError
from denn.types import LabelSpace

log = logging.getLogger(__name__)

FORMAT = 2
PATIENCE = 100  # hundredths of a second
VERSIONED = ("torch", "transformers", "tokenizers", "numpy")


class Thresholds(BaseModel):
    """Decision thresholds of one score, tuned on validation."""

    model_config = ConfigDict(frozen=True)

    overall: float = 0.5
    per_label: tuple[float, ...]  # one for each label of labels.txt


class Card(BaseModel):
    """What bundle.json says."""

    model_config = ConfigDict(frozen=True)

    format: Literal[2] = 2
    method: str
    parameters: dict[str, Any]
    corpus: dict[str, Any]
    thresholds: dict[str, Thresholds]  # "final" and each part of the score
    metrics: dict[str, Any]  # on validation
    training: dict[str, Any]
    digests: dict[str, str]  # sha256 of every file but the datastore, which lives on
    versions: dict[str, str]
    created: str


def versions() -> dict[str, str]:
    """Return the versions of the packages that shape a model."""
    return {"denn": __version__, **{name: metadata.version(name) for name in VERSIONED}}


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of a bundle but bundle.json and the datastore."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != "bundle.json" and not name.startswith("store/"):
            with path.open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def write_card(folder: Path, card: Card) -> None:
    """Write bundle.json, the last file of a new bundle; who may read it may read all files."""
    file = folder / "bundle.json"
    file.write_text(card.model_dump_json(indent=1), encoding="utf-8")
    for path in folder.rglob("*.safetensors"):  # written for their owner alone
        path.chmod(file.stat().st_mode)


def write_labels(folder: Path, labels: LabelSpace) -> None:
    """Write labels.txt, one name a line in column order."""
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in labels.names), encoding="utf-8")


def read(folder: Path) -> tuple[Card, LabelSpace]:
    """Read and check a bundle; what is wrong with it is said in one sentence."""
    for _ in range(PATIENCE):  # between its two renames a replacement has no folder for a moment
        if folder.exists() or not _old(folder).exists():
            break
        time.sleep(0.01)
    recover(folder)
    file = folder / "bundle.json"
    if not file.is_file():
        what = "no such folder" if not folder.exists() else "no bundle.json in it"
        raise BundleError(f"{folder} is no model: {what}. Expected a folder written by `denn train … --out {folder}`.")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT:
            raise BundleError(
                f"{folder} has the bundle format {content.get('format')!r}, this denn reads {FORMAT}. "
                "Train again, or load it with the denn version in its bundle.json."
            )
        card = Card.model_validate(content)
    except (json.JSONDecodeError, UnicodeDecodeError, ValidationError, AttributeError) as error:
        raise BundleError(f"{file} is damaged ({type(error).__name__}). Restore the folder or train again.") from error
    _check_digests(folder, card)
    for name, here in versions().items():
        if (there := card.versions.get(name, "")).split(".")[0] != here.split(".")[0]:
            log.warning(
                "%s was written with %s %s, here is %s; scores may differ.", folder, name, there or "none", here
            )
    return card, LabelSpace(tuple((folder / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1]))


def _check_digests(folder: Path, card: Card) -> None:
    """Compare every file with the digest it was written with."""
    found = digests(folder)
    for name, expected in card.digests.items():
        if found.get(name) != expected:
            state = "is missing" if name not in found else "has changed since it was written"
            raise BundleError(f"{folder}: {name} {state}. Restore the folder from a copy or train again.")


def replace(new: Path, target: Path) -> None:
    """Put a finished folder in the place of an older one; `recover` mends a crash between the two renames."""
    _sync(new)
    old = _old(target)
    if target.exists():
        target.rename(old)
    new.rename(target)
    _sync_folder(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(target: Path) -> None:
    """Bring back the older folder where a crash left it moved aside, and clear what a finished replacement left."""
    old = _old(target)
    if old.exists() and not target.exists():
        old.rename(target)
    elif old.exists():
        shutil.rmtree(old, ignore_errors=True)


def _old(target: Path) -> Path:
    target = target.resolve()  # "." has no name
    return target.with_name(f".{target.name}.replaced")


def _sync(folder: Path) -> None:
    """Make every file of a folder durable."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_bundle_or_free(folder: Path) -> bool:
    """Say whether a model may be written here: nothing there, an empty folder, or an older bundle."""
    if not folder.exists():
        return True
    return folder.is_dir() and ((folder / "bundle.json").is_file() or not any(folder.iterdir()))

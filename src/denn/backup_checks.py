"""Check backups, models and datastores: whether they are complete, undamaged, and belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from denn.bundle import read, read_labels, settle
from denn.durable import digest_of
from denn.errors import BundleError, StoreError
from denn.protocols import Progress
from denn.stores.address import FILE, kind_of, of_model
from denn.stores.checking import Findings
from denn.stores.embedded import transfer
from denn.stores.embedded.checking import check as check_file
from denn.types import Stage
from denn.untrusted import MOST_JSON, read_object

FORMAT = 1
MANIFEST = "backup.json"
FACTS = ("dimension", "documents", "labels", "change")
OTHER = "Use another backup."
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Manifest(BaseModel):
    """The content of backup.json."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    created: str  # ISO 8601
    denn: str  # version
    store_format: PositiveInt
    dimension: PositiveInt
    documents: NonNegativeInt
    labels: NonNegativeInt
    change: NonNegativeInt  # number of the last change
    encoder: Digest | None  # of the files of the model's encoder; None if the store was addressed without a model
    files: dict[Literal["store.sqlite", "store.sqlite.faiss"], Digest]


def check(address: str, progress: Progress) -> Findings:
    """Check a backup, a model with its datastore, or the datastore at an address; see `Findings`."""
    folder = Path(address)
    settle(folder)
    if is_backup(folder):
        return _check_backup(folder, progress)
    model = folder if (folder / "bundle.json").is_file() else None
    if model is None:
        return _check_store(address, progress)
    damage = _damage_of(model)
    findings = _check_store(of_model(model), progress, model) if (model / "store").exists() else Findings()
    findings.problems = [*damage, *findings.problems]
    return findings


def _damage_of(model: Path) -> list[str]:
    """Compare the files of a model with their digests; return what is wrong."""
    try:
        read(model)
    except BundleError as error:
        return [str(error)]
    return []


def _check_store(address: str | Path, progress: Progress, model: Path | None = None) -> Findings:
    kind = kind_of(address)
    if kind == "postgres":
        from denn.stores.postgres.checking import check as check_tables

        findings = check_tables(str(address))
    elif kind == "embedded":
        if not Path(address).is_file():
            raise StoreError(f"there is neither a datastore nor a backup at {address}. Check the path.")
        findings = checked(Path(address), progress)
        if model is not None and not findings.problems and not has_labels_of(model, Path(address)):
            findings.problem(f"the labels of the datastore do not match those of {model}")
    else:
        raise StoreError(f"denn cannot check the datastore {address}, only files and PostgreSQL databases.")
    return findings


def _check_backup(folder: Path, progress: Progress) -> Findings:
    manifest = read_manifest(folder)
    findings = Findings()
    for name, digest in manifest.files.items():
        if not (folder / name).is_file():
            findings.problem(f"the backup has no {name}", OTHER)
        elif digest_of(folder / name) != digest:
            findings.problem(f"{folder / name} has changed since it was written", OTHER)
    if findings.problems:
        return findings
    findings = checked(folder / FILE, progress)
    for fact in () if findings.problems else FACTS:
        if findings.facts[fact] != getattr(manifest, fact):
            findings.problem(f"{MANIFEST} does not match {FILE}: {fact!r} differs", OTHER)
    findings.facts = {"backup": manifest.created, **findings.facts}
    return findings


def checked(path: Path, progress: Progress) -> Findings:
    """Check the file of a datastore with progress."""
    progress.start(Stage("checking"))
    return check_file(path, progress.advance)


def is_backup(folder: Path) -> bool:
    """Return whether a folder contains a backup."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Read backup.json; raise a StoreError that says what is wrong."""
    settle(folder)
    if not is_backup(folder):
        raise StoreError(f"{folder} is not a backup (no {MANIFEST}). Write one with `denn store backup`.")
    content = read_object(folder / MANIFEST, StoreError, MOST_JSON)
    if isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise StoreError(
            f"{folder} is from a newer version of denn (backup format {content['format']}; this version reads up to "
            f"{FORMAT}). Update denn."
        )
    try:
        manifest = Manifest.model_validate(content)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])[:100]
        raise StoreError(f"{folder / MANIFEST} is damaged: {where!r} has an invalid value. {OTHER}") from error
    if FILE not in manifest.files:
        raise StoreError(f"{folder / MANIFEST} is damaged: it does not name {FILE}. {OTHER}")
    return manifest


def has_labels_of(model: Path, path: Path) -> bool:
    """Return whether a datastore begins with the labels that a model was trained with."""
    trained = read_labels(model).names
    return transfer.labels_of(path)[: len(trained)] == trained

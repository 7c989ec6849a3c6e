"""Backups of a model's datastore, each a folder with the file, its index and a manifest: write and restore them."""

from __future__ import annotations

import hashlib
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from denn import __version__
from denn.backup_checks import (
    FACTS,
    MANIFEST,
    OTHER,
    Manifest,
    checked,
    has_labels_of,
    is_backup,
    read_manifest,
)
from denn.bundle import read_card, replace, settle
from denn.durable import digest_of
from denn.errors import ConflictError, StoreError
from denn.locks import alone
from denn.protocols import Progress
from denn.stores.address import FILE, kind_of, of_model
from denn.stores.embedded import index_file, transfer
from denn.stores.embedded.checking import check_index
from denn.stores.embedded.sqlite import read_meta
from denn.strict_json import dumps
from denn.types import Stage
from denn.validation import changing

log = logging.getLogger(__name__)

BLOCK = 2**22  # bytes copied between two reports of progress
OWN = "Restore it into the model that it was made from."
INDEX = index_file.beside(Path(FILE)).name


@dataclass(frozen=True)
class Place:
    """A datastore in a file, and the model that it belongs to, if any."""

    path: Path
    model: Path | None

    @classmethod
    def of(cls, address: str, doing: str) -> Place:
        """Find the file of a model's datastore, or of an address; raise a StoreError for a database."""
        model = Path(address) if (Path(address) / "bundle.json").is_file() else None
        if model is not None and doing == "restore" and not (model / "store").exists():  # lost
            return cls(model / "store" / FILE, model)
        found = address if model is None else of_model(model)
        if (kind := kind_of(found)) != "embedded":
            tool = {"back up": "pg_dump", "restore": "pg_restore"}[doing]
            hint = f" Use PostgreSQL's own {tool}; see docs/postgres.md." if kind == "postgres" else ""
            raise StoreError(f"denn can {doing} only datastores in files, not {found}.{hint}")
        if Path(found).is_dir():
            raise StoreError(f"{found} is not a model (no bundle.json). Give a model or the file of a datastore.")
        if doing == "restore" and model is None and not Path(found).exists() and Path(found).suffix != ".sqlite":
            # A misspelt model must not become a file that nobody uses.
            raise StoreError(
                f"there is no model or datastore at {found}. Check the path; a new file ends with .sqlite."
            )
        return cls(Path(found), model)

    def encoder(self) -> str | None:
        """Return the digest of the encoder that embedded the documents; None if it is unknown."""
        if self.model is None:
            return None
        digests = read_card(self.model).digests
        names = sorted(name for name in digests if name.startswith("encoder/"))
        return hashlib.sha256("".join(f"{name} {digests[name]}\n" for name in names).encode()).hexdigest()


def back_up(address: str, target: Path, progress: Progress, *, overwrite: bool = False) -> Manifest:
    """Write the datastore of a model to a new folder, in the state of one moment, while other processes change it.

    The copy is checked before the folder gets its name. A failed or interrupted backup leaves nothing behind.
    """
    place = Place.of(address, "back up")
    if not place.path.is_file():
        raise StoreError(f"there is no datastore at {place.path}. Check the path.")
    with _writing(target, overwrite) as part:
        index = part / "index"  # under its own name only if it is intact and current
        has_index = _copy_index(index_file.beside(place.path), index)  # first, so that it is not newer
        transfer.copy_file(place.path, part / FILE, progress)
        found = checked(part / FILE, progress)
        if found.problems:
            problem = found.problems[0].replace(str(part / FILE), str(place.path))
            raise StoreError(f"the datastore is damaged, so it was not backed up: {problem}")
        if has_index:
            index.rename(part / INDEX)
            state = check_index(part / FILE)
            if state.problems or state.facts["index"] != "current":
                (part / INDEX).unlink()
        facts = {name: found.facts[name] for name in FACTS}
        facts |= {"created": datetime.now(UTC).isoformat(timespec="seconds"), "denn": __version__}
        facts |= {"store_format": found.facts["format"], "encoder": place.encoder()}
        files = {file.name: digest_of(file) for file in sorted(part.iterdir())}
        manifest = Manifest.model_validate({**facts, "files": files})
        (part / MANIFEST).write_text(dumps(manifest.model_dump(), "The backup", StoreError, indent=1) + "\n")
    return manifest


@contextmanager
def _writing(target: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder to fill, which gets its name at the end, or is deleted after an error."""
    target = target.absolute()
    settle(target)
    _check_target(target, overwrite)
    part = target.with_name(f".{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target.with_name(f".{target.name}.lock")) as lock:
            if lock is None:
                raise ConflictError(f"another backup to {target} is running. Wait until it is done.")
            shutil.rmtree(part, ignore_errors=True)  # left by a process that was killed
            part.mkdir()
            try:
                yield part
                _check_target(target, overwrite)  # it may have appeared since
                replace(part, target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"the backup {target} cannot be written: {error.strerror or error}.") from error


def _check_target(target: Path, overwrite: bool) -> None:
    """Raise a ConflictError if there is a folder that must not be replaced."""
    if target.exists() and not (overwrite and is_backup(target)):
        what = "already contains a backup" if is_backup(target) else "exists and is not a backup"
        option = ", or pass --replace" if is_backup(target) else ""
        raise ConflictError(f"{target} {what}. Choose another name{option}.")


def _copy_index(source: Path, target: Path) -> bool:
    """Copy the index of a store, if there is one; a process that replaces it meanwhile does not change this copy."""
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        return False
    return True


def restore(address: str, source: Path, progress: Progress, *, with_forgotten: bool = False) -> tuple[Manifest, int]:
    """Replace the datastore of a model with a backup, all or nothing; return its manifest and the ids forgotten again.

    Documents that were forgotten since the backup stay forgotten unless `with_forgotten`. No other process may have
    the datastore open. Before anything is replaced, the digests of the backup are compared.
    """
    place = Place.of(address, "restore")
    manifest = read_manifest(source)
    _check_encoder(place, manifest, source)
    part = place.path.with_name(f"{place.path.name}.restoring")
    index = index_file.beside(part) if INDEX in manifest.files else None
    with changing(place.model) if place.model else nullcontext(), transfer.unused(place.path) as held:
        _check_dimension(held, place, manifest, source)
        try:
            place.path.parent.mkdir(parents=True, exist_ok=True)
            transfer.discard(part)  # left by a process that was killed
            for name, digest in manifest.files.items():
                _copy_verified(source / name, part.with_name(part.name + name.removeprefix(FILE)), digest, progress)
            transfer.prepare(part)
            if place.model is not None and not has_labels_of(place.model, part):
                raise ConflictError(f"the labels of {source} do not match those of {place.model}. {OWN}")
            if held is None and (place.model is not None or place.path.exists()):
                log.warning(transfer.MAY_BE_BACK)
            again = 0 if held is None or with_forgotten else transfer.forget_again(held, part)
            transfer.put_in_place(part, None if again else index, place.path, held)  # an index has forgotten vectors
        except OSError as error:
            raise StoreError(
                f"the backup could not be restored: {error.strerror or error}. The datastore was not changed."
            ) from error
        finally:
            transfer.discard(part)
    return manifest, again


def _check_encoder(place: Place, manifest: Manifest, source: Path) -> None:
    encoder = place.encoder()
    if None not in (encoder, manifest.encoder) and encoder != manifest.encoder:
        raise ConflictError(
            f"{source} was made with a different encoder than {place.model}, so its vectors do not match. {OWN}"
        )


def _check_dimension(held: sqlite3.Connection | None, place: Place, manifest: Manifest, source: Path) -> None:
    try:
        dimension = None if held is None else read_meta(held)["dimension"]
    except (sqlite3.DatabaseError, StoreError):  # the old datastore is damaged
        dimension = None
    if dimension not in (None, manifest.dimension):
        raise ConflictError(
            f"{source} has embeddings of dimension {manifest.dimension}, but {place.path} has {dimension}. {OWN}"
        )


def _copy_verified(source: Path, target: Path, digest: str, progress: Progress) -> None:
    """Copy a file of a backup; raise a StoreError if it is not the one that was written."""
    done, sha256 = 0, hashlib.sha256()
    progress.start(Stage(f"copying {source.name}", transfer.megabytes(source.stat().st_size), "megabytes"))
    with source.open("rb") as old, target.open("wb") as new:
        while block := old.read(BLOCK):
            sha256.update(block)
            new.write(block)
            done += len(block)
            progress.advance(transfer.megabytes(done))
    if sha256.hexdigest() != digest:
        raise StoreError(f"{source} has changed since it was written. {OTHER} The datastore was not changed.")

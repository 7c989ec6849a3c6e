"""Upgrade a model's folder to the formats that this version of denn writes, and undo that."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from denn.bundle import FORMATS, PART, read, read_card, write_card
from denn.durable import digest_of, sync, sync_all
from denn.errors import BundleError, ConflictError
from denn.protocols import Progress
from denn.registry import METHODS, lookup
from denn.stores.address import FILE, kind_of, of_model
from denn.stores.embedded import transfer
from denn.stores.embedded.sqlite import FORMAT as STORE_FORMAT
from denn.stores.embedded.sqlite import check_file, connect_reader, explained, prepare_writer, read_meta
from denn.strict_json import dumps
from denn.untrusted import read_object
from denn.validation import changing

KEPT = "before-upgrade"  # folder in a model with what an upgrade replaced
RECORD = "upgrade.json"
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

BUNDLE_CHANGES = {
    1: "adds the witnesses and settings that this format implies",
    2: "adds the witnesses and settings that this format implies",
    3: "changes the format number only",
}
STORE_CHANGES = {1: "adds the tables of the history", 2: "lets documents reject labels"}


class Formats(BaseModel):
    """Numbers of the formats of a model; None for a model without a datastore in a file."""

    model_config = ConfigDict(frozen=True)

    bundle: int
    store: int | None


class Record(BaseModel):
    """The content of upgrade.json: what was kept, and the last change in the datastore then."""

    model_config = ConfigDict(frozen=True)

    before: Formats
    after: Formats
    change: int | None
    files: dict[str, Digest]


@dataclass(frozen=True)
class Plan:
    """The formats of a model, and what an upgrade would change."""

    before: Formats
    after: Formats
    store: Path | None  # the file of the datastore
    change: int | None  # number of the last change in it

    @property
    def steps(self) -> list[str]:
        """Describe each change in a phrase."""
        steps = []
        if self.before.bundle != self.after.bundle:
            what = BUNDLE_CHANGES[self.before.bundle]
            steps.append(f"bundle.json, format {self.before.bundle} to {self.after.bundle}: {what}")
        if self.before.store is not None and self.before.store != self.after.store:
            what = STORE_CHANGES[self.before.store]
            steps.append(f"{FILE}, format {self.before.store} to {self.after.store}: {what}")
        return steps


def plan(folder: Path) -> Plan:
    """Find the formats of a model and of its datastore; raise if one is newer than this version of denn."""
    card, _ = read(folder)
    path = _store_of(folder)
    if path is None:
        return Plan(Formats(bundle=card.format, store=None), Formats(bundle=FORMATS[-1], store=None), None, None)
    meta = _meta(path)
    before = Formats(bundle=card.format, store=meta["format"])
    return Plan(before, Formats(bundle=FORMATS[-1], store=STORE_FORMAT), path, meta["version"])


def _store_of(folder: Path) -> Path | None:
    """Return the file of a model's datastore; None if it has none, or one in a database."""
    if not (folder / "store").is_dir():
        return None
    address = of_model(folder)
    return Path(address) if kind_of(address) == "embedded" else None


def _meta(path: Path) -> dict[str, int]:
    with explained(path), closing(connect_reader(path, transfer.PATIENCE)) as reader:
        check_file(reader, path, read_only=False)
        return read_meta(reader)


def upgrade(folder: Path, progress: Progress) -> Plan:
    """Bring a model to the current formats, and keep what this replaces in the folder `before-upgrade`.

    Datastore and bundle.json are replaced atomically, one after the other, and every version of denn that reads the new
    one of them also reads the old one of the other. An interrupted upgrade can be repeated.
    """
    with changing(folder), _writable(folder):
        found = plan(folder)
        if not found.steps:
            return found
        with _held(found) as store:
            _keep(folder, found, store, progress)
            if store is not None:
                prepare_writer(store)
            card = read_card(folder)
            implied = getattr(lookup(METHODS, card.method, "method").Parameters, "unsaid", {}).get(card.format, {})
            update: dict[str, Any] = {"format": FORMATS[-1], "parameters": {**implied, **card.parameters}}
            write_card(folder, card.model_copy(update=update))
    return found


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Turn errors of the system, such as a full disk, into a sentence."""
    try:
        yield
    except OSError as error:
        (folder / PART).unlink(missing_ok=True)
        sentence = f"{folder} cannot be written: {error.strerror or error}. Fix that, then run the same command again."
        raise BundleError(sentence) from error


@contextmanager
def _held(found: Plan) -> Iterator[sqlite3.Connection | None]:
    """Hold a datastore that is to be upgraded, which no other process may have open."""
    if found.store is None or found.before.store == found.after.store:
        yield None
        return
    with transfer.unused(found.store) as store, explained(found.store):
        yield store


def _keep(folder: Path, found: Plan, store: sqlite3.Connection | None, progress: Progress) -> None:
    """Copy what the upgrade will replace, unless an interrupted upgrade to the same formats already did."""
    kept, part = folder / KEPT, folder / f"{KEPT}.part"
    shutil.rmtree(part, ignore_errors=True)
    if (kept / RECORD).is_file():
        record = read_record(folder)
        same = record.after == found.after and (store is None or record.change == found.change)
        if same and not _changed(folder, record):
            return
    part.mkdir()
    try:
        shutil.copyfile(folder / "bundle.json", part / "bundle.json")
        if store is not None:
            transfer.copy_from(store, part / FILE, progress)
        files = {file.name: digest_of(file) for file in sorted(part.iterdir())}
        change = found.change if store is not None else None
        record = Record(before=found.before, after=found.after, change=change, files=files)
        content = dumps(record.model_dump(), "The record", BundleError, indent=1)
        (part / RECORD).write_text(content + "\n", encoding="utf-8")
        sync_all(part)
        shutil.rmtree(kept, ignore_errors=True)  # of an earlier upgrade
        part.rename(kept)
        sync(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def undo(folder: Path, *, discard: bool = False) -> Formats:
    """Put back what the last upgrade replaced; return the formats of the restored model.

    Changes of the datastore since the upgrade would be lost, so this needs `discard` if there are any.
    """
    with changing(folder), _writable(folder):
        record = read_record(folder)
        if changed := _changed(folder, record):
            raise BundleError(f"{folder / KEPT / changed} has changed since the upgrade, so it cannot be undone.")
        if read_card(folder).digests != read_card(folder / KEPT).digests:
            raise ConflictError(
                f"{folder} was refitted or changed since the upgrade, so the upgrade can no longer be undone."
            )
        if FILE in record.files:
            _put_back_store(folder, record, discard)
        part = folder / PART
        shutil.copyfile(folder / KEPT / "bundle.json", part)
        sync(part)
        part.replace(folder / "bundle.json")
        sync(folder)
        shutil.rmtree(folder / KEPT)
    return record.before


def _changed(folder: Path, record: Record) -> str | None:
    """Return the name of a kept file that is missing or has changed, if there is one."""
    kept = folder / KEPT
    files = record.files.items()
    return next((name for name, one in files if not (kept / name).is_file() or digest_of(kept / name) != one), None)


def _put_back_store(folder: Path, record: Record, discard: bool) -> None:
    path = _store_of(folder)
    if path is None:
        raise ConflictError(
            f"{folder} used a datastore in a file before the upgrade. Run `denn store use {folder} own` first."
        )
    meta = _meta(path)
    if meta["format"] == record.before.store and meta["version"] == record.change:
        return  # an interrupted undo, or an upgrade that stopped before the datastore
    if meta["version"] != record.change and not discard:
        raise ConflictError(
            f"the datastore of {folder} has changed since the upgrade (change {meta['version']}, then "
            f"{record.change}). Undoing the upgrade would lose these changes. Pass --discard-changes to discard them."
        )
    part = path.with_name(f"{path.name}.restoring")
    try:
        with transfer.unused(path) as held:
            transfer.discard(part)  # left by a process that was killed
            shutil.copyfile(folder / KEPT / FILE, part)
            if held is not None and transfer.forgotten_since(held, part):
                raise ConflictError(
                    f"documents of {folder} were forgotten since the upgrade, and undoing it would bring them back, so "
                    "the upgrade can no longer be undone."
                )
            transfer.put_in_place(part, None, path, held)
    finally:
        transfer.discard(part)


def read_record(folder: Path) -> Record:
    """Read what the last upgrade recorded; raise a BundleError if there is nothing to undo."""
    file = folder / KEPT / RECORD
    if not file.is_file():
        raise BundleError(f"{folder} has no upgrade to undo (no {KEPT}/{RECORD}).")
    try:
        return Record.model_validate(read_object(file, BundleError))
    except ValidationError as error:
        raise BundleError(f"{file} is damaged, so the upgrade cannot be undone.") from error

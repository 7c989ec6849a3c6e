"""The bundle on disk: one folder with a model, written under another name, renamed, and checked when it is read."""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from denn import __version__
from denn.bundle_card import Card, Trained
from denn.durable import digest_of, sync, sync_all
from denn.errors import BundleError, TrainingError
from denn.machine import memory
from denn.strict_json import dumps
from denn.types import LabelSpace
from denn.untrusted import MOST_LARGE_JSON, MOST_TEXT, REMEDY, header, read_lines, read_object
from denn.wording import counted

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FORMATS = (1, 2, 3, 4)  # readable formats; the last one is written
MOST_FILES = 10_000
PATIENCE = 100  # hundredths of a second
LEARNT = ("head.safetensors", "witnesses", "combiner.json", "familiarity.json")  # a refit replaces these and labels.txt
PART = "bundle.json.part"
LOCK = ".lock"  # locked while files of the model change, and removed afterwards
VERSIONED = ("torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn")


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that affect a model."""
    found = {"denn": __version__}
    for name in VERSIONED:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def digests(folder: Path, part: str = "") -> dict[str, str]:
    """Return the sha256 of every file in a bundle, or in one of its folders, except bundle.json and the datastore."""
    found = {}
    for path in sorted((folder / part).rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name != "bundle.json" and not name.startswith("store/"):
            found[name] = digest_of(path)
    return found


def write_card(folder: Path, card: Card) -> None:
    """Write bundle.json atomically, which activates all other new files; give the weights the same permissions."""
    file = folder / PART
    file.unlink(missing_ok=True)  # so that a link there is not followed
    content = dumps(card.model_dump(), "The model", TrainingError, indent=1, ensure_ascii=False)
    file.write_text(content, encoding="utf-8")
    for path in folder.rglob("*.safetensors"):  # written readable only by their owner
        path.chmod(file.stat().st_mode)
    sync(file)
    file.replace(folder / "bundle.json")
    sync(folder)


def new_name(folder: Path, kind: str) -> str:
    """Return an unused name for a folder of this kind in a bundle: learnt-1, learnt-2, …"""
    taken = [path.name.removeprefix(f"{kind}-") for path in folder.glob(f"{kind}-*")]
    return f"{kind}-{1 + max([0, *(int(number) for number in taken if number.isdecimal())])}"


def clear_unused(folder: Path, card: Card) -> None:
    """Delete what a newer card replaced, and what an interrupted change left behind."""
    used, unused = {card.learnt, card.validation}, [folder / PART]
    for kind in ("learnt", "validation"):
        unused += [path for path in folder.glob(f"{kind}*") if path.name not in used and _NUMBERED.fullmatch(path.name)]
    for path in (*unused, *((folder / name for name in LEARNT) if card.learnt else ())):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


_NUMBERED = re.compile(r"learnt-[1-9][0-9]*|validation(-[1-9][0-9]*)?")


def add_facts(folder: Path, **updates: Mapping[str, object]) -> None:
    """Add entries to tables of bundle.json."""
    card = read(folder)[0]
    write_card(folder, card.model_copy(update={name: getattr(card, name) | dict(new) for name, new in updates.items()}))


def write_labels(folder: Path, labels: LabelSpace) -> None:
    """Write labels.txt, one name per line in column order."""
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in labels.names), encoding="utf-8")


def undisturbed(folder: Path, reading: Callable[[], Result]) -> Result:
    """Read from a bundle; start again if a refit replaces its files meanwhile."""
    while True:
        seen = signature(folder)
        try:
            return reading()
        except (BundleError, OSError):
            if signature(folder) == seen:
                raise


def read(folder: Path, known: Card | None = None) -> tuple[Card, LabelSpace]:
    """Read and check a bundle; raise a BundleError that says what is wrong.

    Files with the same digests in the card `known` were checked with that card, and are not read again.
    """
    check_is_model(folder)
    file = folder / "bundle.json"
    found, card = _files(folder), read_card(folder)
    _check_digests(folder, card, found, known.digests if known else {})
    labels = read_labels(folder / card.learnt)
    if flaw := card.flaw(len(labels)):
        raise BundleError(f"{file} is damaged: {flaw}. {REMEDY}")
    labels = LabelSpace(labels.names, tuple(card.corpus["label_counts"]))
    for name, here in versions().items():
        there = card.versions.get(name, here)  # earlier bundles name fewer
        if there.split(".")[0] != here.split(".")[0]:
            log.warning("%s was written with %s %s, but %s is installed; scores may differ.", folder, name, there, here)
    return card, labels


def check_is_model(folder: Path) -> None:
    """Raise a BundleError if a folder has no bundle.json, after a replacement in progress."""
    settle(folder)
    if not (folder / "bundle.json").is_file():
        what = "no such folder" if not folder.exists() else "no bundle.json in it"
        raise BundleError(f"{folder} is not a model: {what}. Train one with `denn train … --out {folder}`.")


def read_card(folder: Path) -> Card:
    """Read bundle.json without reading the other files."""
    file = folder / "bundle.json"
    content = read_object(file, BundleError, MOST_LARGE_JSON)
    found = content.get("format")
    if type(found) is int and found > FORMATS[-1]:
        raise BundleError(
            f"{folder} is from a newer version of denn (bundle format {str(found)[:40]}; this version reads up to "
            f"{FORMATS[-1]}). Update denn."
        )
    if type(found) is not int or found not in FORMATS:
        raise BundleError(f"{file} is damaged: there is no bundle format {repr(found)[:40]}. {REMEDY}")
    try:
        return Card.model_validate(content)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])[:100]
        raise BundleError(f"{file} is damaged: {where!r} has an invalid value. {REMEDY}") from error


def signature(folder: Path) -> tuple[int, int] | None:
    """Return a value that changes whenever bundle.json is written; None if there is no such file."""
    try:
        found = (folder / "bundle.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def glance(folder: Path) -> tuple[str, str]:
    """Describe a model in a few words and name its corpus, reading nothing but its card."""
    try:
        card = Card.model_validate(read_object(folder / "bundle.json", BundleError, MOST_LARGE_JSON))
        trained, created = Trained.model_validate(card.corpus), datetime.fromisoformat(card.created)
    except (BundleError, ValueError):  # includes pydantic's
        return "damaged or from another version", ""
    labels = counted(len(trained.label_counts), "label")
    return f"{_shown(card.method)}, {labels}, {created:%Y-%m-%d}", trained.name


def read_labels(folder: Path) -> LabelSpace:
    """Read labels.txt: one name per line, each once."""
    file = folder / "labels.txt"
    *names, rest = read_lines(file, BundleError)
    if rest or not names or "" in names:
        raise BundleError(f"{file} is damaged: expected one label on each line. {REMEDY}")
    return LabelSpace(tuple(names))


def _files(folder: Path) -> dict[str, int]:
    """Return the files of a bundle with their sizes; reject links out of it, and anything but files and folders."""
    top, found, waiting = folder.resolve(), {}, [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                path = Path(entry.path)
                name = path.relative_to(folder).as_posix()
                if name == LOCK:  # it may vanish at any time
                    continue
                if entry.is_symlink() and not _leads_inside(path, top):
                    raise BundleError(f"{folder}: {_shown(name)} is a link out of the folder. Replace it with a copy.")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path)
                elif entry.is_file():
                    found[name] = entry.stat().st_size
                elif not entry.is_dir():
                    raise BundleError(f"{folder}: {_shown(name)} is neither a file nor a folder. Remove it.")
                if len(found) + len(waiting) > MOST_FILES:
                    raise BundleError(f"{folder} contains more than {MOST_FILES} files; expected a model folder.")
    return found


def _shown(name: str) -> str:
    """Return an untrusted name, safe to show on one line."""
    return name if name.isprintable() and len(name) < 200 else ascii(name)[:200]


def _leads_inside(link: Path, top: Path) -> bool:
    try:
        return link.resolve(strict=True).is_relative_to(top)
    except (OSError, RuntimeError):  # a broken or circular link
        return False


def _check_digests(folder: Path, card: Card, found: Mapping[str, int], known: Mapping[str, str]) -> None:
    """Compare every file with its recorded digest; refuse a bundle that is larger than memory."""
    size, most = sum(found.get(name, 0) for name in card.digests), memory()
    if most is not None and size > most:
        raise BundleError(f"{folder} has {size:,} bytes, more than this machine's memory of {most:,} bytes.")
    for name, expected in card.digests.items():
        if name not in found:  # rejects paths that lead out of the folder, too
            raise BundleError(f"{folder}: {_shown(name)} is missing. {REMEDY}")
        if known.get(name) == expected:
            continue
        if name.endswith(".safetensors"):
            header(folder / name, BundleError)  # checks the file's size
        elif found[name] > MOST_TEXT:
            raise BundleError(f"{folder}: {_shown(name)} has {found[name]:,} bytes, expected at most {MOST_TEXT:,}.")
        if digest_of(folder / name) != expected:
            raise BundleError(f"{folder}: {_shown(name)} has changed since it was written. {REMEDY}")


def replace(new: Path, target: Path) -> None:
    """Replace an older folder with a finished one; `recover` repairs a crash between the two renames."""
    sync_all(new)
    old = _old(target)
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        recover(target)
        raise
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def settle(folder: Path) -> None:
    """Wait for a replacement in progress, and repair an interrupted one."""
    for _ in range(PATIENCE):  # a replacement briefly has no folder, between its two renames
        if folder.exists() or not _old(folder).exists():
            break
        time.sleep(0.01)
    recover(folder)


def recover(target: Path) -> None:
    """Restore the older folder if a crash left it moved aside, and delete what a finished replacement left behind."""
    old = _old(target)
    if old.exists() and not target.exists():
        old.rename(target)
    elif old.exists():
        shutil.rmtree(old, ignore_errors=True)


def _old(target: Path) -> Path:
    target = target.resolve()  # "." has no name
    return target.with_name(f".{target.name}.replaced")


def is_bundle_or_free(folder: Path) -> bool:
    """Return whether a model may be written here: there is nothing, an empty folder, or an older bundle."""
    if not folder.exists():
        return True
    return folder.is_dir() and ((folder / "bundle.json").is_file() or not any(folder.iterdir()))

"""Make files and their names survive a power cut; name their content by a digest."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

WINDOWS = os.name == "nt"


def sync(path: Path) -> None:
    """Flush a file's content, or the names in a folder, to disk; Windows cannot flush a folder."""
    if WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows flushes only writable files
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_access(old: Path, new: Path) -> None:
    """Give a file that will replace another one the same mode and owner, so that the same users can use it."""
    shutil.copymode(old, new)
    before, now = old.stat(), new.stat()
    if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
        os.chown(new, before.st_uid, before.st_gid)


def digest_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_all(folder: Path) -> None:
    """Flush all files in a folder to disk, with their names."""
    for path in (*folder.rglob("*"), folder):
        sync(path)

"""Where results are written: stdout, or a file that appears when it is complete."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from denn.errors import ConfigError, DennError

log = logging.getLogger(__name__)


def check_file(path: Path | None, option: str, *, make_folder: bool = False) -> None:
    """Complain before any work where a file cannot be written; `make_folder`: its folder need not exist yet."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"Got the folder {path}, expected a file for {option}, such as {path / 'result'}.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"Got {path}, which is no ordinary file, expected a file for {option}.")
    check_folder(path.parent, option, path, make=make_folder)


def check_folder(folder: Path, option: str, path: Path | None = None, *, make: bool = True) -> None:
    """Complain before any work where nothing can be written to a folder; `make`: it need not exist yet."""
    written = path or folder
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if not there.is_dir():
        raise ConfigError(f"{written} cannot be written, as {there} is not a folder. Give another {option}.")
    if there != folder and not make:
        raise ConfigError(
            f"{written} cannot be written, as there is no folder {folder}. Make it, or give another {option}."
        )
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ConfigError(
            f"{written} cannot be written, as nothing can be written to the folder {there} ({error.strerror}). Give "
            f"another {option}."
        ) from error


@contextmanager
def writing(path: Path | None) -> Iterator[IO[bytes]]:
    """Open stdout, or a file beside the one asked for that takes its place when all went well."""
    if path is None:
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:
            drop_stdout()
        return
    beside = path.with_name(path.name + ".part")
    beside.unlink(missing_ok=True)  # a link there must not lead elsewhere
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except (DennError, KeyboardInterrupt):
        log.warning(f"what was written so far is in {beside}")
        raise
    except OSError as error:
        if error.filename is not None:  # another file's
            raise
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}. What was written so far is in {beside}."
        ) from error
    beside.replace(path)


def flush_stdout() -> None:
    """Write what waits for stdout; that whoever reads it has enough is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Drop what cannot be written to stdout, as Python would try again when it exits."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""Write results to stdout, or to a file that appears when it is complete."""

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
from denn.locks import alone

log = logging.getLogger(__name__)


def check_file(path: Path | None, option: str, *, make_folder: bool = False) -> None:
    """Raise before any work if a file cannot be written; with `make_folder`, its folder need not exist yet."""
    if path is None:
        return
    if path.is_dir():
        raise ConfigError(f"{path} is a folder. Give a file for {option}, such as {path / 'result'}.")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a regular file. Give another file for {option}.")
    check_folder(path.parent, option, path, make=make_folder)


def check_folder(folder: Path, option: str, path: Path | None = None, *, make: bool = True) -> None:
    """Raise before any work if a folder is not writable; with `make`, it need not exist yet."""
    written = path or folder
    there = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if not there.is_dir():
        raise ConfigError(f"Cannot write {written}: {there} is not a folder. Give another {option}.")
    if there != folder and not make:
        raise ConfigError(
            f"Cannot write {written}: the folder {folder} does not exist. Create it, or give another {option}."
        )
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ConfigError(
            f"Cannot write {written}: the folder {there} is not writable ({error.strerror}). Give another {option}."
        ) from error


@contextmanager
def writing(path: Path | None) -> Iterator[IO[bytes]]:
    """Open stdout, or a temporary file that is renamed to `path` on success."""
    if path is None:
        try:
            yield sys.stdout.buffer
        except BrokenPipeError:
            drop_stdout()
        return
    partial = path.with_name(path.name + ".part")
    try:
        with alone(path.with_name(f".{path.name}.lock")) as held:
            if held is None:
                raise ConfigError(f"Another process is writing {path}. Wait for it, or give another file.")
            partial.unlink(missing_ok=True)  # do not follow a symbolic link
            with partial.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
    except (DennError, KeyboardInterrupt):
        log.warning(f"partial output is in {partial}")
        raise
    except OSError as error:
        if error.filename is not None:  # the error is about another file
            raise
        raise ConfigError(f"Cannot write {path}: {error.strerror}. Partial output is in {partial}.") from error


def flush_stdout() -> None:
    """Flush stdout; a reader that closed the pipe is not an error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Discard output that stdout does not accept, because Python would try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

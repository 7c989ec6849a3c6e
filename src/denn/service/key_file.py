"""The file of keys: read it, add keys, and revoke them, one process at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from denn.durable import keep_access, sync
from denn.errors import ConfigError
from denn.locks import alone
from denn.service.keys import Keys, new_key

PATIENCE = 5.0  # seconds to wait for another process that changes the file
LARGEST = 16 * 2**20  # bytes


def read_keys(path: Path) -> Keys:
    """Read all keys of a file."""
    return _parsed(path, _lines(path))


def add_key(path: Path, right: str, name: str, expires: datetime | None = None, per_minute: int | None = None) -> str:
    """Add a new key to a file, which is created if it is missing, and return the key."""
    if not name:
        raise ConfigError("The name of the key is empty. Give a name, such as that of its owner.")
    with _changing(path) as lines:
        taken = [key for key in _parsed(path, lines).known if key.name == name and key.state() == "active"]
        if taken:
            raise ConfigError(f"{path} already has an active key named {name!r}. Choose another name, or revoke it.")
        key, line = new_key(right, name, expires, per_minute)
        lines.append(line)
    return key


def revoke_key(path: Path, name: str) -> int:
    """Mark all active keys of this name as revoked, and return how many there were.

    Their lines stay, so that reading does not become public when the last key that can only read is revoked.
    """
    with _changing(path) as lines:
        known = _parsed(path, lines).known
        revoked = {key.digest for key in known if key.name == name and key.state() == "active"}
        if not revoked:
            names = ", ".join(dict.fromkeys(repr(key.name) for key in known if key.state() == "active")) or "none"
            raise ConfigError(f"{path} has no active key named {name!r}. Active keys: {names}.")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for place, line in enumerate(lines):
            digest = next(
                (one for one in revoked if f" sha256:{one}" in line and not line.lstrip().startswith("#")), None
            )
            if digest is not None:
                lines[place] = line.replace(f" sha256:{digest}", f" sha256:{digest} revoked={now}", 1)
    return len(revoked)


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"The key file {path} is larger than {LARGEST:,} bytes. Check the path.")
        return path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(
            f"Cannot read the key file {path}: it does not exist. Create it with `denn keys create {path} NAME`."
        ) from None
    except OSError as error:
        raise ConfigError(f"Cannot read the key file {path}: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"Cannot read the key file {path}: it is not UTF-8 text.") from error


def _parsed(path: Path, lines: list[str]) -> Keys:
    """Parse the lines of a file; an error names the file."""
    try:
        return Keys.parse(lines)
    except ConfigError as error:
        raise ConfigError(f"{path} is not a valid key file. {error}") from None


@contextmanager
def _changing(path: Path) -> Iterator[list[str]]:
    """Yield the lines of a file for changing, and replace the file at once afterwards."""
    path = path.resolve()  # replace the file, not a link to it
    try:
        with _locked(path):
            lines = _lines(path) if path.exists() else []
            yield lines
            Keys.parse(lines)
            new = path.with_name(f".{path.name}.new")
            new.unlink(missing_ok=True)
            new.touch(0o600, exist_ok=False)
            new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            if path.exists():
                keep_access(path, new)  # a service that cannot read it would not notice a revocation
            sync(new)
            new.replace(path)
            sync(path.parent)
    except OSError as error:
        raise ConfigError(f"Cannot change the key file {path}: {error.strerror or error}.") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    until = time.monotonic() + PATIENCE
    while True:
        with alone(path.with_name(f".{path.name}.lock")) as held:
            if held is not None:
                yield
                return
        if time.monotonic() > until:
            raise ConfigError(f"Another process is changing {path}. Try again when it is done.")
        time.sleep(0.02)

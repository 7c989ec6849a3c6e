"""Keys with read or write access; only their digests are stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from denn.errors import ConfigError

Right: TypeAlias = Literal["read", "write"]  # write includes read

LINE = re.compile(r"(read|write) sha256:([0-9a-f]{64})(?: (\S.{0,99}))?")
TAKEN = "copy"  # marks changes made by copying a datastore; see denn.stores.copying
FORM = "'read sha256:DIGEST NAME' or 'write sha256:DIGEST NAME', as printed by `denn keys new`"


@dataclass(frozen=True)
class Key:
    """An accepted key."""

    right: Right
    digest: str  # sha256 of the key, which is too long and random to recover
    name: str = ""


@dataclass(frozen=True)
class Keys:
    """All keys of a service."""

    known: tuple[Key, ...] = ()

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Keys:
        """Parse keys, one per line; skip empty lines and those that start with #."""
        found = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = LINE.fullmatch(line.strip())
            if match is None:
                raise ConfigError(f"Line {number} of the keys is not valid. Expected {FORM}.")
            if match[3] == TAKEN and match[1] == "write":
                raise ConfigError(
                    f"Line {number} of the keys uses the name {TAKEN!r}, which is reserved. Give the key another name."
                )
            right: Right = "write" if match[1] == "write" else "read"
            found.append(Key(right, match[2], match[3] or ""))
        return cls(tuple(found))

    def has(self, right: Right) -> bool:
        """Return whether a key has exactly this right."""
        return any(key.right == right for key in self.known)

    def find(self, given: str | None) -> Key | None:
        """Return the matching key, or None; the time does not depend on the result."""
        digest = hashlib.sha256((given or "").encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for key in self.known:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found if given else None


def new_key(right: Right, name: str = "") -> tuple[str, str]:
    """Return a new key and its line for the key file."""
    if right not in get_args(Right):
        raise ConfigError(f"The access level must be read or write, not {right!r}.")
    key = f"denn-{right}-{secrets.token_urlsafe(32)}"
    line = f"{right} sha256:{hashlib.sha256(key.encode()).hexdigest()} {name}".strip()
    Keys.parse([line])  # check the name
    return key, line


def given_key(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key from the headers of a request: X-API-Key, Bearer, or the password of Basic."""
    if api_key:
        return api_key
    scheme, _, value = (authorization or "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            _, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except ValueError:  # not base64, or not UTF-8 inside
            return None
        return password or None
    return None

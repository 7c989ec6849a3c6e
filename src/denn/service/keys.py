"""Keys that say who may read and who may write; only their digests are kept."""

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

Right: TypeAlias = Literal["read", "write"]  # who may write may read

LINE = re.compile(r"(read|write) sha256:([0-9a-f]{64})(?: (\S.{0,99}))?")
TAKEN = "copy"  # the source of changes that are no news to the model; see denn.stores.copying
FORM = "'read sha256:DIGEST NAME' or 'write sha256:DIGEST NAME', as `denn keys new` prints them"


@dataclass(frozen=True)
class Key:
    """One key that is accepted."""

    right: Right
    digest: str  # sha256 of the key, which is too long and too random to be guessed from it
    name: str = ""


@dataclass(frozen=True)
class Keys:
    """All keys of a service."""

    known: tuple[Key, ...] = ()

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Keys:
        """Read keys, one a line; empty lines and those that begin with # are passed over."""
        found = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = LINE.fullmatch(line.strip())
            if match is None:
                raise ConfigError(f"Key {number} cannot be read, expected {FORM}.")
            if match[3] == TAKEN and match[1] == "write":
                raise ConfigError(
                    f"Key {number} is named {TAKEN!r}, which histories say of copies. Give it another name."
                )
            right: Right = "write" if match[1] == "write" else "read"
            found.append(Key(right, match[2], match[3] or ""))
        return cls(tuple(found))

    def has(self, right: Right) -> bool:
        """Say whether there is a key of exactly this right."""
        return any(key.right == right for key in self.known)

    def find(self, given: str | None) -> Key | None:
        """Return the key that was given, None where it is none of these; how long that takes says nothing."""
        digest = hashlib.sha256((given or "").encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for key in self.known:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found if given else None


def new_key(right: Right, name: str = "") -> tuple[str, str]:
    """Return a new key and the line to keep of it."""
    if right not in get_args(Right):
        raise ConfigError(f"Got the right {right!r}, expected read or write.")
    key = f"denn-{right}-{secrets.token_urlsafe(32)}"
    line = f"{right} sha256:{hashlib.sha256(key.encode()).hexdigest()} {name}".strip()
    Keys.parse([line])  # what is written can be read
    return key, line


def given_key(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key of a request's headers: X-API-Key, Bearer, or the password of Basic."""
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

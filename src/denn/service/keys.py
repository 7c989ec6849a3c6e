"""Keys with a name, a right, an expiry date and a rate limit; only their digests are stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias, get_args

from denn.errors import ConfigError

Right: TypeAlias = Literal["read", "teach", "administer"]  # each includes those before it
State: TypeAlias = Literal["active", "expired", "revoked"]

RIGHTS: tuple[Right, ...] = get_args(Right)
OLD_NAMES = {"write": "administer"}  # as in key files from before there were three rights
FIELD = r"(?:expires|revoked|per_minute)=\S+"
# A name never begins like a field, so that a misspelt field is an error and not part of the name.
LINE = re.compile(
    rf"({'|'.join((*RIGHTS, *OLD_NAMES))}) sha256:([0-9a-f]{{64}})((?: {FIELD})*)(?: (?!\w+=)(\S.{{0,99}}))?"
)
TAKEN = "copy"  # marks changes made by copying a datastore; see denn.stores.copying
BETWEEN = ": "  # in the history, between the name of a key and the source that its owner gives
FORM = (
    "'RIGHT sha256:DIGEST [expires=TIME] [revoked=TIME] [per_minute=NUMBER] NAME', where RIGHT is read, teach or "
    "administer, as written by `denn keys create`"
)


@dataclass(frozen=True)
class Key:
    """A known key."""

    right: Right
    digest: str  # sha256 of the key, which is too long and random to recover
    name: str = ""
    expires: datetime | None = None
    revoked: datetime | None = None
    per_minute: int | None = None  # limit on texts; a request without texts counts as one

    @property
    def shown(self) -> str:
        """The name in logs and in the history."""
        return self.name or self.right

    @property
    def rights(self) -> tuple[Right, ...]:
        """All rights of the key while it is active."""
        return RIGHTS[: RIGHTS.index(self.right) + 1]

    def state(self, now: datetime | None = None) -> State:
        """Return whether the key can be used now, or at another time."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= (now or datetime.now(UTC)) else "active"

    def facts(self) -> dict[str, str | int | None]:
        """Return what can be shown of the key."""
        return {
            "name": self.shown,
            "right": self.right,
            "state": self.state(),
            "expires": None if self.expires is None else self.expires.isoformat(),
            "revoked": None if self.revoked is None else self.revoked.isoformat(),
            "per_minute": self.per_minute,
        }

    def why_not(self) -> str:
        """Return the reason why the key cannot be used any more, or an empty string."""
        state = self.state()
        ended = {"active": None, "expired": self.expires, "revoked": self.revoked}[state]
        if ended is None:
            return ""
        return f"This key {'was revoked' if state == 'revoked' else 'expired'} on {ended:%Y-%m-%d}. Ask for a new one."


@dataclass(frozen=True)
class Keys:
    """All keys of a service."""

    known: tuple[Key, ...] = ()

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Keys:
        """Parse keys, one per line; skip empty lines and those that start with #."""
        found: dict[str, Key] = {}
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            key = _parsed(f"Line {number} of the keys", line.strip())
            if key.digest in found:
                raise ConfigError(f"Line {number} of the keys repeats an earlier key. Remove one of the two lines.")
            found[key.digest] = key
        return cls(tuple(found.values()))

    def __add__(self, other: Keys) -> Keys:
        """Return the keys of both; of a key in both, the line with which it has ended, if there is one."""
        found = {key.digest: key for key in self.known}
        for key in other.known:
            if key.digest not in found or found[key.digest].state() == "active":
                found[key.digest] = key
        return Keys(tuple(found.values()))

    @property
    def guard_reading(self) -> bool:
        """Whether reading needs a key: there is, or was, a key that can only read.

        Expired and revoked keys count too, because reading must not become public when the last one ends.
        """
        return any(key.right == "read" for key in self.known)

    @property
    def allow_teaching(self) -> bool:
        """Whether a key gives more than the right to read."""
        return any(key.right != "read" for key in self.known)

    def find(self, given: str | None) -> Key | None:
        """Return the matching key, whatever its state, or None; the time does not depend on the result."""
        digest = hashlib.sha256((given or "").encode("utf-8", "surrogateescape")).hexdigest()
        found = None
        for key in self.known:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found if given else None


def new_key(
    right: str, name: str = "", expires: datetime | None = None, per_minute: int | None = None
) -> tuple[str, str]:
    """Return a new key and its line for the key file."""
    if right not in (*RIGHTS, *OLD_NAMES):
        raise ConfigError(f"The right must be read, teach or administer, not {right!r}.")
    key = f"denn-{right}-{secrets.token_urlsafe(32)}"
    fields = {"expires": expires and expires.isoformat(timespec="seconds"), "per_minute": per_minute}
    told = [f"{field}={value}" for field, value in fields.items() if value is not None]
    line = " ".join([right, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", *told, *([name] if name else [])])
    match = LINE.fullmatch(line)
    if match is None or (match[4] or "") != name or name != name.strip() or ";" in name:
        raise ConfigError(
            f"A key cannot be named {name!r}. Expected at most 100 characters on one line that do not begin like a "
            "field (expires=…), without a semicolon and without spaces at either end."
        )
    _parsed("The new key", line)  # reserved names, invisible characters
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


def _parsed(where: str, line: str) -> Key:
    """Parse one line; an error never repeats it, because it may contain a key by mistake."""
    match = LINE.fullmatch(line)
    if match is None:
        raise ConfigError(f"{where} is not valid. Expected {FORM}.")
    right: Right = OLD_NAMES.get(match[1], match[1])  # type: ignore[assignment]
    name = match[4] or ""
    if name == TAKEN and right != "read":
        raise ConfigError(f"{where} uses the name {TAKEN!r}, which is reserved. Give the key another name.")
    if BETWEEN in name or not name.isprintable():
        raise ConfigError(
            f"{where} has a name with a colon and a space, or with invisible characters. Give the key another name."
        )
    fields = [field.split("=", 1) for field in match[3].split()]
    if len(fields) != len(dict(fields)):
        raise ConfigError(f"{where} gives a field twice. Expected {FORM}.")
    read = {field: _value(where, field, value) for field, value in fields}
    return Key(right, match[2], name, **read)  # type: ignore[arg-type]


def _value(where: str, field: str, text: str) -> datetime | int:
    """Parse a field; a time without a zone is in UTC."""
    try:
        if field != "per_minute":
            time = datetime.fromisoformat(text)
            return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
        if text.isascii() and text.isdecimal() and 0 < int(text) < 10**9:
            return int(text)
    except (ValueError, OverflowError):
        pass
    expected = "a whole number above 0" if field == "per_minute" else "a time such as 2026-12-31T00:00:00Z"
    raise ConfigError(f"{where} has an invalid {field}. Expected {expected}.")

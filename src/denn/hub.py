"""Names on the Hugging Face hub, and its client's errors in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

from denn.errors import DennError, MissingExtraError
from denn.untrusted import first_line

PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[\w])?"
NAME, BARE = re.compile(f"{PART}/{PART}", re.ASCII), re.compile(PART, re.ASCII)
REASONS = {  # error class of the client (or a base class) → explanation; the first match wins
    "GatedRepoError": "access to it must be requested on its page first",
    "RepositoryNotFoundError": "no such repository, or your token cannot read it (log in with `hf auth login`)",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "the hub cannot be reached, and it was not downloaded before",
    "OfflineModeIsEnabled": "offline mode is on (HF_HUB_OFFLINE), and it was not downloaded before",
    "HFValidationError": "this is not a valid name on the hub",
    "ConnectError": "the hub cannot be reached",
    "TimeoutException": "the hub does not answer",
}
STATUS = {401: "your token is missing or not valid (log in with `hf auth login`)", 403: "your token does not allow it"}


def is_hub_name(text: str, bare: bool = False) -> bool:
    """Return whether a string can be a name on the hub, user/model, and is not a path: no such file or parent.

    `bare` also allows the names of the oldest models, which have no user.
    """
    if bare and BARE.fullmatch(text):
        return not Path(text).exists()
    return NAME.fullmatch(text) is not None and not Path(text).exists() and not Path(text).parent.is_dir()


def client() -> ModuleType:
    """Import the hub's client, or name the extra that installs it."""
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise MissingExtraError("The Hugging Face hub", "huggingface_hub", "hub") from error


@contextmanager
def explained(fault: str, error: type[DennError]) -> Iterator[None]:
    """Turn any error of the hub's client into a sentence that begins with the fault."""
    try:
        yield
    except DennError:
        raise
    except Exception as reason:  # errors of the client, of two HTTP libraries, and of the file system
        raise error(f"{fault}: {_sentence(reason)}.") from reason


def _sentence(reason: BaseException) -> str:
    kinds = {kind.__name__ for kind in type(reason).__mro__}
    if known := next((sentence for name, sentence in REASONS.items() if name in kinds), None):
        return known
    status = getattr(getattr(reason, "response", None), "status_code", None)
    return STATUS.get(status or 0, f"{type(reason).__name__}, {first_line(reason)}")

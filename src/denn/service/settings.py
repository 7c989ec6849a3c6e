"""Settings of a service: limits, keys and allowed hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from denn.service.keys import Keys

MEGABYTE = 2**20


@dataclass(frozen=True)
class Settings:
    """The limits of a service; requests beyond them get an error that names the limit."""

    name: str = "model"  # display name of the model
    keys: Keys = field(default_factory=Keys)  # those that never change while the service runs
    key_file: Path | None = None  # more keys, read again when the file changes
    body_bytes: int = 8 * MEGABYTE  # maximum size of a request
    stream_bytes: int = (
        64 * MEGABYTE
    )  # maximum size of a request to predict/stream, whose response is not held in memory
    texts: int = 256  # maximum per request
    characters: int = 100_000  # maximum per text
    labels: int = 1000  # maximum per document
    queue: int = 1024  # maximum number of queued texts before returning 503
    batch_tokens: int = 8192  # approximate number of tokens per batch
    gather: float = 0.002  # seconds to wait for other requests to join a batch
    seconds: float = 60.0  # request timeout, from the complete request to its response
    body_seconds: float = 20.0  # timeout for receiving a request, and for sending each part of a response
    stop_seconds: float = 30.0  # maximum wait for accepted requests on shutdown
    hosts: tuple[str, ...] = ()  # accepted host names; empty: any
    origins: tuple[str, ...] = ()  # other sites whose pages may send requests
    refit_every: int | None = None  # number of changed documents that triggers a refit
    label_uri: str = "urn:denn:label:"  # URI prefix for labels in the Annif API

"""What a service allows: sizes, times, and who may ask from where."""

from __future__ import annotations

from dataclasses import dataclass, field

from denn.service.keys import Keys

MEGABYTE = 2**20


@dataclass(frozen=True)
class Settings:
    """The limits of a service; everything beyond them is refused with a sentence that says so."""

    name: str = "model"  # of the model, for people
    keys: Keys = field(default_factory=Keys)
    body_bytes: int = 8 * MEGABYTE  # of a request
    stream_bytes: int = 64 * MEGABYTE  # of a request to predict/stream, whose answer needs no memory
    texts: int = 256  # of one request
    characters: int = 100_000  # of one text
    labels: int = 1000  # of one document
    queue: int = 1024  # texts that wait at most; then 503
    batch_tokens: int = 8192  # of the texts that are scored together, about
    gather: float = 0.002  # seconds to wait for others to score together with
    seconds: float = 60.0  # from a whole request to its answer
    body_seconds: float = 20.0  # to send a request, and to take each part of an answer
    stop_seconds: float = 30.0  # that a stop waits for what was accepted
    hosts: tuple[str, ...] = ()  # names that the service answers to; none: any
    origins: tuple[str, ...] = ()  # other sites whose pages may ask
    refit_every: int | None = None  # number of changed documents that starts a refit
    label_uri: str = "urn:denn:label:"  # before a label's name, where Annif's clients expect a URI

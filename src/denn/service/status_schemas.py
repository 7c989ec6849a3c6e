"""Response bodies about the service and its model: keys, drift, refits and audits."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from denn.service.response_schemas import Names, NeighbourOut, SupportingWord


class SeenOut(BaseModel):
    """Statistics of a prediction."""

    time: str
    labels: int
    best: float


class RecentOut(BaseModel):
    """Recent predictions, oldest first."""

    total: int
    empty: int
    predictions: list[SeenOut]


class MoverOut(BaseModel):
    """A label whose share of all assigned labels has changed."""

    label: str
    name: str | None = Field(None, description="Name of the label, if the model has a vocabulary.")
    description: str | None = Field(None, description="Description of the label, if the vocabulary has one.")
    trained: float = Field(description="Its share of the labels of all training documents.")
    predicted: float = Field(description="Its share of the labels of recent predictions.")


class DriftOut(BaseModel):
    """The labels of recent predictions compared with those of the training documents."""

    texts: int = Field(description="Number of recent predictions compared.")
    labels: int = Field(description="Number of labels that these predictions assign.")
    drift: float | None = Field(
        description="Share of the assigned labels that would have to change for the shares to be those of training: "
        "the total variation distance, from 0 to 1. Null without labels."
    )
    by_chance: float | None = Field(description="Value of `drift` to expect if the labels have not changed.")
    movers: list[MoverOut] = Field(description="Labels whose shares differ most, largest difference first.")


class SessionOut(BaseModel):
    """The service and the permissions of the key."""

    version: str
    model: str
    method: str
    key: str | None = Field(description="Name of the key; null without one.")
    rights: list[Literal["read", "teach", "administer"]] = Field(description="Rights of this request.")
    expires: str | None = Field(description="When the key expires; null if never.")
    why_not: str | None = Field(description="Why the key gives no access: it is unknown, expired or revoked.")
    may_read: bool = Field(description="Whether `rights` includes read.")
    may_write: bool = Field(description="Whether `rights` includes teach.")
    writes: Literal["on", "off"] = Field(description="Whether any key has the right to teach.")
    learns: bool
    neighbours: bool
    k: int | None
    limits: dict[str, int]


class KeyOut(BaseModel):
    """A key, without its secret."""

    name: str
    right: Literal["read", "teach", "administer"]
    state: Literal["active", "expired", "revoked"]
    expires: str | None
    revoked: str | None
    per_minute: int | None = Field(description="Maximum number of texts per minute; null if unlimited.")


class KeysOut(BaseModel):
    """The keys of the service, by name."""

    keys: list[KeyOut]


class ModelOut(BaseModel):
    """The model card."""

    model_config = ConfigDict(protected_namespaces=())

    name: str
    method: str
    encoder: str | None
    parameters: dict[str, Any]
    labels: int
    metrics: dict[str, Any]
    thresholds: dict[str, float] = Field(description="The best threshold for micro-F1, of each score.")
    decides: Literal["tuned", "per_label"] = Field(description="Whether that threshold decides, or one per label.")
    corpus: dict[str, Any]
    training: dict[str, Any]
    versions: dict[str, str]
    refitted: dict[str, Any] | None
    created: str
    store: dict[str, Any] | None


class FiguresOut(BaseModel):
    """Scores before and after a refit, on held-out documents."""

    metric: str
    before: float
    after: float
    standard_error: float = Field(description="Standard error of the difference between `before` and `after`.")
    documents: int = Field(description="Number of documents that the model was refitted on.")
    held_out: int = Field(description="Number of held-out documents behind `before` and `after`.")
    labels: int
    seconds: float


class RefitOut(BaseModel):
    """The running refit, or the last one; the state `kept` means that it was worse and the model was not changed."""

    state: Literal["never", "running", "done", "kept", "failed"]
    stage: str | None = Field(description="Current stage of a running refit.")
    done: int | None = Field(description="Progress of the stage, in units.")
    total: int | None
    unit: str | None = Field(description="What `done` and `total` count.")
    started: str | None
    ended: str | None
    by: str | None = Field(description="Name of the key, or --refit-every; null if another process ran it.")
    sentence: str | None = Field(description="Result or error of a finished refit.")
    figures: FiguresOut | None
    changed_documents: int | None = Field(
        description="Number of documents added, changed or removed since the last refit; one that changed twice counts "
        "twice. Null if the datastore is unavailable."
    )


class DoubtOut(BaseModel):
    """A label that a document seems to lack, or to have by mistake."""

    label: str
    score: float = Field(description="How likely the document is to have the label, judged without its own labels.")
    parts: dict[str, float] = Field(description="Score of each witness that knows the label.")
    words: list[SupportingWord]


class SuspectOut(BaseModel):
    """A document whose labels look wrong."""

    id: str
    text: str
    labels: list[str]
    rejected: list[str]
    suspicion: float
    add: list[DoubtOut] = Field(description="Labels that it seems to lack.")
    drop: list[DoubtOut] = Field(description="Labels that it seems to have by mistake.")
    neighbours: list[NeighbourOut]


class AuditOut(BaseModel):
    """The running audit, or the last one since the service started."""

    state: Literal["never", "running", "done", "failed"]
    stage: str | None = Field(description="Current stage of a running audit.")
    done: int | None = Field(description="Progress of the stage, in units.")
    total: int | None
    unit: str | None = Field(description="What `done` and `total` count.")
    started: str | None
    ended: str | None
    by: str | None = Field(description="Name of the key that started it.")
    sentence: str | None = Field(description="Result or error of a finished audit.")
    pending: int = Field(description="Number of documents that are still to be decided; 0 while an audit is running.")
    suspects: list[SuspectOut]
    names: Names = None


class StatusOut(BaseModel):
    """The state of the service."""

    status: str

"""Response bodies, which FastAPI describes in openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Names = Annotated[
    dict[str, str] | None,
    Field(description="Names of the labels in this response, if the model has a vocabulary."),
]


class SupportingWord(BaseModel):
    """A word or phrase of the text that supports a label."""

    word: str
    weight: float = Field(description="Contribution to the label's score, before the score is mapped to [0, 1].")


class ScoredLabel(BaseModel):
    """A label with its score."""

    label: str
    name: str | None = Field(None, description="Name of the label, if the model has a vocabulary.")
    score: float
    threshold: float
    chosen: bool
    parts: dict[str, float] = Field(description="Score of each witness that knows the label.")
    words: list[SupportingWord] = Field(description="Words that support the label, strongest first.")


class NeighbourOut(BaseModel):
    """A stored document similar to the text."""

    id: str
    similarity: float
    labels: list[str]
    rejected: list[str]
    text: str


class PredictionOut(BaseModel):
    """The labels of one text."""

    labels: list[str]
    scores: list[ScoredLabel]
    confidence: float | None = Field(
        description="λ: how much the neighbours support the classifier's confident labels."
    )
    familiarity: float | None = Field(
        description="Share of typical documents with more distant neighbours, from 0 to 1."
    )
    unfamiliar: bool = Field(
        description="Whether no stored document is similar to the text; its labels are then less reliable."
    )
    same_text: str | None = Field(description="Id of a stored document with the same text, whose labels are returned.")
    neighbours: list[NeighbourOut]
    names: Names = None


class BatchOut(BaseModel):
    """The labels of several texts, in order."""

    predictions: list[PredictionOut]


class NeighboursOut(BaseModel):
    """Stored documents, nearest first."""

    neighbours: list[NeighbourOut]
    names: Names = None


class DocumentOut(BaseModel):
    """A stored document."""

    id: str
    text: str
    labels: list[str]
    rejected: list[str]
    names: Names = None


class DocumentsOut(BaseModel):
    """A page of the matching documents, newest first."""

    total: int
    documents: list[DocumentOut]
    names: Names = None


class IdsOut(BaseModel):
    """The ids of the added documents, in the order given."""

    ids: list[str]
    warning: str | None = Field(None, description="Set if predictions will never include some of the labels.")


class ChangeOut(BaseModel):
    """One entry of the history."""

    number: int
    time: str
    action: str
    source: str
    documents: int


class HistoryOut(BaseModel):
    """The changes, newest first."""

    changes: list[ChangeOut]


class UndoneOut(BaseModel):
    """The number of documents that an undo restored."""

    documents: int


class LabelOut(BaseModel):
    """A label with its document count and threshold."""

    label: str
    name: str | None = Field(None, description="Name of the label, if the model has a vocabulary.")
    description: str | None = Field(None, description="Description of the label, if the vocabulary has one.")
    documents: int
    trained: bool
    threshold: float


class LabelsOut(BaseModel):
    """A page of the matching labels."""

    total: int
    labels: list[LabelOut]
    names: Names = None


class PointOut(BaseModel):
    """A document on the map."""

    id: str
    x: float
    y: float
    labels: list[str]


class MapOut(BaseModel):
    """The datastore in two dimensions."""

    points: list[PointOut]
    labels: list[str]
    documents: int
    share: float
    names: Names = None


class PlaceOut(BaseModel):
    """The coordinates of a text on the map."""

    x: float
    y: float


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


class SessionOut(BaseModel):
    """The service and the permissions of the key."""

    version: str
    model: str
    method: str
    may_read: bool
    may_write: bool
    writes: str
    learns: bool
    neighbours: bool
    k: int | None
    limits: dict[str, int]


class ModelOut(BaseModel):
    """The model card."""

    model_config = ConfigDict(protected_namespaces=())

    name: str
    method: str
    encoder: str | None
    parameters: dict[str, Any]
    labels: int
    metrics: dict[str, Any]
    thresholds: dict[str, float]
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


class StatusOut(BaseModel):
    """The state of the service."""

    status: str

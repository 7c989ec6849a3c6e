"""Response bodies about texts, documents and labels, which FastAPI describes in openapi.json."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Names = Annotated[
    dict[str, str] | None,
    Field(description="Names of the labels in this response, if the model has a vocabulary."),
]

ChangeNumber = Annotated[
    int | None,
    Field(description="Number of the change in the history; null if the datastore did not change."),
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


class QueuedOut(BaseModel):
    """A text that is worth labelling."""

    place: int = Field(description="Position of the text in the request, from 0.")
    uncertainty: float = Field(description="Expected number of wrong labels in the prediction.")
    nearness: float = Field(description="Mean cosine similarity of the nearest stored documents.")
    labels: list[str]


class QueueOut(BaseModel):
    """The texts to label, the most instructive first; equal texts are listed once."""

    queue: list[QueuedOut]
    names: Names = None


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


class ChangedDocumentOut(DocumentOut):
    """A stored document after a change."""

    change: ChangeNumber


class DeletedOut(BaseModel):
    """The change that deleted a document."""

    change: ChangeNumber


class DocumentsOut(BaseModel):
    """A page of the matching documents, newest first."""

    total: int
    documents: list[DocumentOut]
    names: Names = None


class ExamplesOut(BaseModel):
    """Documents to try the model on."""

    held_out: bool = Field(description="Whether the model has learnt nothing from these documents.")
    documents: list[DocumentOut]
    names: Names = None


class IdsOut(BaseModel):
    """The ids of the added documents, in the order given."""

    ids: list[str]
    change: ChangeNumber
    warning: str | None = Field(
        None, description="Set if some of the labels were merged, or cannot be predicted until a refit."
    )


class ChangeOut(BaseModel):
    """One entry of the history."""

    number: int
    time: str
    action: str
    source: str = Field(description="Name of the key and, after a colon, the source given in the request.")
    author: str = Field(description="Name of the key, or the author given on the command line; empty for training.")
    documents: int
    ids: list[str] = Field(description="Ids of the first of these documents; empty if they were forgotten.")
    undoes: int | None = Field(description="Number of the change that this one reverted.")
    undone: bool = Field(description="Whether another change reverted it.")
    undoable: bool = Field(description="False if it can never be reverted.")


class HistoryOut(BaseModel):
    """The changes, newest first."""

    changes: list[ChangeOut]


class UndoneOut(BaseModel):
    """The number of documents that an undo restored."""

    documents: int
    change: ChangeNumber


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
    decides: Literal["tuned", "per_label"] = Field(description="Whether labels of the training share a threshold.")
    labels: list[LabelOut]
    names: Names = None


class RenamedOut(BaseModel):
    """A renamed label."""

    label: str
    before: str = Field(description="Its name until now.")
    name: str
    documents: int
    names: Names = None


class MergedOut(BaseModel):
    """The result of a merge."""

    documents: int = Field(description="Number of documents changed.")
    change: ChangeNumber


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

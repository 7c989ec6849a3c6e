"""What requests and answers hold; FastAPI checks the requests and describes both in openapi.json."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, StringConstraints, model_validator


def _whole(number: Any) -> Any:
    """Take 7.0 for 7, which JSON does not tell apart."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


Few = Annotated[int, Field(ge=0, le=100), BeforeValidator(_whole)]
Many = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\n]*[^\s\u001c-\u001f][^\n]*$")]
Id = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
LINE = r"^[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"  # nothing that breaks or turns it
Source = Annotated[
    str,
    StringConstraints(max_length=200, pattern=LINE),
    Field(description="Where the change comes from; the history names it behind the key."),
]
Shown = Annotated[
    int, Field(ge=0, le=100_000, description="Characters of each neighbour's text."), BeforeValidator(_whole)
]
Rejected = Annotated[
    list[Label],
    Field(max_length=1000, description="Labels that a person decided against; none of them can be among the labels."),
]
Names = Annotated[
    dict[str, str] | None,
    Field(description="Names of the labels of this answer that are in the model's vocabulary; absent if it has none."),
]
FIELDS = 100  # of an object
THRESHOLDS = 1000  # of a request
LARGEST = 2**53 - 1  # integers that every reader of JSON keeps


# Every mistake costs memory and time before any is told, so lists of any length end at the first one.
Texts = Annotated[list[str], FailFast()]


class Request(BaseModel):
    """A body in which nothing is passed over."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > FIELDS:  # each unknown one would be a mistake of its own
            raise ValueError(f"expected at most {FIELDS} fields")
        return given


def _not_many(given: Any) -> Any:
    if isinstance(given, dict) and len(given) > THRESHOLDS:  # before each of them is looked at
        raise ValueError(f"expected at most {THRESHOLDS:,} thresholds")
    return given


class Options(Request):
    """How texts are decided."""

    threshold: Share | None = Field(None, description="One for all labels; null: as tuned.")
    thresholds: Annotated[dict[Label, Share], BeforeValidator(_not_many)] = Field(
        default_factory=dict, max_length=THRESHOLDS, description="For some labels, before all others."
    )
    per_label: bool = Field(False, description="Use the thresholds tuned for each label.")
    min_labels: Few = Field(0, description="So many labels at least, the best.")
    top_k: Many | None = Field(None, description="So many labels at most, the best.")
    evidence: Few = Field(10, description="Neighbours that are returned.")
    text_characters: Shown = 300


class PredictRequest(Options):
    """One text to tag."""

    text: str = Field(examples=["An editor for XML files with validation"])


class BatchRequest(Options):
    """Several texts to tag."""

    texts: Texts = Field(min_length=1)


class NeighboursRequest(Request):
    """A text whose nearest documents are asked for."""

    text: str
    k: Many = 10
    text_characters: Shown = 300


class PlaceRequest(Request):
    """A text to place on the map."""

    text: str


class NewDocument(Request):
    """A document to learn."""

    text: str
    labels: list[Label] = Field(max_length=1000)
    rejected: Rejected = []
    id: Id | None = None


class AddRequest(Request):
    """Documents to learn, all or none."""

    documents: Annotated[list[NewDocument], FailFast()] = Field(min_length=1)
    source: Source = ""


class PutRequest(Request):
    """What a document is from now on."""

    text: str
    labels: list[Label] = Field(max_length=1000)
    rejected: Rejected = []
    source: Source = ""


class PatchRequest(Request):
    """Other labels for a document: these, or some more and some less. Rejected ones stay so until given or dropped."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["labels"], "properties": {"labels": {"type": "array"}}},
                {"required": ["add"], "properties": {"add": {"minItems": 1}}},
                {"required": ["drop"], "properties": {"drop": {"minItems": 1}}},
                {"required": ["reject"], "properties": {"reject": {"minItems": 1}}},
            ]
        }
    )

    labels: list[Label] | None = Field(None, max_length=1000)
    add: list[Label] = Field(default_factory=list, max_length=1000)
    drop: list[Label] = Field(default_factory=list, max_length=1000)
    reject: Rejected = []
    source: Source = ""

    @model_validator(mode="after")
    def _something(self) -> PatchRequest:
        if self.labels is None and not self.add and not self.drop and not self.reject:
            raise ValueError("expected labels, or add, or drop, or reject")
        return self


class SupportingWord(BaseModel):
    """A word or phrase of the text that supports a label."""

    word: str
    weight: float = Field(description="Its contribution to the label's score, before that is mapped to 0 to 1.")


class ScoredLabel(BaseModel):
    """A label worth showing."""

    label: str
    name: str | None = Field(None, description="Its name; absent if the model has no vocabulary.")
    score: float
    threshold: float
    chosen: bool
    parts: dict[str, float] = Field(description="Score of each witness; one that cannot know the label is left out.")
    words: list[SupportingWord] = Field(description="Words that support it, strongest first; may be empty.")


class NeighbourOut(BaseModel):
    """A stored document near the text."""

    id: str
    similarity: float
    labels: list[str]
    rejected: list[str]
    text: str


class PredictionOut(BaseModel):
    """The labels of one text."""

    labels: list[str]
    scores: list[ScoredLabel]
    confidence: float | None = Field(description="λ: how much the neighbours support what the classifier is sure of.")
    familiarity: float | None = Field(
        description="Share of ordinary documents whose nearest neighbours are farther away, from 0 to 1."
    )
    unfamiliar: bool = Field(description="Whether nothing stored is much like the text: trust its labels less.")
    same_text: str | None = Field(description="The id of a stored document with the same text: its labels are these.")
    neighbours: list[NeighbourOut]
    names: Names = None


class BatchOut(BaseModel):
    """The labels of several texts, in order."""

    predictions: list[PredictionOut]


class NeighboursOut(BaseModel):
    """The nearest documents, nearest first."""

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
    """Some of the documents that are meant, newest first."""

    total: int
    documents: list[DocumentOut]
    names: Names = None


class IdsOut(BaseModel):
    """The ids of what was added, in order."""

    ids: list[str]
    warning: str | None = Field(None, description="If predictions will never show some of the labels.")


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
    """How many documents an undo touched."""

    documents: int


class LabelOut(BaseModel):
    """A label and what is known of it."""

    label: str
    name: str | None = Field(None, description="Its name; absent if the model has no vocabulary.")
    description: str | None = Field(None, description="What it means; absent if the vocabulary does not say so.")
    documents: int
    trained: bool
    threshold: float


class LabelsOut(BaseModel):
    """Some of the labels that are meant."""

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
    """Where a text lies on the map."""

    x: float
    y: float


class SeenOut(BaseModel):
    """What is remembered of a prediction."""

    time: str
    labels: int
    best: float


class RecentOut(BaseModel):
    """The last predictions, oldest first."""

    total: int
    empty: int
    predictions: list[SeenOut]


class SessionOut(BaseModel):
    """What the service is, and what the key that was sent may do."""

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
    """The card of the loaded model."""

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


class RefitRequest(Request):
    """Options of a refit."""

    force: bool = Field(False, description="Use the refitted model even if it is worse.")


class FiguresOut(BaseModel):
    """Scores before and after a refit, on documents that it did not learn from."""

    metric: str
    before: float
    after: float
    standard_error: float = Field(description="Standard error of the difference between `before` and `after`.")
    documents: int = Field(description="Number of documents that it learnt from.")
    held_out: int = Field(description="Number of documents that `before` and `after` were measured on.")
    labels: int
    seconds: float


class RefitOut(BaseModel):
    """The refit that is running, or the last one; `kept` if it was worse and the model stayed as it was."""

    state: Literal["never", "running", "done", "kept", "failed"]
    stage: str | None = Field(description="Current stage, while it runs.")
    done: int | None = Field(description="How much of the stage is done.")
    total: int | None
    unit: str | None = Field(description="What `done` and `total` count.")
    started: str | None
    ended: str | None
    by: str | None = Field(description="Name of the key, or --refit-every; null if another process ran it.")
    sentence: str | None = Field(description="Result or error, when it has ended.")
    figures: FiguresOut | None
    changed_documents: int | None = Field(
        description="Documents added, changed or removed since the last refit; one that changed twice counts twice. "
        "Null if the datastore does not answer."
    )


class StatusOut(BaseModel):
    """How the service is."""

    status: str

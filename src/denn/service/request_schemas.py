"""Request bodies, which FastAPI validates and describes in openapi.json."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, StringConstraints, model_validator


def _whole(number: Any) -> Any:
    """Accept 7.0 as 7, because JSON does not distinguish them."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


Few = Annotated[int, Field(ge=0, le=100), BeforeValidator(_whole)]
Many = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole)]
Label = Annotated[str, StringConstraints(min_length=1, max_length=1000, pattern=r"^[^\n]*[^\s\u001c-\u001f][^\n]*$")]
Id = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
LINE = r"^[^\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]*$"  # no control or bidi characters
Source = Annotated[
    str,
    StringConstraints(max_length=200, pattern=LINE),
    Field(description="Origin of the change, recorded in the history after the name of the key."),
]
Shown = Annotated[
    int,
    Field(ge=0, le=100_000, description="Maximum number of characters of each neighbour's text."),
    BeforeValidator(_whole),
]
Rejected = Annotated[
    list[Label],
    Field(max_length=1000, description="Labels that a person rejected; they must not be among the labels."),
]
FIELDS = 100  # maximum per object
THRESHOLDS = 1000  # maximum per request
LARGEST = 2**53 - 1  # largest integer that every JSON parser keeps exactly


# pydantic collects all mistakes before it reports any, so long lists stop at the first one to save memory and time.
Texts = Annotated[list[str], FailFast()]


class Request(BaseModel):
    """A request body that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > FIELDS:  # each unknown field would be reported separately
            raise ValueError(f"must have at most {FIELDS} fields")
        return given


def _not_many(given: Any) -> Any:
    if isinstance(given, dict) and len(given) > THRESHOLDS:  # before each is validated
        raise ValueError(f"must have at most {THRESHOLDS:,} thresholds")
    return given


class Options(Request):
    """Decision options."""

    threshold: Share | None = Field(None, description="Labels score above this; null: as the model decides.")
    thresholds: Annotated[dict[Label, Share], BeforeValidator(_not_many)] = Field(
        default_factory=dict,
        max_length=THRESHOLDS,
        description="Thresholds of single labels, which score above them; these override the others.",
    )
    per_label: bool = Field(False, description="Use a separate threshold for each label, lower for rare ones.")
    min_labels: Few = Field(0, description="Always return at least this many labels.")
    top_k: Many | None = Field(None, description="Maximum number of labels to return, best first.")
    evidence: Few = Field(10, description="Number of neighbours to return.")
    text_characters: Shown = 300


class PredictRequest(Options):
    """One text to tag."""

    text: str = Field(examples=["An editor for XML files with validation"])
    id: Id | None = Field(None, description="Stored document with this text, excluded from its own evidence.")


class BatchRequest(Options):
    """Several texts to tag."""

    texts: Texts = Field(min_length=1)


class Unlabelled(Request):
    """A text to rank."""

    text: str
    id: Id | None = Field(None, description="Stored document with this text, excluded from its own evidence.")


class QueueRequest(Request):
    """Unlabelled texts to rank."""

    documents: Annotated[list[Unlabelled], FailFast()] = Field(min_length=1)
    count: Many | None = Field(None, description="Number of texts to return; null: all.")


class NeighboursRequest(Request):
    """A text to find neighbours for."""

    text: str
    k: Many = 10
    text_characters: Shown = 300


class PlaceRequest(Request):
    """A text to place on the map."""

    text: str


class NewDocument(Request):
    """A document to add."""

    text: str
    labels: list[Label] = Field(max_length=1000)
    rejected: Rejected = []
    id: Id | None = None


class AddRequest(Request):
    """Documents to add, all or none."""

    documents: Annotated[list[NewDocument], FailFast()] = Field(min_length=1)
    source: Source = ""


class PutRequest(Request):
    """The new content of a document."""

    text: str
    labels: list[Label] = Field(max_length=1000)
    rejected: Rejected = []
    source: Source = ""


class PatchRequest(Request):
    """New labels, or labels to add, drop and reject, or a confirmation of the labels.

    A label stays rejected until it is added or dropped.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["labels"], "properties": {"labels": {"type": "array"}}},
                {"required": ["add"], "properties": {"add": {"minItems": 1}}},
                {"required": ["drop"], "properties": {"drop": {"minItems": 1}}},
                {"required": ["reject"], "properties": {"reject": {"minItems": 1}}},
                {"required": ["confirm"], "properties": {"confirm": {"const": True}}},
            ]
        }
    )

    labels: list[Label] | None = Field(None, max_length=1000)
    add: list[Label] = Field(default_factory=list, max_length=1000)
    drop: list[Label] = Field(default_factory=list, max_length=1000)
    reject: Rejected = []
    confirm: bool = Field(
        False, description="Record that the labels are right; audits skip the document until it changes."
    )
    source: Source = ""

    @model_validator(mode="after")
    def _something(self) -> PatchRequest:
        if self.labels is None and not (self.add or self.drop or self.reject or self.confirm):
            raise ValueError("must have labels, add, drop, reject or confirm")
        return self


class RenameRequest(Request):
    """A new name for a label."""

    label: Label
    name: Label


class MergeRequest(Request):
    """Labels to merge into another one."""

    labels: list[Label] = Field(min_length=1, max_length=100)
    into: Label
    source: Source = ""


class AuditRequest(Request):
    """Options of an audit."""

    count: Many = Field(default=100, description="Maximum number of documents to list.")


class RefitRequest(Request):
    """Options of a refit."""

    force: bool = Field(False, description="Keep the refitted model even if it is worse.")

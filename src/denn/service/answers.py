"""Limits on texts, and predictions and documents as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from denn.prediction_types import Neighbour
from denn.service.engine import Decided, DecisionOptions
from denn.service.problems import Refusal
from denn.service.request_schemas import Options
from denn.service.settings import Settings
from denn.types import Document
from denn.vocabulary import Vocabulary

ANSWER_CHARACTERS = 10_000_000  # maximum length of all stored texts in one response


def check_texts(settings: Settings, texts: Sequence[str]) -> None:
    """Reject requests with too many or too long texts."""
    if len(texts) > settings.texts:
        raise Refusal(413, f"The request has {len(texts):,} texts. Send at most {settings.texts} per request.")
    for number, text in enumerate(texts, 1):
        if len(text) > settings.characters:
            raise Refusal(
                413,
                f"Text {number} has {len(text):,} characters. Shorten it to at most {settings.characters:,}.",
            )


def check_answer(texts: Iterable[str], characters: int = ANSWER_CHARACTERS) -> None:
    """Reject requests for too much stored text; each text counts with at most `characters`."""
    if sum(min(len(text), characters) for text in texts) > ANSWER_CHARACTERS:
        raise Refusal(413, f"The response would have more than {ANSWER_CHARACTERS:,} characters of text. Request less.")


def decision_options(options: Options, vocabulary: Vocabulary) -> DecisionOptions:
    """Return the options of a request in the engine's form, with labels by id."""
    return DecisionOptions(
        options.threshold,
        tuple((vocabulary.id(label), threshold) for label, threshold in options.thresholds.items()),
        options.per_label,
        options.min_labels,
        options.evidence,
    )


def prediction_json(decided: Decided, options: Options) -> dict[str, Any]:
    """Return a prediction as JSON."""
    one = decided.prediction
    labels = one.labels[: options.top_k]
    chosen = set(labels)
    return {
        "labels": list(labels),
        "scores": [
            {
                "label": label,
                **({"name": one.vocabulary.name(label)} if one.vocabulary else {}),
                "score": score,
                "threshold": threshold,
                "chosen": label in chosen,
                "parts": one.parts.get(label, {}),
                "words": [{"word": word, "weight": weight} for word, weight in one.words.get(label, ())],
            }
            for (label, score), threshold in zip(one.scores.items(), decided.thresholds, strict=True)
        ],
        "confidence": one.confidence,
        "familiarity": one.familiarity,
        "unfamiliar": one.unfamiliar,
        "same_text": one.same_text,
        "neighbours": [neighbour_json(near, near.similarity, options.text_characters) for near in one.neighbours],
    } | names_json(one.vocabulary, (*one.labels, *one.scores, *_labels_of(one.neighbours)))


def names_json(vocabulary: Vocabulary, labels: Iterable[str]) -> dict[str, Any]:
    """Return the names of labels as JSON, if the model has a vocabulary."""
    return {"names": vocabulary.names(labels)} if vocabulary else {}


def documents_json(documents: Sequence[Document], vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the names of all labels of documents as JSON."""
    return names_json(vocabulary, _labels_of(documents))


def _labels_of(documents: Iterable[Document | Neighbour]) -> Iterator[str]:
    return (label for document in documents for label in (*document.labels, *document.rejected))


def neighbour_json(neighbour: Neighbour | Document, similarity: float, characters: int) -> dict[str, Any]:
    """Return a neighbour as JSON, with at most this many characters of its text."""
    return {
        "id": neighbour.id,
        "similarity": similarity,
        "labels": list(neighbour.labels),
        "rejected": list(neighbour.rejected),
        "text": neighbour.text[:characters],
    }


def document_json(document: Document, vocabulary: Vocabulary | None = None) -> dict[str, Any]:
    """Return a stored document as JSON; with a vocabulary, include the names of its labels."""
    names = {} if vocabulary is None else documents_json([document], vocabulary)
    return names | {
        "id": document.id,
        "text": document.text,
        "labels": list(document.labels),
        "rejected": list(document.rejected),
    }

"""The numbers of a report as one JSON object, with labels by id."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from denn.bundle_card import Card
from denn.report.gather import Findings
from denn.report.page import warnings
from denn.vocabulary import Vocabulary


def findings_json(found: Findings, card: Card, name: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the contents of the page: evaluation, curves, calibration, confusions, sweeps, map and errors."""
    evaluation = found.evaluation
    content: dict[str, Any] = {
        "measured_on": name,
        "model": {
            "method": card.method,
            "created": card.created,
            "corpus": {key: value for key, value in card.corpus.items() if key != "label_counts"},
            "versions": card.versions,
        },
        "warnings": warnings(found),
        "evaluation": evaluation.as_dict(),
        "labels_per_text": found.labels_per_text,
        "train_counts": dict(zip(evaluation.names, found.train_counts, strict=True)),
        "curves": found.curves,
        "calibration": found.calibration,
        "confusions": list(found.confusions),
        "confidence": found.confidence,
        "neighbourhood": None if found.neighbourhood is None else asdict(found.neighbourhood),
        "tuned_on": found.validated,
        "errors": [asdict(error) for error in found.errors],
    }
    if vocabulary:
        content["names"] = vocabulary.names(evaluation.names)
    return content

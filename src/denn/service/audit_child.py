"""The process in which a service audits: `python -m denn.service.audit_child COUNT FOLDER CREATED ADDRESS`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from denn.analysis.audit import Doubt, Suspect
from denn.model import load
from denn.service.refit_child import check_served, started


def main(count: int, folder: Path, created: str, address: str) -> None:
    """Audit the stored documents, and report the suspects or the error."""
    lines = started()
    try:
        check_served(folder, created, address)
        with load(folder) as model:
            lines.say(suspects=[as_row(one) for one in model.audit(count=count, progress=lines)])
    except Exception as error:  # the service reports any error of this process
        lines.fail(error)


def as_row(suspect: Suspect) -> dict[str, Any]:
    """Return a suspect without texts, which the service reads from its datastore."""
    return {
        "id": suspect.document.id,
        "labels": suspect.document.labels,
        "rejected": suspect.document.rejected,
        "suspicion": suspect.suspicion,
        "add": [_doubt(doubt) for doubt in suspect.add],
        "drop": [_doubt(doubt) for doubt in suspect.drop],
        "neighbours": [[one.id, one.similarity] for one in suspect.neighbours],
    }


def _doubt(doubt: Doubt) -> dict[str, Any]:
    return {
        "label": doubt.label,
        "score": doubt.score,
        "parts": dict(doubt.parts),
        "words": [{"word": word, "weight": weight} for word, weight in doubt.words],
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])

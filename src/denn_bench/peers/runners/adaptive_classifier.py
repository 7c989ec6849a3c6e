"""adaptive-classifier: a frozen encoder, prototypes and a small head with sigmoid outputs, with its own settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .contract import Document, Job, Matrix, Trained, add_in_portions, spread

PACKAGES = ("torch==2.13.0", "adaptive-classifier==0.3.1", "transformers==4.57.6", "numpy==2.4.6")


def train(job: Job) -> Trained:
    """Add as many documents as the measured speed allows, in growing portions."""
    from adaptive_classifier import MultiLabelAdaptiveClassifier

    _limit_threads(job.cores)
    classifier = MultiLabelAdaptiveClassifier(str(job.encoder), seed=job.seed)

    def add(documents: Sequence[Document]) -> None:
        classifier.add_examples(
            [document.text or " " for document in documents],
            [[str(column) for column in document.labels] for document in documents],
        )

    added = add_in_portions(job, add)
    classifier.save(str(job.folder), include_onnx=False)
    columns = sorted(int(name) for name in classifier.label_to_id)

    def score(texts: Sequence[str]) -> Matrix:
        found = [dict(classifier.predict_multilabel(text or " ", threshold=0.0)) for text in texts]
        return spread([[row[str(column)] for column in columns] for row in found], columns, len(job.labels))

    def own(scores: Matrix, _: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Apply its thresholds; if no label reaches its threshold, assign the best label."""
        cuts = np.full(len(job.labels), np.inf, dtype=np.float32)
        for name, cut in classifier.label_thresholds.items():
            cuts[int(name)] = cut
        decided = scores >= cuts
        empty = np.flatnonzero(~decided.any(axis=1))
        decided[empty, scores[empty].argmax(axis=1)] = True
        return decided

    packages = ["adaptive-classifier", "transformers", "torch"]
    return Trained(score, added, "fewer documents", added == len(job.train), packages, own)


def _limit_threads(cores: int) -> None:
    """Start ONNX Runtime with one thread per core; it would use all cores of the machine, whatever the affinity."""
    import onnxruntime

    start = onnxruntime.InferenceSession.__init__

    def start_limited(session: Any, model: Any, sess_options: Any = None, *rest: Any, **options: Any) -> None:
        sess_options = sess_options or onnxruntime.SessionOptions()
        sess_options.intra_op_num_threads = cores
        start(session, model, sess_options, *rest, **options)

    onnxruntime.InferenceSession.__init__ = start_limited

"""SetFit: fine-tune the encoder on pairs, then fit one logistic regression per label; default TrainingArguments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .contract import SAFETY, Job, Matrix, Trained, gold

PACKAGES = ("torch==2.13.0", "setfit==1.2.0", "sentence-transformers==6.2.0", "transformers==5.23.0", "datasets==5.2.0")
TRIAL = 64  # documents to measure the speed of embedding
MOST = 10_000  # documents: SetFit lists all pairs of them, 20 bytes each
HEAD = 1e-4  # approximate seconds per document and label of a logistic regression
BATCH = 16  # pairs; a step encodes twice as many texts, and its backward pass takes about as long as two forward passes


def train(job: Job) -> Trained:
    """Fine-tune on pairs for half of the time; embed documents and fit the head for the other half."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments
    from transformers import TrainerCallback

    model = SetFitModel.from_pretrained(str(job.encoder), multi_target_strategy="one-vs-rest")
    texts = [document.text for document in job.sample(TRIAL)]
    model.encode(texts[:8])
    begun = time.time()
    model.encode(texts)
    pace = (time.time() - begun) / len(texts)
    left = job.left()
    count = min(int(SAFETY * left / 2 / (pace + HEAD * len(job.labels))), MOST)
    documents = job.sample(max(count, 2))
    head = len(documents) * (pace + HEAD * len(job.labels))
    steps = max(int(SAFETY * (left - head) / (3 * 2 * BATCH * pace)), 1)
    done: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Stop when the head needs the remaining time."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            done.append(time.time())
            control.should_training_stop = control.should_training_stop or job.left() < head / SAFETY + 3

    rows = {"text": [document.text for document in documents], "label": gold(documents, len(job.labels)).tolist()}
    arguments = TrainingArguments(
        output_dir=str(job.folder.parent / "checkpoints"), max_steps=steps, seed=job.seed, save_strategy="no",
        report_to="none", show_progress_bar=False,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Dataset.from_dict(rows), callbacks=[Clock()]).train()
    model.save_pretrained(str(job.folder))

    def score(texts: Sequence[str]) -> Matrix:
        return np.asarray(model.predict_proba(list(texts), as_numpy=True), dtype=np.float32)

    limit = "fewer documents, and max_steps from measured speed"
    packages = ["setfit", "sentence-transformers", "transformers", "torch", "scikit-learn"]
    return Trained(score, len(documents), limit, False, packages, lambda scores, _: scores > 0.5, {"steps": len(done)})

"""Hugging Face Trainer: a classifier with sigmoid outputs on the same encoder, default TrainingArguments."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .contract import SAFETY, Job, Matrix, Trained, gold

PACKAGES = ("torch==2.13.0", "transformers[torch]==5.22.2")
TRIAL, STEPS = 0.03, 4  # to measure the speed: this share of the time, but at least these steps without the first
EPOCHS, SIZE = 3, 8  # TrainingArguments' own epochs and batch
BATCH = 64  # texts scored at once


def train(job: Job) -> Trained:
    """Train three epochs, or as many steps as the measured speed allows."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed

    set_seed(job.seed)
    tokenizer = AutoTokenizer.from_pretrained(job.encoder)

    def fresh() -> Any:
        return AutoModelForSequenceClassification.from_pretrained(
            job.encoder, num_labels=len(job.labels), problem_type="multi_label_classification"
        )

    wanted = gold(job.train, len(job.labels)).astype(np.float32)

    class Rows(torch.utils.data.Dataset[dict[str, Any]]):
        """Training documents, tokenized when they are read."""

        def __len__(self) -> int:
            return len(job.train)

        def __getitem__(self, row: int) -> dict[str, Any]:
            return {**tokenizer(job.train[row].text, truncation=True), "labels": wanted[row]}

    collate = DataCollatorWithPadding(tokenizer)
    begun = time.time()
    ends = _train(job, fresh(), Rows(), collate, -1, TRIAL * job.seconds)
    pace = (ends[-1] - ends[0]) / max(len(ends) - 1, 1)
    left = job.left() - (ends[0] - begun)  # loading the model takes this long again
    fitting, whole = int(SAFETY * left / pace), EPOCHS * -(-len(job.train) // SIZE)
    set_seed(job.seed)
    model = fresh()
    steps = _train(job, model, Rows(), collate, -1 if fitting >= whole else max(fitting, 1), job.seconds)
    model.save_pretrained(job.folder)
    tokenizer.save_pretrained(job.folder)
    model.eval()

    def score(texts: Sequence[str]) -> Matrix:
        parts = []
        with torch.inference_mode():
            for begin in range(0, len(texts), BATCH):
                batch = tokenizer(
                    list(texts[begin : begin + BATCH]), truncation=True, padding=True, return_tensors="pt"
                )
                parts.append(model(**batch.to(model.device)).logits.sigmoid().float().cpu().numpy())
        return np.concatenate(parts)

    done = len(steps)
    return Trained(
        score, min(SIZE * done, len(job.train)), "max_steps from measured speed, and a callback", done >= whole,
        ["transformers", "torch"], lambda scores, _: scores > 0.5, {"steps": done, "seconds_per_step": pace},
    )  # fmt: skip


def _train(job: Job, model: Any, rows: Any, collate: Any, steps: int, seconds: float) -> list[float]:
    """Train this many steps (-1: all epochs) or seconds, and return the end time of each step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        """Stop at the end of the time limit."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            ends.append(time.time())
            taken = ends[-1] - ends[0]
            ended = len(ends) > STEPS and taken > seconds
            control.should_training_stop |= ended or job.left() < 3 + taken / len(ends)

    arguments = TrainingArguments(
        output_dir=str(job.folder.parent / "checkpoints"), max_steps=steps, seed=job.seed, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    Trainer(model, arguments, data_collator=collate, train_dataset=rows, callbacks=[Clock()]).train()
    return ends

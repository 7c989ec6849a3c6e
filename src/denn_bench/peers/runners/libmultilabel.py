"""LibMultiLabel as its two quickstarts use it: linear one-vs-rest on TF-IDF, and BERT with this benchmark's encoder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np

from .contract import Document, Job, Matrix, Trained, fitting_documents, spread

PACKAGES = (
    "torch==2.13.0", "libmultilabel[nn]==0.10.0", "lightning==2.6.6", "transformers==5.23.0", "numpy==2.4.6",
    "setuptools==80.9.0",  # its torchmetrics needs pkg_resources, which later versions lack
)  # fmt: skip
LIBLINEAR = "-s 2 -B 1 -e 0.0001 -q"  # as in example_config/rcv1/l2svm.yml, which the quickstart of the command uses
EPOCHS, BATCH, TOKENS, RATE = 15, 8, 512, 3e-5  # as in the quickstart of BERT
SAVING = 5.0  # seconds


def train(job: Job) -> Trained:
    """Train the job's variant."""
    return {"linear": _linear, "bert": _bert}[job.variant](job)


def _linear(job: Job) -> Trained:
    import pandas as pd
    from libmultilabel import linear

    def fit(documents: Sequence[Document]) -> tuple[Any, Any]:
        frame = pd.DataFrame(
            {
                "y": [" ".join(map(str, document.labels)) for document in documents],
                "x": [document.text for document in documents],
            }
        )
        preprocessor = linear.Preprocessor()
        data = preprocessor.fit_transform(linear.load_dataset("dataframe", frame))
        return preprocessor, linear.train_1vsrest(
            data["train"]["y"], data["train"]["x"], options=LIBLINEAR, verbose=False
        )

    documents = fitting_documents(job, fit)
    preprocessor, model = fit(documents)
    linear.save_pipeline(str(job.folder), preprocessor, model)
    columns = [int(name) for name in preprocessor.label_mapping]

    def score(texts: Sequence[str]) -> Matrix:
        part = {"x": list(texts), "y": [[] for _ in texts]}
        features = preprocessor.transform({"data_format": "dataframe", "test": part})["test"]["x"]
        return spread(linear.predict_values(model, features), columns, len(job.labels))

    complete = len(documents) == len(job.train)
    packages = ["libmultilabel", "liblinear-multicore"]
    return Trained(score, len(documents), "fewer documents", complete, packages, lambda scores, _: scores > 0)


def _bert(job: Job) -> Trained:
    import torch
    from libmultilabel.nn.data_utils import get_dataset_loader
    from libmultilabel.nn.nn_utils import init_device, init_model, init_trainer, set_seed
    from lightning.pytorch.callbacks import Timer
    from transformers import AutoTokenizer

    set_seed(job.seed)
    on_cpu = not torch.cuda.is_available()
    device = init_device(on_cpu)
    classes = [f"{column:06d}" for column in range(len(job.labels))]  # sorts in column order
    tokenizer = AutoTokenizer.from_pretrained(job.encoder)
    model = init_model(
        model_name="BERT",
        network_config={"encoder_hidden_dropout": 0.1, "lm_weight": str(job.encoder)},
        classes=classes,
        learning_rate=RATE,
        monitor_metrics=["Micro-F1", "Macro-F1", "P@1", "P@3", "P@5"],
    )

    def loader(documents: Sequence[Document], shuffle: bool = False) -> Any:
        rows = [
            {"index": row, "text": document.text, "label": [classes[column] for column in document.labels]}
            for row, document in enumerate(documents)
        ]
        return get_dataset_loader(
            rows, classes, device, max_seq_length=TOKENS, batch_size=BATCH, shuffle=shuffle, tokenizer=tokenizer
        )

    # No validation documents: it would score them after the time limit, and less than an epoch fits anyway.
    trainer = init_trainer(
        str(job.folder), epochs=EPOCHS, val_metric="P@5", use_cpu=on_cpu, silent=True, save_checkpoints=False
    )
    trainer.callbacks.append(Timer(timedelta(seconds=max(job.left() - SAVING, 1)), interval="step"))
    trainer.fit(model, loader(job.train, shuffle=True))
    trainer.save_checkpoint(str(job.folder / "last.ckpt"))
    network = model.network.to(device).eval()

    def score(texts: Sequence[str], padded: bool = False) -> Matrix:
        parts = []
        with torch.inference_mode():
            for batch in loader([Document(text, ()) for text in texts]):
                tokens = batch["text"] if padded else _unpadded(batch["text"], tokenizer.pad_token_id)
                parts.append(network({"text": tokens.to(device)})["logits"].sigmoid().cpu())
        return np.asarray(torch.cat(parts).float().numpy())

    steps = int(trainer.global_step)
    return Trained(
        score, min(steps * BATCH, len(job.train)), "Lightning's Timer", bool(trainer.current_epoch >= EPOCHS),
        ["libmultilabel", "lightning", "transformers", "torch"], lambda scores, _: scores > 0.5, {"steps": steps},
        partial(score, padded=True),
    )  # fmt: skip


def _unpadded(tokens: Any, pad: int) -> Any:
    """Return (texts, tokens) without the columns that are padding in every row; padding has no weight in attention."""
    return tokens[:, : max(1, int((tokens != pad).sum(dim=1).max()))]

"""What methods share that train a network by gradient steps: batches, validation, selection."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.encoders.packed import Layout, send
from denn.encoders.transformer import TransformerEncoder
from denn.errors import BundleError, ConfigError
from denn.methods.network import Batch, Network, NeuralParameters
from denn.training.gradients import Gradients, Inputs
from denn.training.loop import Plan, fit
from denn.types import Corpus, Document, LabelSpace, Progress, Scores
from denn.untrusted import REMEDY, first_line

DOUBT = 10.0  # documents of a label set in validation at which its ratio counts half


class Training:
    """The training of one network on one corpus."""

    def __init__(self, network: Network, corpus: Corpus, parameters: NeuralParameters) -> None:
        self.network, self.corpus, self.parameters = network, corpus, parameters
        self.train_tokens = network.tokenize([document.text for document in corpus.train])
        self.valid_tokens = network.tokenize([document.text for document in corpus.valid])
        self.on_device = self.train_tokens.to(network.device)
        self.labels = corpus.labels.matrix(corpus.train).to(network.device)
        self.valid_labels = corpus.labels.matrix(corpus.valid)
        # Recorded steps need few shapes: passes are filled up to a multiple that one last document can be.
        recorded = network.recordable and network.encoder.kernels
        self.multiple = 2 ** min(9, network.encoder.max_length.bit_length() - 1) if recorded else 1

    def run(self, workdir: Path, progress: Progress) -> dict[str, object]:
        """Start the network, run the loop, and return what the bundle should remember."""
        p, cut = self.parameters, self.train_tokens.cut
        if cut:
            progress.note(
                f"{cut} of {len(self.train_tokens)} documents are cut at {self.network.encoder.max_length} tokens"
            )
        budget = self._start(workdir, progress)
        plan = Plan(**{f.name: getattr(p, f.name) for f in fields(Plan)} | {"time_budget": budget})
        tokens = self.train_tokens.lengths * self.network.views
        weights = as_in(self.corpus.train, self.corpus.valid) if p.draw == "as_valid" else None
        gradients = Gradients(self.network.parameters(), self.prepare, self.compute, self.multiple > 1)
        groups = self.network.groups(p)
        state = fit(self.network, groups, gradients, self.validate, tokens, plan, workdir, progress, weights)
        return {
            "documents_cut": cut,
            "max_length": self.network.encoder.max_length,
            "steps": state.step,
            "best_step": state.best_step,
            "seconds": round(state.seconds, 1),
            "training_seconds": round(state.seconds - state.validation_seconds, 3),
            "validation_seconds": round(state.validation_seconds, 3),
            "tokens": state.tokens,
            "history": state.history,
        }

    def _start(self, workdir: Path, progress: Progress) -> float | None:
        """Start the network and return the seconds left for the loop: the budget less this start and the saving.

        A resumed run takes both from its checkpoint.
        """
        file = workdir / "start.json"
        if file.exists() and (workdir / "last.safetensors").exists():
            return self._left(float(json.loads(file.read_text())["seconds"]))
        begun = time.monotonic()
        later = self.network.start(self.train_tokens, self.labels, self.parameters, progress)
        spent = time.monotonic() - begun + later
        file.write_text(json.dumps({"seconds": spent}))
        left = self._left(spent)
        if left == 0:
            progress.note("the time budget leaves no time to train: embedding the documents takes all of it")
        return left

    def _left(self, spent: float) -> float | None:
        budget = self.parameters.time_budget
        return None if budget is None else max(0.0, budget - spent)

    def prepare(self, rows: Tensor) -> Inputs:
        """Lay a batch out on the device: ids, starts, labels, seeds; the views of a text lie side by side."""
        device = self.network.device
        rows = rows[self.train_tokens.lengths[rows].argsort(stable=True)]  # equal lengths side by side
        labels = self.labels[send(rows, device)]
        ids, layout = self.on_device.pack(rows.repeat_interleave(self.network.views), self.multiple)
        ids = self.network.alter(ids, layout)
        self.layout = layout
        encoder, seeds = self.network.encoder, torch.empty(0)
        if self.multiple > 1 and isinstance(encoder, TransformerEncoder):
            seeds = encoder.draw_seeds()
        return ids, layout.starts, labels, seeds

    def compute(self, ids: Tensor, starts: Tensor, labels: Tensor, seeds: Tensor) -> Tensor:
        """Return the network's loss of what `prepare` returned."""
        recorded = self.multiple > 1
        layout = Layout.at(starts, len(ids), self.network.encoder.max_length) if recorded else self.layout
        with self.network.encoder.autocast():
            return self.network.loss(Batch(ids, layout, labels, seeds if recorded else None))

    def validate(self) -> dict[str, float]:
        """Score the validation part: micro-F1 at 0.5, which selects the weights, and at the tuned threshold."""
        if not len(self.valid_tokens):
            return {"score": 0.0}
        scores = self.judge(self.network.score(self.valid_tokens)["final"])
        return scores | {"score": scores["micro_f1"]}

    def judge(self, scores: Tensor) -> dict[str, float]:
        """Compare (n,L) scores with the validation part's labels."""
        gold = self.valid_labels
        return {"micro_f1": micro_f1(scores, gold, 0.5), "tuned_micro_f1": micro_f1(scores, gold)}


class Neural(ABC):
    """A method that trains one network; a subclass says which."""

    Parameters: ClassVar[Any]
    network: Any  # the Network that `make` returns

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters
        self.names: tuple[str, ...] = ()

    @abstractmethod
    def make(self, encoder: Any, labels: int) -> Network:
        """Make the network for so many labels; what is too much for it is an error here, before any training."""

    def training(self, corpus: Corpus) -> Training:
        """Prepare the training of the network."""
        return Training(self.network, corpus, self.parameters)

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress) -> Mapping[str, object]:
        """Train the network and keep the weights of the best validation."""
        p = self.parameters
        device = device_of(p.device)
        with torch.random.fork_rng(devices=[]):  # the caller's generator stays as it is
            torch.manual_seed(p.seed)
            network = self.make(p.new_encoder(corpus), len(corpus.labels))
            network.prepare(corpus)
        self.network, self.names = network.to(device), corpus.labels.names
        return self.training(corpus).run(workdir, progress)

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts: (n,L)."""
        parts = self.network.score(self.network.tokenize(texts))
        return Scores(parts.pop("final"), self.names, parts)

    def save(self, folder: Path) -> None:
        """Write the network."""
        self.network.save(folder)

    @classmethod
    def load(cls, folder: Path, parameters: Any, labels: LabelSpace) -> Self:
        """Read what `save` wrote."""
        self = cls(parameters)
        self.names = labels.names
        encoder = parameters.load_encoder(folder / "encoder")
        try:
            with torch.device("meta"):  # what parameters describe takes memory only where the file has weights for it
                self.network = self.make(encoder, len(labels))
        except (RuntimeError, TypeError, OverflowError) as error:  # torch's for sizes beyond 64 bits
            raise BundleError(
                f"{folder}: the parameters describe a network that is too large ({first_line(error)}). {REMEDY}"
            ) from error
        self.network.load(folder)
        self.network.to(device_of(parameters.device if parameters.device == "cpu" else "auto")).eval()
        return self


def as_in(train: Sequence[Document], valid: Sequence[Document]) -> Tensor:
    """Return (n,) weights that give each label set of `train` about the share that it has in `valid`.

    A set seen v times where its share of `train` lets E be expected weighs (v + a) / (E + a): their ratio, drawn
    towards 1 where little is known of it.
    """
    sets = [frozenset(document.labels) for document in train]
    here, there = Counter(sets), Counter(frozenset(document.labels) for document in valid)
    expected = {labels: count * len(valid) / len(train) for labels, count in here.items()}
    return torch.tensor([(there[labels] + DOUBT) / (expected[labels] + DOUBT) for labels in sets])


def micro_f1(scores: Tensor, gold: Tensor, threshold: float | None = None) -> float:
    """Return the micro-F1 of (n,L) scores, by default at the threshold that makes it best."""
    if threshold is None:
        threshold = tune_global(scores, gold)
    return multilabel_scores(decide(scores, threshold), gold)["micro_f1"]


def device_of(name: str) -> torch.device:
    """Return the device of a name; `auto` takes CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"Got the device {name!r}, expected auto, cpu, cuda or cuda:0.")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"Got the device {name!r}, but no CUDA device is to be seen; use --set device=cpu.")
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it recurrent layers may repeat inexactly
    if device.index is not None:
        torch.cuda.set_device(device)  # kernels and recordings run on the current one
    return device

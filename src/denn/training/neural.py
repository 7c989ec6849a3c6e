"""Shared by methods that train a network by gradient steps: creating, saving and loading it."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from denn.clock import Clock
from denn.errors import BundleError, ConfigError
from denn.prediction_types import Scores
from denn.protocols import Method, Progress
from denn.training.kept import KeptStates
from denn.training.network import Network, TransformerParameters
from denn.training.session import Training
from denn.types import Corpus, Fitted, LabelSpace
from denn.untrusted import REMEDY, first_line
from denn.wording import counted

DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


class Neural(Method, ABC):
    """A method that trains one network, which a subclass defines."""

    Parameters: ClassVar[Any]
    network: Any  # the Network that `make` returns
    kept: KeptStates | None

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters
        self.names: tuple[str, ...] = ()

    @abstractmethod
    def make(self, encoder: Any, labels: int) -> Network:
        """Create the network for this many labels; raise an error now, not in training, if they are too many."""

    def training(self, corpus: Corpus) -> Training:
        """Prepare the training of the network."""
        return Training(self.network, corpus, self.parameters)

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Train the network and keep the weights of the best validation."""
        p, begun = self.parameters, time.monotonic()
        device = device_of(p.device)
        with torch.random.fork_rng(devices=[]):  # leave the caller's generator unchanged
            torch.manual_seed(p.seed)
            encoder = p.load_encoder(self.start / "encoder") if self.start else p.new_encoder(corpus)
            if isinstance(p, TransformerParameters):
                p.freeze(encoder, device)
            network = self.make(encoder, len(corpus.labels))
            network.prepare(corpus)
            if self.start:
                network.continue_from(self.start)
        self.network, self.names = network.to(device), corpus.labels.names
        load_seconds = time.monotonic() - begun
        training = self.training(corpus)
        training.load_seconds, training.kept = load_seconds, self.kept
        facts = training.run(workdir, progress, clock or Clock(p.time_budget))
        return Fitted(facts, training.corpus)

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts: (n,L)."""
        parts = self.network.score(self.network.tokenize(texts))
        return Scores(parts.pop("final"), self.names, parts)

    def save(self, folder: Path) -> None:
        """Write the network."""
        self.network.save(folder)

    @classmethod
    def load(
        cls,
        folder: Path,
        parameters: Any,
        labels: LabelSpace,
        learnt: Path | None = None,
        shared: Self | None = None,
    ) -> Self:
        """Read what `save` wrote, and from the folder `learnt` what a refit has learnt since.

        If `shared` is given, take from it what no refit changes.
        """
        self = cls(parameters)
        self.names = labels.names
        encoder = shared.network.encoder if shared else parameters.load_encoder(folder / "encoder")
        try:
            with torch.device("meta"):  # allocate memory only for weights that are in the file
                self.network = self.make(encoder, len(labels))
        except (RuntimeError, TypeError, OverflowError) as error:  # torch's for sizes beyond 64 bits
            raise BundleError(
                f"{folder}: the parameters describe a network that is too large ({first_line(error)}). {REMEDY}"
            ) from error
        self.network.load(learnt or folder)
        if shared:
            del self.network.encoder  # it must not be moved while others use it
            self.network.to(shared.network.device)
            self.network.encoder = encoder
        else:
            self.network.to(device_of(parameters.device))
        self.network.eval()
        return self


def device_of(name: str) -> torch.device:
    """Return the device with a name; `auto` is CUDA if available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if not DEVICE.fullmatch(name):  # torch.device would turn cuda:300 into cuda:44
        raise ConfigError(f"Unknown device {name!r}, expected auto, cpu, cuda or cuda:0.")
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"The device {name!r} is not available: no CUDA device found. Use --set device=cpu.")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes recurrent layers reproducible
    index = name.partition(":")[2]
    if not index:
        return torch.device("cuda")
    if int(index) >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"The device {name!r} is not available: got index {int(index)}, expected at most {count - 1}, because "
            f"this machine has {counted(count, 'CUDA device')}. Use --set device=cuda."
        )
    device = torch.device("cuda", int(index))
    torch.cuda.set_device(device)  # kernels and recordings run on the current device
    return device

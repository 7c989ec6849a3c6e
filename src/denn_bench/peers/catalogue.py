"""The peers by name, with their titles and runners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Peer:
    """A row of the table."""

    title: str
    runner: str  # module in `runners`
    variant: str = ""  # passed to the runner
    gpu: bool = False  # whether it can use a GPU

    @property
    def packages(self) -> Sequence[str]:
        """Return the packages of its environment; none means denn's own environment."""
        return self._constant("PACKAGES")

    @property
    def carriers(self) -> Sequence[str]:
        """Return packages that only carry data and are installed without dependencies."""
        return self._constant("CARRIERS")

    def _constant(self, name: str) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(import_module(f"denn_bench.peers.runners.{self.runner}"), name, ())
        return found


PEERS = {
    "denn": Peer("denn", "denn_train", gpu=True),
    "svm": Peer("TF-IDF + linear SVM (scikit-learn)", "svm"),
    "setfit": Peer("SetFit", "setfit", gpu=True),
    "trainer": Peer("Hugging Face Trainer", "trainer", gpu=True),
    "libmultilabel-linear": Peer("LibMultiLabel, linear", "libmultilabel", "linear"),
    "libmultilabel-bert": Peer("LibMultiLabel, BERT", "libmultilabel", "bert", gpu=True),
    "adaptive-classifier": Peer("adaptive-classifier", "adaptive_classifier", gpu=True),
    "annif-omikuji": Peer("Annif, Omikuji", "annif", "omikuji"),
    "annif-fasttext": Peer("Annif, fastText", "annif", "fasttext"),
    "annif-ensemble": Peer("Annif, ensemble of both", "annif", "ensemble"),
}

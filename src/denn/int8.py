"""Choose whether a model predicts in 8-bit integers: if that is faster and loses little F1 on validation documents."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from denn.bundle_card import Card
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide
from denn.encoders.quantised import Ranges
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.encoders.weights import cache_folder
from denn.errors import ConfigError
from denn.evaluation import decision_thresholds
from denn.methods.neighbours import WithNeighbours
from denn.protocols import Method
from denn.types import LabelSpace
from denn.validation import Kept
from denn.witnesses.texts import Texts

log = logging.getLogger(__name__)

MOST_LOSS = 0.1  # percentage points of micro-F1
LEAST_DOCUMENTS = 200  # fewer cannot show such a small loss
LEAST_GAIN = 1.1  # times as fast as without int8
AROUND = torch.linspace(-0.5, 0.5, 11)  # offsets from the tuned threshold, in logits
PATIENCE = 30.0  # seconds that measuring F1 may take unless int8 was requested
TIMED_TOKENS, ROUNDS = 256, 3
REVISION = 1  # increase when `denn.encoders.quantised` computes differently, so that int8 is measured again


@dataclass(frozen=True)
class Measured:
    """The loss and gain of 8-bit integers for a model on this machine."""

    documents: int
    loss: float  # percentage points of micro-F1
    gain: float  # times as fast as without int8
    ranges: Sequence[Ranges]  # ranges of the values that the integers represent

    @property
    def is_allowed(self) -> bool:
        """Whether the loss is small enough."""
        return self.loss <= MOST_LOSS

    @property
    def sentence(self) -> str:
        """The measured loss, in words."""
        change = f"{'loses' if self.loss > 0 else 'gains'} {abs(self.loss):.2f} points of micro-F1"
        return f"int8 {change} on {self.documents:,} validation documents"


def prefer_int8(method: Method, card: Card, folder: Path) -> None:
    """Predict in 8-bit integers if they are faster here and accurate enough, which is measured once."""
    if why_not(method, card) or not isinstance(method, WithNeighbours):
        return
    known = _recall(card) or _measure(method, card, folder, PATIENCE)
    if known is None:
        log.info("int8 is off, because measuring its accuracy would take long; --precision int8 measures it once.")
    elif known.is_allowed and known.gain >= LEAST_GAIN:
        use(method, known)
        log.info("Predicting in int8, %.1f times as fast: %s.", known.gain, known.sentence)


def use_remembered(method: Method, card: Card) -> bool:
    """Predict in 8-bit integers if an earlier measurement favours them; return whether there is a measurement."""
    if why_not(method, card) or not isinstance(method, WithNeighbours):
        return False
    known = _recall(card)
    if known and known.is_allowed and known.gain >= LEAST_GAIN:
        use(method, known)
    return known is not None


def require_int8(method: Method, card: Card, folder: Path) -> None:
    """Predict in 8-bit integers; raise a ConfigError if the model cannot, or if that costs too much F1."""
    if reason := why_not(method, card):
        raise ConfigError(f"int8 cannot be used: {reason}. Use --precision auto.")
    assert isinstance(method, WithNeighbours)
    known = _recall(card) or _measure(method, card, folder, math.inf)
    assert known is not None, "no time limit"
    if not known.is_allowed:
        raise ConfigError(f"int8 cannot be used: {known.sentence}, more than {MOST_LOSS}. Use --precision auto.")
    use(method, known)


def use(method: WithNeighbours, known: Measured) -> None:
    """Score texts in 8-bit integers with these ranges from now on."""
    method.network.encoder.quantise(known.ranges)
    method.in_int8 = True


def why_not(method: Method, card: Card) -> str | None:
    """Return why a model cannot predict in 8-bit integers; None if it can."""
    if not isinstance(method, WithNeighbours):
        return f"the method {card.method!r} does not support it"
    if not method.network.encoder.can_quantise:
        return "only BERT, RoBERTa and MPNet with GELU support it, on a CPU and with a torch that has oneDNN"
    if not card.validation or card.corpus["valid"] < LEAST_DOCUMENTS:
        return f"the model keeps fewer than {LEAST_DOCUMENTS} validation documents, too few to measure the loss of F1"
    return None


def _seconds_a_token(encoder: TransformerEncoder, tokens: Tokens) -> tuple[float, float]:
    """Time a small pass in the current precision and in 8-bit integers, alternately."""
    some = tokens.first(max(1, int((tokens.offsets <= TIMED_TOKENS).sum()) - 1))
    times = [
        (_seconds(lambda: encoder.encode(some)), _seconds(lambda: encoder.encode(some, in_int8=True)))
        for _ in range(ROUNDS + 1)
    ][1:]
    exact, fast = (statistics.median(column) / len(some.flat) for column in zip(*times, strict=True))
    return exact, fast


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _measure(method: WithNeighbours, card: Card, folder: Path, patience: float) -> Measured | None:
    """Compare both precisions on the kept documents and their stored neighbours, and save the result.

    Return None if that would take more than `patience` seconds. The loss is a mean over thresholds around the tuned
    one, because the tuned one is where the exact scores of these very documents happen to do best.
    """
    kept, encoder = Kept.load(folder / card.validation), method.network.encoder
    texts = [document.text for document in kept.documents]
    tokens = encoder.tokenize(texts)
    ranges = encoder.measure_ranges(tokens)
    encoder.quantise(ranges)
    exact, fast = _seconds_a_token(encoder, tokens)
    if fast * len(tokens.flat) > patience:
        return None
    log.info("Measuring int8 on %s validation documents, once for this model.", f"{len(texts):,}")
    gold = LabelSpace(method.names).matrix(kept.documents)

    def micro_f1(vectors: Tensor) -> float:
        asked = Texts(texts, lambda _: vectors, lambda found: method.search(found, method.parameters.k))
        final = method.score(asked).final[:, : len(method.names)]
        return statistics.mean(multilabel_scores(decide(final, cut), gold)["micro_f1"] for cut in cuts)

    tuned = torch.as_tensor(decision_thresholds(card.thresholds["final"], len(method.names)))
    cuts = [torch.sigmoid(torch.logit(tuned, 1e-3) + offset) for offset in AROUND]
    loss = 100 * (micro_f1(kept.vectors) - micro_f1(method.network.encode(tokens, in_int8=True)))
    measured = Measured(len(texts), round(loss, 4), round(exact / fast, 3), ranges)
    _remember(card, measured)
    return measured


def _file(card: Card) -> Path:
    """Return the file of a model's saved measurement; its name changes whenever anything is learnt again."""
    known = json.dumps([REVISION, card.created, card.digests], sort_keys=True)
    return cache_folder() / "int8" / f"{hashlib.sha256(known.encode()).hexdigest()[:32]}.safetensors"


def _recall(card: Card) -> Measured | None:
    """Return the saved measurement; None if there is none or it cannot be read."""
    try:
        with safe_open(_file(card), "pt") as file:
            facts, layers = file.metadata(), len(file.keys()) // len(Ranges._fields)
            ranges = [Ranges(*(file.get_tensor(f"{i}.{name}") for name in Ranges._fields)) for i in range(layers)]
            return Measured(int(facts["documents"]), float(facts["loss"]), float(facts["gain"]), ranges)
    except (OSError, SafetensorError, ValueError, TypeError, KeyError):
        return None


def _remember(card: Card, measured: Measured) -> None:
    file = _file(card)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".part")
        tensors = {f"{i}.{name}": tensor for i, r in enumerate(measured.ranges) for name, tensor in r._asdict().items()}
        facts = {name: str(getattr(measured, name)) for name in ("documents", "loss", "gain")}
        save_file(tensors, unfinished, facts)
        unfinished.replace(file)
    except (OSError, SafetensorError) as error:
        log.debug("The int8 measurement could not be saved: %s", error)

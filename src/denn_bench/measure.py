"""Measurements of a trained model: scores on validation and test, decisions, costs, sweeps."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from denn.analysis.curves import threshold_curve
from denn.analysis.sweeps import Searched, datastore_sweep, sweep
from denn.core.metrics import LabelTable, label_table
from denn.core.thresholds import GRID, decide
from denn.encoders.transformer import TransformerEncoder
from denn.evaluation import Evaluation, concatenate, evaluate, systems_of
from denn.methods.neighbours import WithNeighbours
from denn.model import Model
from denn.prediction_types import Scores
from denn.protocols import Progress, Retriever
from denn.report.combination import combination_of
from denn.types import Corpus, Document, Stage
from denn_bench.machine import peak_memory
from denn_bench.paper import GROUPS
from denn_bench.result import PREDICTION
from denn_bench.systems.label_tokens import LabelTokens

FIXED = (0.4, 0.45, 0.5)  # those of the paper's code
DIGITS = 6
TIMED, TIMED_ON_GPU = 1000, 4096  # documents
ROUNDS = 5  # of timing on a GPU


class Scored(NamedTuple):
    """A model's scores of the documents of one split."""

    scores: Scores
    similarity: Tensor | None  # (n,k) cosine similarities of the neighbours; None without a datastore


def score(model: Model, documents: Sequence[Document], progress: Progress) -> Scored:
    """Score documents and report progress."""
    progress.start(Stage("scoring", len(documents)))
    batches, near, size = [], [], model.batch()
    for start in range(0, len(documents), size):
        scores = model.score([document.text for document in documents[start : start + size]])
        found = replace(scores, alternatives=model.method.alternatives(scores), neighbours=None)
        batches.append(found.cpu())
        if scores.neighbours is not None:
            near.append(scores.neighbours.similarity)
        progress.advance(min(start + size, len(documents)))
    return Scored(concatenate(batches), torch.cat(near) if near else None)


def measure(model: Model, corpus: Corpus, scores: Scores, valid: Scores | None) -> dict[str, Any]:
    """Return the parts of a result that depend on test and validation scores: thresholds, metrics, decisions."""
    counts = Counter(label for document in corpus.train for label in document.labels)
    # One threshold for all labels, as for every other system, even if the model has one for each.
    thresholds = {part: one.model_copy(update={"decides": "tuned"}) for part, one in model.card.thresholds.items()}
    used = {part: thresholds[part].overall for part in systems_of(scores)}
    decided = {part: decide(values, used[part]) for part, values in systems_of(scores).items()}
    gold = corpus.labels.matrix(corpus.test)
    found = evaluate(scores, corpus.test, thresholds, counts, fixed=FIXED)
    return {
        "thresholds": used,
        "test": _test(found, decided, gold, counts) | {"empty_gamma": _empty_gamma(model, scores)},
        "valid": valid and {"systems": evaluate(valid, corpus.valid, thresholds, counts, fixed=FIXED).systems},
        "curves": {
            "threshold": list(GRID),
            "test": _curves(scores, gold),
            "valid": valid and _curves(valid, corpus.labels.matrix(corpus.valid)),
        },
        "decisions": {"gold": _columns(gold), **{part: _columns(chosen) for part, chosen in decided.items()}},
    }


def speed(model: Model, documents: Sequence[Document]) -> dict[str, float | None]:
    """Time scoring, encoder and classifier alone, and whole predictions on the first documents.

    On a GPU each time is the median of several alternating rounds after a warm-up; on a CPU it is one round.
    """
    method = model.method
    on_gpu = isinstance(method, WithNeighbours) and method.streams is not None
    texts = [document.text for document in documents[: TIMED_ON_GPU if on_gpu else TIMED]]
    batches = [texts[begin : begin + model.batch()] for begin in range(0, len(texts), model.batch())]

    def whole(batch: Sequence[str], embeddings: Tensor | None) -> Tensor:
        return model.score(batch, embeddings=embeddings).final

    def alone(batch: Sequence[str], embeddings: Tensor | None) -> Tensor:
        retriever = cast(Retriever, method)
        scores: Tensor = retriever.network.probabilities(retriever.embed(batch) if embeddings is None else embeddings)
        return scores

    def scored(scores: Callable[[Sequence[str], Tensor | None], Tensor]) -> None:
        for batch, embeddings in method.embed_ahead(batches):
            with method.first():
                scores(batch, embeddings).cpu()

    work: dict[str, Callable[[], object]] = {"inference_ms_per_text": lambda: scored(whole)}
    if isinstance(method, WithNeighbours):
        work |= {
            "inference_ms_per_text_without_neighbours": lambda: scored(alone),
            "prediction_ms_per_text": lambda: model.predict(texts, evidence=0),
            "prediction_ms_per_text_with_evidence": lambda: model.predict(texts),
        }
    times: dict[str, list[float]] = {name: [] for name in work}
    for do in work.values() if on_gpu else ():  # a CPU is warm from scoring the test split
        do()
    for _ in range(ROUNDS if on_gpu else 1):
        for name, do in work.items():
            begun = time.perf_counter()
            do()
            times[name].append(1000 * (time.perf_counter() - begun) / max(1, len(texts)))
    found = {name: statistics.median(taken) for name, taken in times.items()}
    return {**dict.fromkeys(PREDICTION), **found}


def cost(
    model: Model, corpus: Corpus, seconds: float, peak: int, rate: float | None, speed: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the cost of the run and its training: time, utilisation, memory, parameters and disk."""
    training, network = model.card.training, getattr(model.method, "network", None)
    steps, spent, tokens = training.get("steps"), training.get("training_seconds"), training.get("tokens")
    batch = min(model.card.parameters.get("batch_size", 1), len(corpus.train))
    epochs = None if steps is None else steps / -(-len(corpus.train) // batch)
    pace = tokens / spent if tokens and spent else None
    store = model.method.store
    matrices = _matrix_parameters(network)
    return {
        "seconds": round(max(seconds, training.get("seconds", 0.0)), 1),
        "training_seconds": spent,
        "validation_seconds": training.get("validation_seconds"),
        "steps": steps,
        "best_step": training.get("best_step"),
        "epochs": epochs,
        "stopped_early": _stopped_early(training, model.card.parameters, epochs),
        "tokens": tokens,
        "tokens_per_second": pace,
        "epoch_seconds": spent / epochs if spent and epochs else None,
        "matrix_rate": rate,
        "mfu": utilisation(6 * matrices, pace, rate) if matrices and pace and rate else None,
        "mfu_with_attention": (
            utilisation(6 * matrices + _attention(network, corpus), pace, rate) if matrices and pace and rate else None
        ),
        "peak_memory_bytes": max(peak, peak_memory()),
        **speed,
        "store_documents": None if store is None else len(store),
        "store_bytes": None if store is None else len(store) * store.dimension * 4,
        "parameters": _parameters(network) if network else None,
    }


def _stopped_early(training: Mapping[str, Any], parameters: Mapping[str, Any], epochs: float | None) -> str | None:
    """Say at which second and epoch the time budget ended training, if it did."""
    if not training.get("out_of_time") or epochs is None:
        return None
    planned = parameters["epochs"] + parameters.get("reinforced_epochs", 0)
    return f"at {training['seconds']:.0f} s, after {epochs:.1f} of {planned} epochs"


def sweeps_of(model: Model, corpus: Corpus) -> dict[str, Any]:
    """Return the F1 of other k, γ and datastore sizes, without retraining.

    Thresholds are tuned on validation documents, unless the combination was fitted to them; then the model's are kept.
    """
    method, combination = cast(Retriever, model.method), combination_of(model.card)
    tuning = () if combination is not None and combination.fitted else corpus.valid
    valid, test = (
        Searched(method, part, method.embed([document.text for document in part])) if part else None
        for part in (tuning, corpus.test)
    )
    if test is None:
        return {}
    threshold = model.card.thresholds["final"].overall
    stored = datastore_sweep(valid, test, threshold=threshold)
    return {**sweep(valid, test, threshold=threshold), "datastore": stored}


def utilisation(token_flop: float, tokens_per_second: float, rate: float) -> float:
    """Return the share of the measured matrix rate that training uses."""
    return token_flop * tokens_per_second / rate


def rounded(value: Any, digits: int = DIGITS) -> Any:
    """Round every float in nested plain values to this many decimals; round large ones to integers."""
    if isinstance(value, float):
        return round(value, digits) if abs(value) < 1e6 else round(value)
    if isinstance(value, Mapping):
        return {key: rounded(inner, digits) for key, inner in value.items()}
    return [rounded(inner, digits) for inner in value] if isinstance(value, list | tuple) else value


def _test(found: Evaluation, decided: Mapping[str, Tensor], gold: Tensor, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the scores on the test split, overall and by label."""
    tables = {part: label_table(chosen, gold) for part, chosen in decided.items()}
    train = [counts.get(name, 0) for name in found.names]
    columns = {name: column.tolist() for name, column in vars(found.table).items()}
    return {
        "systems": found.systems,
        "bands": list(found.bands),
        "groups": _groups(torch.tensor(train), tables),
        "mean_confidence": found.confidence,
        "per_label": {
            "label": list(found.names),
            "train": train,
            **columns,
            **{f"f1_{part}": table.f1.tolist() for part, table in tables.items()},
        },
    }


def _curves(scores: Scores, gold: Tensor) -> dict[str, dict[str, list[float]]]:
    """Return the F1 of each part at each threshold considered in tuning."""
    curves = {part: threshold_curve(values, gold, GRID) for part, values in systems_of(scores).items()}
    return {
        part: {name: [row[name] for row in rows] for name in ("micro_f1", "macro_f1")} for part, rows in curves.items()
    }


def _groups(train: Tensor, tables: Mapping[str, LabelTable]) -> list[dict[str, Any]]:
    """Return the mean F1 of the labels in each of the paper's frequency groups that is not empty."""
    rows = []
    for name, (low, high) in GROUPS.items():
        members = (train >= low) & (train <= high)
        if members.any():
            means = {part: float(table.f1[members].mean()) for part, table in tables.items()}
            rows.append({"name": name, "labels": int(members.sum()), "macro_f1": means["final"], "parts": means})
    return rows


def _empty_gamma(model: Model, scores: Scores) -> float | None:
    """Return the share of texts for which no classifier score reaches γ, so that λ is 1."""
    gamma = getattr(model.method.parameters, "gamma", None)
    if gamma is None or "classifier" not in scores.parts:
        return None
    return float((scores.parts["classifier"] < gamma).all(1).double().mean())


def _columns(chosen: Tensor) -> list[list[int]]:
    """Return the true columns of each row of an (n,L) bool matrix."""
    rows: list[list[int]] = [[] for _ in chosen]
    for row, column in chosen.nonzero().tolist():
        rows[row].append(column)
    return rows


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _matrix_parameters(network: Any) -> int:
    """Count a transformer's parameters without the embedding tables; 0 for other encoders."""
    encoder = getattr(network, "encoder", None)
    if not isinstance(encoder, TransformerEncoder):
        return 0
    tables = (module for module in encoder.modules() if isinstance(module, nn.Embedding))
    return _size(encoder) - sum(_size(table) for table in tables)


def _attention(network: Any, corpus: Corpus) -> float:
    """Return the FLOP per token of attention scores and their products with values, forward and backward.

    A token attends to all n tokens of its text: 12 · layers · width · n, the term that PaLM's definition of model FLOPs
    utilisation adds to 6 per parameter.
    """
    lengths = network.tokenize([document.text for document in corpus.train[:TIMED_ON_GPU]]).lengths.double()
    return float(12 * network.encoder.layers * network.encoder.width * (lengths**2).sum() / lengths.sum())


def _parameters(network: Any) -> dict[str, int]:
    """Count the parameters of encoder and head, and the extra ones that a plain classifier does not have.

    The vectors of label tokens replace rows of the encoder's table, which count already.
    """
    head = getattr(network, "head", None)
    encoder, linear = _size(network.encoder), 0 if head is None else _size(head)
    replaced = network.token_vectors.numel() if isinstance(network, LabelTokens) else 0
    return {"encoder": encoder, "head": linear, "extra": _size(network) - encoder - linear - replaced}

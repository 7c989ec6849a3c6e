"""The embedding map: test texts with one label set among training documents, with summary numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from denn.core.contrast import label_overlap
from denn.errors import DataError, MissingExtraError, StoreError
from denn.methods.neighbours import WithNeighbours
from denn.model import load
from denn.strict_json import dumps
from denn.types import Corpus, Document, LabelSpace
from denn_bench.machine import commit, machine

KIND = "map"  # marks the file as a map, not a result of a run
NEAREST = 30
CHUNK = 4096  # documents whose labels are compared at a time
PERPLEXITY = 30.0


def run(model: Path, corpus: Corpus, out: Path, seed: int = 0) -> dict[str, Any]:
    """Map a model's embeddings of a corpus and write the map as JSON."""
    with load(model) as loaded:
        if not isinstance(loaded.method, WithNeighbours):
            raise StoreError(f"The method {loaded.card.method!r} has no datastore to map. Train with 'denn'.")
        found = embedding_map(loaded.method, corpus, seed=seed)
    found |= {"created": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "machine": machine()}
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(out.name + ".part")
    temporary.write_text(dumps(found, f"The map {out}", ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(out)
    return found


def embedding_map(
    method: WithNeighbours,
    corpus: Corpus,
    label_set: Sequence[str] | None = None,
    test: int = 10,
    train: int = 3000,
    seed: int = 0,
) -> dict[str, Any]:
    """Map test texts with one label set and a sample of training documents by t-SNE of cosine distances.

    The default label set is the most frequent one in the test split. The sample covers every label similarity to it.
    The numbers cover all stored training documents: the mean over the test texts of Spearman's correlation between
    label similarity and cosine similarity, and the mean label similarity of the nearest documents and of all.
    """
    chance = torch.Generator().manual_seed(seed)
    labels, members = _of_one_set(corpus.test, label_set, test)
    chosen = [members[row] for row in torch.randperm(len(members), generator=chance)[:test].tolist()]
    overlap = _overlaps(labels, corpus.train, corpus.labels)
    rows = _sample(overlap, train, chance)
    queries = method.embed([document.text for document in chosen])
    others = method.embed([corpus.train[row].text for row in rows])
    plane = _plane(torch.cat([queries, others]), seed)
    return {
        "kind": KIND,
        "corpus": corpus.name,
        "label_set": sorted(labels),
        "seed": seed,
        "test": _columns(plane[: len(chosen)]),
        "train": _columns(plane[len(chosen) :]) | {"overlap": [round(float(overlap[row]), 4) for row in rows]},
        **_numbers(method, queries, corpus.train, overlap),
    }


def _of_one_set(
    documents: Sequence[Document], label_set: Sequence[str] | None, test: int
) -> tuple[frozenset[str], list[Document]]:
    """Return a label set and its documents: the given set, or the most frequent non-empty one."""
    sets = Counter(frozenset(document.labels) for document in documents if document.labels)
    given = frozenset(label_set) if label_set else max(sets, key=lambda s: (sets[s], sorted(s)), default=frozenset())
    if sets[given] < test:
        raise DataError(
            f"The label set {', '.join(sorted(given)) or '(none)'} has {sets[given]} test documents, expected at least "
            f"{test}. Use a corpus with more documents of one set, or request fewer."
        )
    return given, [document for document in documents if frozenset(document.labels) == given]


def _overlaps(labels: frozenset[str], documents: Sequence[Document], space: LabelSpace) -> Tensor:
    """Return the (n,) label similarities of documents to a label set, Eq. 5."""
    anchor = space.matrix([Document("", tuple(labels))])
    parts = [documents[start : start + CHUNK] for start in range(0, len(documents), CHUNK)]
    return torch.cat([label_overlap(anchor, space.matrix(part))[0] for part in parts])


def _sample(overlap: Tensor, size: int, chance: torch.Generator) -> list[int]:
    """Sample rows so that every label similarity has an equal share, or all its rows if there are fewer."""
    order = torch.randperm(len(overlap), generator=chance)
    levels, level = torch.unique(overlap[order], return_inverse=True)
    place = torch.empty_like(level)  # number of earlier rows with the same similarity
    for number in range(len(levels)):
        same = level == number
        place[same] = torch.arange(int(same.sum()))
    return sorted(order[place.argsort(stable=True)[:size]].tolist())


def _plane(embeddings: Tensor, seed: int) -> Tensor:
    """Return (n,2) t-SNE coordinates, initialised with the principal components."""
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise MissingExtraError("The embedding map", "scikit-learn", "bench") from error
    perplexity = min(PERPLEXITY, (len(embeddings) - 1) / 3)
    tsne = TSNE(metric="cosine", init="pca", perplexity=perplexity, random_state=seed)
    return torch.from_numpy(tsne.fit_transform(embeddings.float().cpu().numpy()))


def _columns(places: Tensor) -> dict[str, list[float]]:
    return {name: [round(value, 3) for value in places[:, axis].tolist()] for axis, name in enumerate("xy")}


def _numbers(method: WithNeighbours, queries: Tensor, train: Sequence[Document], overlap: Tensor) -> dict[str, Any]:
    """Compare label similarity with cosine similarity over the training documents in the datastore."""
    by_id = {document.id: float(value) for document, value in zip(train, overlap.tolist(), strict=True)}
    found = method.store.search(queries, len(method.store))
    kept = [[(id, s) for id, s in zip(*row, strict=False) if id in by_id]
            for row in zip(found.ids, found.similarity.tolist(), strict=True)]  # fmt: skip
    if not kept[0]:
        raise DataError("The datastore has no training documents of this corpus. Use the model's own corpus.")
    similarity = torch.tensor([[s for _, s in row] for row in kept], dtype=torch.float64)  # (test,N), descending
    labels = torch.tensor([[by_id[id] for id, _ in row] for row in kept], dtype=torch.float64)
    correlations = [_spearman(a, b) for a, b in zip(similarity, labels, strict=True)]
    return {
        "documents": len(kept[0]),
        "spearman": sum(correlations) / len(correlations),
        "nearest": min(NEAREST, len(kept[0])),
        "nearest_overlap": float(labels[:, :NEAREST].mean()),
        "random_overlap": float(labels.mean()),
    }


def _spearman(a: Tensor, b: Tensor) -> float:
    """Return the rank correlation of two (n,) tensors; 0 if one is constant."""
    ranks = torch.stack([_ranks(a), _ranks(b)])
    return float(torch.corrcoef(ranks)[0, 1].nan_to_num())


def _ranks(values: Tensor) -> Tensor:
    """Return ranks; equal values share their mean rank."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    middle: Tensor = counts.cumsum(0) - (counts.double() - 1) / 2
    return middle[inverse]

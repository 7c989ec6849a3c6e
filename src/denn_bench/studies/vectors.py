"""Vectors to fill large datastores with: embeddings of windows of real texts, and more derived from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from denn.data.files import iterate_texts
from denn.encoders.transformer import TransformerEncoder

WORDS = 24  # per window, about 32 tokens
PART = 10_000  # windows encoded and cached at a time
NEAR = 8  # a derived vector lies between a real one and one of this many nearest
LOOK = 20_000  # real vectors to search for the nearest


def windows(data: Path) -> Iterator[str]:
    """Split the training texts of all corpora in a folder into windows, alternating between corpora."""
    files = sorted(data.glob("*/train.jsonl*"))
    if not files:
        raise SystemExit(f"{data} has no */train.jsonl*. Set the folder of the corpora with --data.")
    for texts in zip_longest(*(iterate_texts(file) for file in files)):
        for text, _ in filter(None, texts):
            words = text.split()
            for begin in range(0, max(1, len(words) - WORDS // 2), WORDS):
                yield " ".join(words[begin : begin + WORDS])


def real(count: int, data: Path, cache: Path) -> Tensor:
    """Return the (count,384) unit embeddings of the first windows; encode those that are not cached."""
    parts, encoder, source, at = [], None, windows(data), 0
    cache.mkdir(parents=True, exist_ok=True)
    for number in range(-(-count // PART)):
        file = cache / f"minilm-{WORDS}-words-{number:03}.npy"
        if not file.exists():
            encoder = encoder or TransformerEncoder.load("minilm", max_length=64)
            texts = list(islice(source, number * PART - at, (number + 1) * PART - at))
            at = (number + 1) * PART
            if len(texts) < PART:
                raise SystemExit(
                    f"the corpora in {data} have {number * PART + len(texts)} windows, but {count} were requested."
                )
            vectors = torch.nn.functional.normalize(encoder.encode(encoder.tokenize(texts)))
            np.save(file, vectors.numpy().astype(np.float16))
            print(f"encoded {at} windows", flush=True)
        parts.append(torch.from_numpy(np.load(file).astype(np.float32)))
    return torch.nn.functional.normalize(torch.cat(parts)[:count])


def wide(vectors: Tensor) -> Tensor:
    """Concatenate each window's embedding with that of the next one: (n,2d) unit rows."""
    return torch.nn.functional.normalize(torch.cat([vectors, vectors.roll(-1, 0)], dim=1))


def made(vectors: Tensor, count: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield `count` unit vectors in parts, each between a real one and a near one, with noise.

    A point at t between two vectors of covariance C has the covariance (1 - 2t(1-t))·C, so derived vectors would
    be closer together than real ones. The residuals of near pairs have Σ = 2C; noise of t(1-t)·Σ compensates for it.
    """
    look = vectors[torch.randperm(len(vectors), generator=generator)[:LOOK]]
    nearest = torch.cat([(rows @ look.T).topk(min(NEAR + 1, len(look))).indices for rows in vectors.split(1024)])
    factor = None
    for begin in range(0, count, PART):
        size = min(PART, count - begin)
        chosen = torch.randint(len(vectors), (size,), generator=generator)
        choice = torch.randint(1, nearest.shape[1], (size, 1), generator=generator)  # the nearest may be itself
        base = vectors[chosen]
        residual = look[nearest[chosen].gather(1, choice)[:, 0]] - base
        if factor is None:
            covariance = residual.T.double().cov() + 1e-9 * torch.eye(vectors.shape[1], dtype=torch.float64)
            factor = torch.linalg.cholesky(covariance).float()  # (d,d)
        t = torch.rand(size, 1, generator=generator)
        noise = torch.randn(base.shape, generator=generator) @ factor.T
        yield torch.nn.functional.normalize(base + t * residual + (t * (1 - t)).sqrt() * noise)


def collection(
    count: int, dimension: int, real_count: int, data: Path, cache: Path, queries: int
) -> tuple[Tensor, Tensor]:
    """Return (count,d) vectors, real ones first and the rest derived from them, and real queries not among them."""
    parts, asked = stream(count, dimension, real_count, data, cache, queries)
    matrix, end = torch.empty(count, dimension), 0  # filled in place: the largest take much of the memory
    for part in parts:
        matrix[end : end + len(part)] = part
        end += len(part)
    return matrix, asked


def stream(
    count: int, dimension: int, real_count: int, data: Path, cache: Path, queries: int
) -> tuple[Iterator[Tensor], Tensor]:
    """Return the same as `collection`, but the vectors in parts, for collections larger than memory."""
    vectors = real(min(count, real_count) + queries, data, cache)
    if dimension == 2 * vectors.shape[1]:
        vectors = wide(vectors)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(vectors), generator=generator)
    asked, stored = vectors[order[:queries]], vectors[order[queries:]]
    return chain(stored.split(PART), made(stored, count - len(stored), generator)), asked

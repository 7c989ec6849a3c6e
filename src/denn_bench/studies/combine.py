r"""Scores of single witnesses for `denn bench combine`, and the time of a learnt combination.

    python -m denn_bench.studies.combine frozen DATA --corpus reuters21578 --out SCORES
    python -m denn_bench.studies.combine words DATA --corpus reuters21578 --seeds 0 1 2 --out SCORES
    python -m denn_bench.studies.combine speed

`frozen` writes CORPUS-frozen-minilm-SEED: a linear head on a frozen encoder, and the neighbours. `words`
writes words-CORPUS-SEED, which adds the witness `words` to all runs of that corpus.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from denn.cli.demo import parts as demo_parts
from denn.combiners.learnt import Learnt
from denn.data.debian import load_debian
from denn.encoders.transformer import TransformerEncoder
from denn.encoders.weights import cache_folder
from denn.methods.contrastive import DennParameters
from denn.prediction_types import Context
from denn.progress import Silent
from denn.registry import CORPORA, lookup
from denn.training.head import start_head
from denn.types import Corpus
from denn.witnesses.words import Words
from denn_bench.studies.stability import FOLDERS, nearest, votes_of
from denn_bench.witness_scores import PARTS, WitnessScores

DEMO_DOCUMENTS = 3000
NORM = 6.0  # of the embeddings that a head reads on a frozen encoder
SIZES = ((1000, 50), (500, 570), (6000, 4271))  # texts × labels whose speed is measured


def read(data: Path, name: str, seed: int) -> Corpus:
    """Read a corpus; for Debian, the packages that `denn demo` draws with this seed."""
    if name == "debian":
        return demo_parts(load_debian(cache_folder() / "debian")[0], DEMO_DOCUMENTS, seed)
    corpus: Corpus = lookup(CORPORA, name, "corpus")(data / FOLDERS.get(name, name))
    return corpus


def frozen(data: Path, name: str, seed: int, out: Path, length: int, epochs: int) -> None:
    """Write the scores of a head on a frozen encoder, and of the nearest documents."""
    corpus, encoder = read(data, name, seed), TransformerEncoder.load("minilm", max_length=length)
    texts = {part: [document.text for document in getattr(corpus, part)] for part in ("train", *PARTS)}
    embeddings = {part: encoder.encode(encoder.tokenize(some)) for part, some in texts.items()}
    scale = NORM / float(embeddings["train"].norm(dim=1).mean())
    torch.manual_seed(seed)
    head, stored = nn.Linear(encoder.width, len(corpus.labels)), corpus.labels.matrix(corpus.train)
    start_head(head, scale * embeddings["train"], stored, epochs, seed)
    p = DennParameters()
    for part in PARTS:
        with torch.inference_mode():
            scores = torch.sigmoid(head(scale * embeddings[part]))
        similarity, rows = nearest(embeddings[part], embeddings["train"], p.k, torch.device("cpu"))
        votes = votes_of(similarity, rows, stored, p.vote_temperature)
        parts, gold = {"classifier": scores, "neighbours": votes}, corpus.labels.matrix(getattr(corpus, part))
        context = Context(stored.sum(0), similarity, p.gamma, p.vote_temperature)
        WitnessScores(name, seed, parts, gold, context).save(out / f"{name}-frozen-minilm-{seed}" / f"{part}.npz")


def words(data: Path, name: str, seed: int, out: Path) -> None:
    """Write the scores of the witness `words`."""
    corpus = read(data, name, seed)
    learnt = Words.learn(corpus.train, corpus.labels, seed=seed, progress=Silent(), seconds_left=lambda: None)
    context = Context(corpus.labels.matrix(corpus.train).sum(0))
    for part in PARTS:
        scores = learnt.scores([document.text for document in getattr(corpus, part)])
        gold = corpus.labels.matrix(getattr(corpus, part))
        WitnessScores(name, seed, {"words": scores}, gold, context).save(out / f"words-{name}-{seed}" / f"{part}.npz")


def speed() -> None:
    """Print the CPU time of fitting and combining, on synthetic scores of three witnesses."""
    for documents, labels in SIZES:
        draw = torch.Generator().manual_seed(0)
        gold = torch.rand(documents, labels, generator=draw) < 4 / labels
        parts = {
            name: torch.sigmoid(5 * gold.float() - 6 + 1.5 * torch.randn(gold.shape, generator=draw))
            for name in ("classifier", "neighbours", "words")
        }
        context = Context(torch.full((labels,), 50), torch.rand(documents, DennParameters().k, generator=draw))
        combiner, begun = Learnt(), time.process_time()
        combiner.fit(parts, gold, context)
        fitted = time.process_time()
        combiner.combine(parts, context)
        each = 1000 * (time.process_time() - fitted) / documents
        print(f"{documents} × {labels}: fit {fitted - begun:.1f} s, combine {each:.4f} ms per text")


def main() -> None:
    """Write scores, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("frozen", "words"):
        making = commands.add_parser(name, help="write the scores of one witness or two")
        making.add_argument("data", type=Path, help="folder with all corpora")
        making.add_argument("--corpus", choices=sorted(CORPORA), required=True)
        making.add_argument("--seeds", type=int, nargs="+", default=[0])
        making.add_argument("--max-length", type=int, default=128, help="maximum number of tokens per text")
        making.add_argument("--epochs", type=int, default=30, help="epochs of the head on the frozen encoder")
        making.add_argument("--out", type=Path, required=True, help="folder for all scores")
    commands.add_parser("speed", help="measure fitting and combining")
    a = parser.parse_args()
    if a.command == "speed":
        speed()
        return
    for seed in a.seeds:
        if a.command == "frozen":
            frozen(a.data, a.corpus, seed, a.out, a.max_length, a.epochs)
        else:
            words(a.data, a.corpus, seed, a.out)


if __name__ == "__main__":
    main()

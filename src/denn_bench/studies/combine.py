r"""Which combination of witnesses is best: the mean, the paper's λ, or a learnt one.

    python -m denn_bench.studies.combine frozen DATA --corpus reuters21578 --out SCORES
    python -m denn_bench.studies.combine words DATA --corpus reuters21578 --out SCORES
    python -m denn_bench.studies.combine compare DATA SCORES --out results/combine.json
    python -m denn_bench.studies.combine speed

`compare` reads folders CORPUS-RECIPE-ENCODER-SEED with valid.npz and test.npz, as `stability.py --scores` writes them:
the classifier's highest scores of each text and its nearest training documents. `frozen` writes the same for an encoder
that stays as it is, `words` adds TF-IDF + linear SVM in words-CORPUS-SEED. Every combination is fitted, chosen and
given its threshold on the validation part; the test part is read for the printed numbers alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from denn.cli.demo import parts as demo_parts
from denn.combiners.average import Average
from denn.combiners.confidence import Confidence
from denn.combiners.learnt import Learnt
from denn.core.calibration import calibration_error, log_loss
from denn.core.combine import vote_sparse
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.data.debian import load_debian
from denn.encoders.transformer import TransformerEncoder
from denn.encoders.weights import cache_folder
from denn.protocols import Combiner
from denn.registry import CORPORA, lookup
from denn.training.head import start_head
from denn.types import Context, Corpus, Parts
from denn_bench.studies.machine import machine
from denn_bench.studies.stability import FOLDERS, HIGHEST, keep, nearest
from denn_bench.systems.br import BR, BrParameters, machines
from denn_bench.systems.tfidf import Tfidf

DEMO_DOCUMENTS = 3000
K, TEMPERATURE = 30, 0.05  # neighbours and τ₂
NORM = 6.0  # of the embeddings that a head reads on a frozen encoder
PARTS = ("valid", "test")
SIZES = ((1000, 50), (500, 570), (6000, 4271))  # texts × labels whose speed is measured


class Split(NamedTuple):
    """What the witnesses say of one part, and what is true."""

    parts: Parts
    gold: Tensor
    context: Context


def read(data: Path, name: str, seed: int) -> Corpus:
    """Read a corpus; of Debian's packages those that `denn demo` draws with this seed."""
    if name == "debian":
        return demo_parts(load_debian(cache_folder() / "debian")[0], DEMO_DOCUMENTS, seed)
    corpus: Corpus = lookup(CORPORA, name, "corpus")(data / FOLDERS.get(name, name))
    return corpus


@lru_cache(maxsize=1)
def labels_of(data: Path, name: str, seed: int) -> dict[str, Tensor]:
    """Return the (n,L) labels of each part."""
    corpus = read(data, name, seed)
    return {part: corpus.labels.matrix(getattr(corpus, part)) for part in ("train", *PARTS)}


def own_seed(name: str, seed: int) -> int:
    """Return the seed that decides on the documents: only those of the demo are drawn."""
    return seed if name == "debian" else 0


def frozen(data: Path, name: str, seed: int, out: Path, length: int, epochs: int) -> None:
    """Write the scores of a head on an encoder that stays as it is, and the nearest documents."""
    corpus, encoder = read(data, name, seed), TransformerEncoder.load("minilm", max_length=length)
    texts = {part: [document.text for document in getattr(corpus, part)] for part in ("train", *PARTS)}
    embeddings = {part: encoder.encode(encoder.tokenize(some)) for part, some in texts.items()}
    scale = NORM / float(embeddings["train"].norm(dim=1).mean())
    torch.manual_seed(seed)
    head = nn.Linear(encoder.width, len(corpus.labels))
    start_head(head, scale * embeddings["train"], corpus.labels.matrix(corpus.train), epochs, seed)
    for part in PARTS:
        with torch.inference_mode():
            scores = torch.sigmoid(head(scale * embeddings[part]))
        found = nearest(embeddings[part], embeddings["train"], torch.device("cpu"))
        keep(out / f"{name}-frozen-minilm-{seed}" / f"{part}.npz", scores, *found)


def words(data: Path, name: str, seed: int, out: Path) -> None:
    """Write the highest scores of TF-IDF + linear SVM, sigmoids of decision values."""
    corpus, method = read(data, name, seed), BR(BrParameters(bigrams=True, prune=0.0))
    method.features, known = Tfidf.of([document.text for document in corpus.train], method.parameters)
    method.weights, method.bias = machines(known, corpus.labels.matrix(corpus.train), 1.0, method.parameters)
    folder = out / f"words-{name}-{own_seed(name, seed)}"
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        decisions = method.decisions([document.text for document in getattr(corpus, part)])
        best = decisions.topk(min(HIGHEST, decisions.shape[1]))
        arrays = {"logit": best.values.half().numpy(), "label": best.indices.to(torch.int16).numpy()}
        np.savez_compressed(folder / f"{part}.npz", **arrays)


def dense(file: Mapping[str, Any], labels: int) -> Tensor:
    """Return (n,L) scores; a label that was not kept gets the lowest score that was."""
    logits, columns = (torch.from_numpy(file[key].astype(kind)) for key, kind in (("logit", "f4"), ("label", "i8")))
    return torch.sigmoid(logits[:, -1:].expand(-1, labels).scatter(1, columns, logits))


def votes(file: Mapping[str, Any], stored: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (n,k) similarities of the neighbours and their (n,L) votes."""
    similarity = torch.from_numpy(file["similarity"].astype("f4"))[:, :K]
    rows = torch.from_numpy(file["row"].astype("i8"))[:, :K].flatten()
    counts, columns = stored.sum(1), stored.nonzero()[:, 1]
    starts = counts.cumsum(0) - counts
    each = counts[rows]
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), each.cumsum(0)])
    places = torch.arange(int(offsets[-1])) + (starts[rows] - offsets[:-1]).repeat_interleave(each)
    return similarity, vote_sparse(similarity, offsets, columns[places], stored.shape[1], TEMPERATURE)


def load(data: Path, scores: Path, run: Path, with_words: bool) -> dict[str, Split]:
    """Read what the witnesses say in one run."""
    name, seed = run.name.split("-")[0], int(run.name.rsplit("-", 1)[1])
    name = "aapd-extra" if run.name.startswith("aapd-extra") else name
    gold = labels_of(data, name, own_seed(name, seed))
    found, width = {}, gold["train"].shape[1]
    for part in PARTS:
        file = np.load(run / f"{part}.npz")
        similarity, neighbours = votes(file, gold["train"])
        parts = {"classifier": dense(file, width), "neighbours": neighbours}
        if with_words:
            parts["words"] = dense(np.load(scores / f"words-{name}-{own_seed(name, seed)}" / f"{part}.npz"), width)
        found[part] = Split(parts, gold[part], Context(gold["train"].sum(0), similarity))
    return found


def compare(valid: Split, test: Split) -> dict[str, Any]:
    """Fit on validation; return every system's scores on the test part and what the learnt one chose."""
    systems = {name: (valid.parts[name], test.parts[name]) for name in valid.parts}
    combiners: dict[str, Combiner] = {"average": Average(), "confidence": Confidence(), "learnt": Learnt()}
    facts: dict[str, Any] = {}
    for name, combiner in combiners.items():
        begun = time.perf_counter()
        facts[name] = dict(combiner.fit(valid.parts, valid.gold, valid.context))
        facts[name]["seconds"] = round(time.perf_counter() - begun, 2)
        assert combiner.held_out is not None
        systems[name] = (combiner.held_out, combiner.combine(test.parts, test.context))
    found = {}
    for name, (on_valid, on_test) in systems.items():
        threshold = tune_global(on_valid, valid.gold)
        values = multilabel_scores(decide(on_test, threshold), test.gold)
        found[name] = {
            "threshold": threshold,
            "micro_f1": round(values["micro_f1"], 5),
            "macro_f1": round(values["macro_f1"], 5),
            "calibration_error": round(calibration_error(on_test, test.gold), 5),
            "log_loss": round(log_loss(on_test, test.gold), 5),
        }
    return {"systems": found, "learnt": facts["learnt"]}


def compare_all(data: Path, scores: Path, out: Path) -> None:
    """Compare in every run, with the words where they were scored; write all and print the means over seeds."""
    runs = [
        run for run in sorted(scores.iterdir()) if (run / "test.npz").is_file() and not run.name.startswith("words")
    ]
    found = []
    for run in runs:
        name, seed = run.name.rsplit("-", 1)
        folder = scores / f"words-{name.split('-')[0]}-{own_seed(name.split('-')[0], int(seed))}"
        with_words = folder.is_dir() and not name.startswith("aapd-extra")
        for witnesses in (2, 3) if with_words else (2,):
            splits = load(data, scores, run, witnesses == 3)
            about = {"run": name, "seed": int(seed), "witnesses": list(splits["valid"].parts)}
            found.append({**about, **compare(splits["valid"], splits["test"])})
            print(name, seed, witnesses, found[-1]["learnt"]["why"], flush=True)
    out.write_text(json.dumps({"runs": found, "machine": machine()}, indent=1) + "\n")
    table(out)


def table(path: Path) -> None:
    """Print micro- / macro-F1 of every system on the test part, means over seeds."""
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for one in json.loads(path.read_text())["runs"]:
        groups.setdefault((one["run"], len(one["witnesses"])), []).append(one)
    names = ("classifier", "neighbours", "words", "average", "confidence", "learnt")
    print("| scores | seeds | " + " | ".join(names) + " | calibration error, average → learnt |")
    print("|" + (len(names) + 3) * "---|")
    for (name, _), runs in groups.items():
        mean = {
            system: {
                key: 100 * statistics.mean(one["systems"][system][key] for one in runs)
                for key in ("micro_f1", "macro_f1", "calibration_error")
            }
            for system in runs[0]["systems"]
        }
        cells = [f"{mean[n]['micro_f1']:.2f} / {mean[n]['macro_f1']:.2f}" if n in mean else "" for n in names]
        errors = f"{mean['average']['calibration_error']:.1f} → {mean['learnt']['calibration_error']:.1f}"
        print("|", " | ".join([name, str(len(runs)), *cells, errors]), "|")


def speed() -> None:
    """Print the processor time of fitting and combining, on made scores of three witnesses."""
    for documents, labels in SIZES:
        draw = torch.Generator().manual_seed(0)
        gold = torch.rand(documents, labels, generator=draw) < 4 / labels
        parts = {
            name: torch.sigmoid(5 * gold.float() - 6 + 1.5 * torch.randn(gold.shape, generator=draw))
            for name in ("classifier", "neighbours", "words")
        }
        context = Context(torch.full((labels,), 50), torch.rand(documents, K, generator=draw))
        combiner, begun = Learnt(), time.process_time()
        combiner.fit(parts, gold, context)
        fitted = time.process_time()
        combiner.combine(parts, context)
        each = 1000 * (time.process_time() - fitted) / documents
        print(f"{documents} × {labels}: fit {fitted - begun:.1f} s, combine {each:.4f} ms a text")


def main() -> None:
    """Make scores, compare, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("frozen", "words"):
        making = commands.add_parser(name, help="write the scores of one witness or two")
        making.add_argument("data", type=Path, help="folder of all corpora")
        making.add_argument("--corpus", choices=sorted(CORPORA), required=True)
        making.add_argument("--seeds", type=int, nargs="+", default=[0])
        making.add_argument("--max-length", type=int, default=128, help="tokens of a text, for the encoder")
        making.add_argument("--epochs", type=int, default=30, help="of the head on the frozen encoder")
        making.add_argument("--out", type=Path, required=True, help="folder of all scores")
    comparing = commands.add_parser("compare", help="compare all combinations on all scores")
    comparing.add_argument("data", type=Path)
    comparing.add_argument("scores", type=Path)
    comparing.add_argument("--out", type=Path, required=True)
    commands.add_parser("table", help="show what was compared").add_argument("results", type=Path)
    commands.add_parser("speed", help="measure fitting and combining")
    a = parser.parse_args()
    if a.command == "compare":
        compare_all(a.data, a.scores, a.out)
    elif a.command == "table":
        table(a.results)
    elif a.command == "speed":
        speed()
    else:
        for seed in a.seeds:
            if a.command == "frozen":
                frozen(a.data, a.corpus, seed, a.out, a.max_length, a.epochs)
            else:
                words(a.data, a.corpus, seed, a.out)


if __name__ == "__main__":
    main()

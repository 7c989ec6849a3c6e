r"""Cost of a refit with many documents, and the best number of epochs for its head.

    python -m denn_bench.studies.refit time demo/model --work FOLDER --out results/refit.json
    python -m denn_bench.studies.refit head demo/model reuters/model --work FOLDER --out results/refit-head.json

`time` adds tagged Debian packages to copies of the demo's model, then refits each copy. If there are too few
packages, they are repeated without 20 % of their words, with a vector near that of the whole text: good enough for
times, but not for scores. `head` trains heads for different numbers of epochs, with everything else
equal, and scores them on validation documents only: those that the model keeps, and 10 % of the added ones. It
also adds packages to the demo's model. The packages of test.jsonl next to a model are never added. Vectors are
cached in the work folder.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

import denn
from denn import bundle, refit_documents
from denn.clock import Clock
from denn.combiners.judging import decide_by_fold, f1_values, folds_of, lead_of
from denn.data.corpus import read_documents
from denn.data.debian import load_debian
from denn.encoders.weights import cache_folder
from denn.methods import relearning
from denn.methods.denn import DENN
from denn.model import Model
from denn.progress import Silent
from denn.registry import WITNESSES, lookup
from denn.types import Corpus, Stage
from denn.validation import Kept
from denn_bench.studies.machine import report

ADDED = (3_000, 30_000, 100_000)
ADDED_FOR_HEADS = (0, 24_000)
EPOCHS = (1, 2, 3, 5, 8, 12, 20)
DROPPED = 0.2  # share of the words of a repeated package
NEAR = 0.3  # length of the noise added to its vector
PIECE = 512  # documents embedded together


class Stages(Silent):
    """Progress that measures how long each stage takes."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}
        self._at = ("loading", time.monotonic(), time.process_time())

    def start(self, stage: Stage) -> None:
        """End a stage and start the next."""
        what, begun, cpu = self._at
        self._at = (stage.what, time.monotonic(), time.process_time())
        self.found[what] = {"seconds": round(self._at[1] - begun, 2), "cpu_seconds": round(self._at[2] - cpu, 2)}


def fresh(model: Model, folder: Path) -> list[denn.Document]:
    """Return the tagged packages that are not in the model, in random order."""
    known = {*model.store.ids(), *(one.id for one in Kept.load(folder / model.card.validation).documents)}
    test = folder.parent / "test.jsonl"
    known |= {one.id for one in read_documents(test)[0]} if test.exists() else set()
    tagged, _ = load_debian(cache_folder() / "debian", min_count=1)
    return random.Random(0).sample(found := [one for one in tagged if one.id not in known], len(found))


def embedded(model: Model, documents: Sequence[denn.Document], work: Path) -> Tensor:
    """Return the vectors of documents, cached in the work folder."""
    file = work / "vectors.pt"
    vectors = torch.load(file) if file.exists() else {}
    missing = sorted((one for one in documents if one.id not in vectors), key=lambda one: len(one.text))
    for begin in range(0, len(missing), PIECE):
        part = missing[begin : begin + PIECE]
        vectors |= zip((one.id for one in part), model.embed([one.text for one in part]).half().clone(), strict=True)
        print(f"embedded {begin + len(part):,} of {len(missing):,}", flush=True)
    if missing:
        torch.save(vectors, file)
    return torch.stack([vectors[one.id] for one in documents]).float()


def more(model: Model, folder: Path, count: int, work: Path) -> tuple[list[denn.Document], Tensor]:
    """Return documents to add: packages, then altered copies."""
    documents = fresh(model, folder)[:count]
    vectors = F.normalize(embedded(model, documents, work), dim=1)
    draw, noise, again = random.Random(0), torch.Generator().manual_seed(0), []
    for number in range(count - len(documents)):
        one = documents[number % len(documents)]
        words = " ".join(word for word in one.text.split(" ") if draw.random() >= DROPPED)
        again.append(replace(one, text=words or one.text, id=f"{one.id} {number}"))
    copies = vectors[torch.arange(len(again)) % len(documents)]
    moved = torch.randn(copies.shape, generator=noise) * NEAR / copies.shape[1] ** 0.5
    return documents + again, torch.cat([vectors, F.normalize(copies + moved, dim=1)])


@contextmanager
def copied(folder: Path, added: int, work: Path) -> Iterator[Path]:
    """Yield a copy of a model with more documents in its datastore."""
    kept = work / f"{folder.parent.name}-{added}"
    if not kept.exists():
        part = Path(shutil.copytree(folder, kept.with_suffix(".part"), dirs_exist_ok=True))
        with denn.load(part) as model:
            if added:
                documents, vectors = more(model, folder, added, work)
                for begin in range(0, added, 8 * PIECE):
                    model.store.add(documents[begin : begin + 8 * PIECE], vectors[begin : begin + 8 * PIECE])
        part.rename(kept)
    with tempfile.TemporaryDirectory(dir=work) as own:
        yield Path(shutil.copytree(kept, Path(own) / "model"))


def timed(folder: Path, added: int, work: Path) -> dict[str, Any]:
    """Refit a copy of the model with this many more documents."""
    with copied(folder, added, work) as model:
        load, stages, begun, cpu = os.getloadavg()[0], Stages(), time.monotonic(), time.process_time()
        with denn.refit(model, force=True, progress=stages) as after:
            stages.start(Stage("end"))
            facts = after.card.refitted
    return {
        "added": added,
        "documents": facts["documents"] + facts["held_out"],
        "held_out": facts["held_out"],
        "labels": facts["labels"],
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "load_before": round(load, 2),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "stages": stages.found,
    }


def heads(folder: Path, added: int, epochs: Sequence[int], work: Path) -> dict[str, Any]:
    """Train heads for these numbers of epochs; score each on validation documents, alone and in a combination."""
    with copied(folder, added, work) as copy, denn.load(copy) as model, tempfile.TemporaryDirectory() as own:
        method, card = cast(DENN, model.method), model.card
        learnt, vectors, judged = refit_documents.divide(
            model.store, Kept.load(copy / card.validation), method, Silent()
        )
        labels = refit_documents.labels_of(bundle.read_labels(copy).names, model.store.labels, learnt, judged.documents)
        corpus = Corpus(learnt, judged.documents, labels=labels)
        words = lookup(WITNESSES, "words", "witness").fit(corpus, method, Silent(), float("inf"))
        method.witnesses.pop("words")
        asked = relearning.ask(method, judged.documents, judged.embeddings, judged.own_ids)
        values, rows = {}, []
        for count in epochs:
            cpu = time.process_time()
            new = relearning.relearn(method, corpus, vectors, Silent(), Clock(None), count)
            cpu = time.process_time() - cpu
            new.witnesses["words"] = words
            own_asked = relearning.with_own_labels(new, asked)
            found = new.learn_combination(own_asked, judged.documents, new.hear(own_asked), Path(own), Silent()).scores
            gold = denn.types.LabelSpace(found.names).matrix(judged.documents)
            fold, row = folds_of(len(gold), method.parameters.seed), {"epochs": count, "cpu_seconds": round(cpu, 1)}
            for name, scores in (("classifier", found.parts["classifier"]), ("combination", found.final)):
                for metric in ("micro_f1", "macro_f1"):
                    decided = decide_by_fold(scores.nan_to_num(0.0), gold, fold, metric)
                    values[count, name, metric] = f1_values(decided, gold, macro=metric == "macro_f1")
                    row[f"{name} {metric}"] = round(100 * float(values[count, name, metric][0]), 2)
            rows.append(row)
            print(row, flush=True)
    best = max(epochs, key=lambda count: float(values[count, "combination", "micro_f1"][0]))
    for row in rows:
        lead, error = lead_of(values[row["epochs"], "combination", "micro_f1"], values[best, "combination", "micro_f1"])
        row["behind the best"], row["standard error"] = round(-100 * lead, 2), round(100 * error, 2)
    frozen = bool(card.training.get("frozen"))
    name = f"{card.corpus['name']}, encoder {'not fine-tuned' if frozen else 'fine-tuned'}"
    return {"model": name, "documents": len(learnt), "held_out": len(judged.documents), "rows": rows}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["time", "head"])
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True, help="Folder for vectors and datastores.")
    parser.add_argument("--added", type=int, nargs="+", help="Numbers of documents to add.")
    parser.add_argument("--epochs", type=int, nargs="+", default=EPOCHS)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    a.work.mkdir(parents=True, exist_ok=True)
    wanted = a.added or (ADDED if a.what == "time" else ADDED_FOR_HEADS)
    found = []
    for folder in a.models:
        for added in wanted if bundle.read_card(folder).corpus["name"] == "debian" else (0,):
            found.append(timed(folder, added, a.work) if a.what == "time" else heads(folder, added, a.epochs, a.work))
    report({a.what: found}, a.out)


if __name__ == "__main__":
    main()

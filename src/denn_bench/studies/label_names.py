"""Test the names of labels as a witness: the similarity of a text to each name, with the model's own encoder.

python -m denn_bench.studies.label_names DATA_FOLDER CORPUS MODEL [--train 8000] [--valid 2000] [--test 2000] [--seed 0]
    [--out FILE]

MODEL is a folder for a model of a random part of the corpus, trained with an unchanged encoder if it does not exist.
The combination is learnt on validation documents with and without the names, and scored on test documents at the
threshold tuned on validation. AUC is the mean over labels with this many training documents.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

import denn
from denn.cli.sources import Reading, open_corpus
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.prediction_types import Neighbours
from denn.types import Corpus, Document, LabelSpace
from denn.witnesses.texts import Texts
from denn_bench.arxiv import ARXIV
from denn_bench.studies.machine import report

RANGES = {"0": (0, 0), "1-5": (1, 5), "6-50": (6, 50), "51-": (51, 10**9)}  # training documents of a label
Heard = tuple[dict[str, Tensor], Neighbours]


def main() -> None:
    """Train a model if there is none, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("corpus")
    parser.add_argument("model", type=Path)
    for part, count in (("train", 8000), ("valid", 2000), ("test", 2000)):
        parser.add_argument(f"--{part}", type=int, default=count, help="number of documents")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    chance = random.Random(given.seed)

    def some(documents: Sequence[Document], count: int) -> list[Document]:
        return chance.sample(list(documents), min(count, len(documents)))

    whole = open_corpus(given.corpus, given.data, Reading())
    parts = {part: some(getattr(whole, part), getattr(given, part)) for part in ("train", "valid", "test")}
    corpus = replace(whole, **parts)
    if not given.model.exists():
        denn.train(corpus, encoder="minilm", effort="quick", out=given.model, seed=given.seed).close()
    with denn.load(given.model) as model:
        result = compared(model.method, corpus, {label: ARXIV.get(label, label) for label in corpus.labels})
    counts = {part: len(documents) for part, documents in parts.items()}
    report({"corpus": given.corpus, "documents": counts, "seed": given.seed, **result}, given.out)


def compared(method: Any, corpus: Corpus, names: Mapping[str, str]) -> dict[str, Any]:
    """Score validation and test documents by all witnesses, and combine them with and without the names."""
    labels = method.store.labels
    targets = F.normalize(method.embed([names.get(label, label) for label in labels]).float(), dim=1)

    def hear(documents: Sequence[Document]) -> Heard:
        asked = Texts(
            [document.text for document in documents],
            method.embed,
            lambda found: method.search(found, k=method.parameters.k),
        )
        similarity = F.normalize(asked.embeddings.float(), dim=1) @ targets.T
        return {**method.hear(asked), "names": (1 + similarity) / 2}, asked.neighbours

    valid, test = hear(corpus.valid), hear(corpus.test)
    return {
        "labels": len(labels),
        "auc": ranking(test[0], LabelSpace(labels).matrix(corpus.test), counts_of(corpus, labels)),
        "without": combined(method, valid, test, corpus, leave_out="names"),
        "with": combined(method, valid, test, corpus),
    }


def counts_of(corpus: Corpus, labels: Sequence[str]) -> Tensor:
    """Return the number of training documents of each label."""
    return LabelSpace(tuple(labels)).matrix(corpus.train).sum(0)


def ranking(parts: Mapping[str, Tensor], gold: Tensor, counts: Tensor) -> dict[str, dict[str, Any]]:
    """Return each witness's mean AUC over the labels that occur in the documents, by training frequency."""
    found: dict[str, dict[str, Any]] = {}
    for name, (low, high) in RANGES.items():
        chosen = torch.nonzero((counts >= low) & (counts <= high) & gold.any(0)).flatten().tolist()
        found[name] = {"labels": len(chosen)}
        for witness, scores in parts.items() if chosen else ():
            values = torch.nan_to_num(scores.float())
            areas = [roc_auc_score(gold[:, column].numpy(), values[:, column].numpy()) for column in chosen]
            found[name][witness] = round(sum(areas) / len(areas), 3)
    return found


def combined(method: Any, valid: Heard, test: Heard, corpus: Corpus, leave_out: str = "") -> dict[str, Any]:
    """Learn a combination on validation documents; return its F1 scores there, cross-fitted, and on test documents."""
    (parts, found), (test_parts, test_found) = (
        ({name: scores for name, scores in heard.items() if name != leave_out}, near) for heard, near in (valid, test)
    )
    combiner, facts, unseen = method.fit_combiner(parts, found, corpus.valid)
    threshold = tune_global(unseen, gold := LabelSpace(found.names).matrix(corpus.valid))
    final = combiner.combine(*method._weighed(test_parts, test_found))
    return {
        "valid": rounded(multilabel_scores(decide(unseen, threshold), gold)),
        "test": rounded(multilabel_scores(decide(final, threshold), LabelSpace(found.names).matrix(corpus.test))),
        "threshold": threshold,
        "chosen": facts["chosen"],
    }


def rounded(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the F1 scores in percent."""
    return {name: round(100 * scores[name], 2) for name in ("micro_f1", "macro_f1")}


if __name__ == "__main__":
    main()

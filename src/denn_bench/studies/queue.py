r"""Value of the labels that `Model.queue` asks for, compared with random texts, on the documents of a datastore.

python -m denn_bench.studies.queue MODEL [--known 400] [--asked 200] [--seeds 10] [--out FILE]

The model's encoder should not be fine-tuned. For every seed, a head and neighbours learn from some documents,
rank others, and learn again with the requested ones. 300 documents tune the threshold, the rest are for testing.
Scores are the mean of classifier and neighbours. The output shows differences in F1 from two random draws.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denn.analysis.queue import mean_nearness, worth
from denn.core.choice import expected_errors, spread_out
from denn.core.combine import vote
from denn.core.metrics import multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.stores.address import open_store
from denn.training.head import start_head
from denn.types import LabelSpace
from denn_bench.studies.machine import report

NEIGHBOURS, TEMPERATURE, EPOCHS, TUNED_ON, POOL = 30, 0.05, 20, 300, 1500


def learn(vectors: Tensor, labels: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Learn documents; return a function for (n,L) scores and (n,k) cosine similarities of other vectors."""
    head = nn.Linear(vectors.shape[1], labels.shape[1])
    nn.init.zeros_(head.weight)
    start_head(head, vectors, labels, EPOCHS, 0)

    def score(others: Tensor) -> tuple[Tensor, Tensor]:
        similarity, rows = (others @ vectors.T).topk(min(NEIGHBOURS, len(vectors)))
        with torch.no_grad():
            return (torch.sigmoid(head(others)) + vote(similarity, labels[rows], TEMPERATURE)) / 2, similarity

    return score


def compare(vectors: Tensor, labels: Tensor, known: int, asked: int, seed: int) -> dict[str, Tensor]:
    """Return micro-F1 and macro-F1 with each strategy."""
    order = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))
    first, pool, tuned, test = order.split([known, POOL, TUNED_ON, len(order) - known - POOL - TUNED_ON])

    def judge(rows: Tensor) -> Tensor:
        score = learn(vectors[rows], labels[rows])
        threshold = tune_global(score(vectors[tuned])[0], labels[tuned])
        found = multilabel_scores(decide(score(vectors[test])[0], threshold), labels[test])
        return torch.tensor([found["micro_f1"], found["macro_f1"]])

    score = learn(vectors[first], labels[first])
    threshold = tune_global(score(vectors[tuned])[0], labels[tuned])
    scores, similarity = score(vectors[pool])
    uncertainty = expected_errors(scores, decide(scores, threshold))
    value = worth(uncertainty, mean_nearness(similarity))
    ways = {
        "random": pool[:asked],
        "random again": pool[asked : 2 * asked],
        "uncertain": pool[uncertainty.argsort(descending=True)[:asked]],
        "uncertain, unfamiliar": pool[value.argsort(descending=True)[:asked]],
        "queue": pool[spread_out(value, vectors[pool], asked)],
    }
    return {"none": judge(first)} | {name: judge(torch.cat([first, rows])) for name, rows in ways.items()}


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--known", type=int, default=400)
    parser.add_argument("--asked", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    with open_store(a.model) as store:
        parts = list(store.export())
    documents = [document for some, _ in parts for document in some]
    vectors = F.normalize(torch.cat([some.float() for _, some in parts]), dim=1)
    labels = LabelSpace.of(documents).matrix(documents)
    runs = [compare(vectors, labels, a.known, a.asked, seed) for seed in range(a.seeds)]
    result = {}
    for name in runs[0]:
        gained = 100 * torch.stack([run[name] - (run["random"] + run["random again"]) / 2 for run in runs])
        error = gained.std(0) / len(runs) ** 0.5
        result[name] = {
            metric: [round(float(gained.mean(0)[place]), 2), round(float(error[place]), 2)]
            for place, metric in enumerate(("micro_f1", "macro_f1"))
        }
    settings = {"known": a.known, "asked": a.asked, "seeds": a.seeds, "documents": len(documents)}
    report({**settings, "gain over random, standard error": result}, a.out)


if __name__ == "__main__":
    main()

"""Made-up results of `denn bench run`, with metrics that match their decisions."""

import torch

from denn.core.metrics import all_scores, label_table
from denn_bench.result import Result

LABELS, DOCUMENTS = 8, 150
GROUPS = {">4500": [0, 1], "1701-4500": [2, 3], "871-1700": [4, 5, 6], "<=870": [7]}
TRAIN = [9000, 5000, 3000, 2000, 1500, 1000, 900, 400]
QUALITY = {  # recipe → part → share of the gold labels that is found
    "bert": {"final": 0.70},
    "bert-longer": {"final": 0.72},
    "bert-knn": {"final": 0.74, "classifier": 0.70, "neighbours": 0.66, "average": 0.75},
    "denn": {"final": 0.86, "classifier": 0.74, "neighbours": 0.80, "average": 0.84},
}


def columns(matrix):
    return [row.nonzero().flatten().tolist() for row in matrix]


def noisy(gold, keep, add, seed):
    chance = torch.Generator().manual_seed(seed)
    kept = gold & (torch.rand(gold.shape, generator=chance) < keep)
    return kept | (torch.rand(gold.shape, generator=chance) < add)


def a_gold(corpus):
    chance = torch.Generator().manual_seed(len(corpus))
    return torch.rand(DOCUMENTS, LABELS, generator=chance) < 0.3


def sweeps(seed):
    def entry(name, setting, height):
        return {name: setting, "micro_f1": height + seed / 1000, "macro_f1": height - 0.1}

    best = {5: 0.73, 10: 0.735, 20: 0.74, 30: 0.745, 40: 0.742, 50: 0.741}
    return {
        "k": [entry("k", k, height) for k, height in best.items()],
        "gamma": [entry("gamma", g / 10, 0.75 - abs(g - 7) / 100) for g in range(1, 10)],
        "datastore": [
            entry("share", share / 100, 0.70 + share / 2000) | {"micro_f1_sd": 0.002, "macro_f1_sd": 0.003, "draws": 3}
            for share in (20, 40, 60, 80, 100)
        ],
    }


def cost():
    return {
        "seconds": 900.0,
        "training_seconds": 600.0,
        "validation_seconds": 60.0,
        "steps": 5000,
        "best_step": 4000,
        "epochs": 4.0,
        "tokens": 200_000_000,
        "tokens_per_second": 333_333.0,
        "epoch_seconds": 150.0,
        "matrix_rate": 790e12,
        "mfu": 0.412,
        "peak_memory_bytes": 12_300_000_000,
        "inference_ms_per_text": 0.33,
        "inference_ms_per_text_without_neighbours": 0.30,
        "prediction_ms_per_text": 0.35,
        "prediction_ms_per_text_with_evidence": 0.45,
        "store_documents": 40_000,
        "store_bytes": 125_000_000,
        "parameters": {"encoder": 109_486_464, "head": 41_526, "extra": 0},
    }


def a_test(predicted, gold):
    """Return the `test` of a result: the metrics of each part, at every threshold those of its decisions."""
    thresholds = ("0.4", "0.45", "0.5", "tuned", "per_label")
    table = label_table(predicted["final"], gold)
    f1 = {part: label_table(chosen, gold).f1 for part, chosen in predicted.items()}
    return {
        "systems": {part: dict.fromkeys(thresholds, all_scores(chosen, gold)) for part, chosen in predicted.items()},
        "bands": [],
        "groups": [
            {"name": name, "labels": len(members), "macro_f1": float(f1["final"][members].mean())}
            for name, members in GROUPS.items()
        ],
        "per_label": {
            "label": [f"label {column}" for column in range(LABELS)],
            "train": TRAIN,
            **{name: values.tolist() for name, values in vars(table).items()},
            **{f"f1_{part}": values.tolist() for part, values in f1.items()},
        },
    }


def run(recipe, seed=0, corpus="aapd", quality=None, parameters=None, created="2026-01-02T03:04:05+00:00"):
    """Make one result; `quality` gives each part the share of gold labels that it finds."""
    gold = a_gold(corpus)
    quality = quality or QUALITY.get(recipe, QUALITY["denn"])
    predicted = {
        part: noisy(gold, keep, 0.05, 100 * seed + 10 * len(recipe) + place)
        for place, (part, keep) in enumerate(quality.items())
    }
    data = {
        "schema": 1,
        "name": f"{corpus}-{recipe}-{seed}",
        "corpus": {"name": corpus, "train": 40_000, "valid": 100, "test": DOCUMENTS, "labels": LABELS},
        "recipe": {
            "name": recipe,
            "method": "bert" if recipe in ("bert", "bert-longer") else "denn",
            "parameters": {"alpha": 0.1, "k": 30, "seed": seed} | (parameters or {}),
        },
        "seed": seed,
        "commit": "0123456789abcdef0123",
        "created": created,
        "machine": {"cpu": "a processor", "gpu": "NVIDIA H200", "cores": 16},
        "history": [{"step": step, "seconds": step / 10, "score": 0.7 - 5 / step} for step in (100, 200, 300, 400)],
        "cost": cost(),
        "test": a_test(predicted, gold),
        "decisions": {"gold": columns(gold), **{part: columns(chosen) for part, chosen in predicted.items()}},
    }
    if data["recipe"]["method"] == "denn":
        data["sweeps"] = sweeps(seed)
    return Result(data["name"], corpus, recipe, seed, data)


def all_runs():
    """Make three seeds of the main systems on AAPD, one on EUR-LEX57K, and one of every variant."""
    variants = (
        "bert-longer",
        "denn-ucl",
        "denn-scl",
        "denn-wscl",
        "denn-masking",
        "denn-span",
        "denn-shuffle",
        "denn-tuned",
    )
    return [
        *(run(recipe, seed) for recipe in ("bert", "bert-knn", "denn") for seed in range(3)),
        *(run(recipe, 0, "eurlex57k") for recipe in ("bert", "bert-knn", "denn")),
        *(run(recipe) for recipe in variants),
    ]

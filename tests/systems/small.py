"""Settings that train each method on the tiny corpus in about a second, in addition to the shared ones."""

from typing import Any

SEQUENCE = {"word_width": 16, "hidden": 12, "encoder_layers": 1, "dropout": 0.0, "beam": 3, "max_length": 40}

SMALL: dict[str, dict[str, Any]] = {
    "denn": {},
    "knn": {},
    "bert": {},
    "scl": {},
    "jscl": {},
    "br": {"min_df": 1, "jobs": 1},
    "cc": {"min_df": 1, "jobs": 1, "chains": 3},
    "mlknn": {"min_df": 1, "jobs": 1},
    "leam": {"word_width": 32, "max_length": 40},
    "exam": {"word_width": 16, "state_width": 32, "layers": 1, "hidden": 16, "max_length": 40},
    "lsan": {"word_width": 16, "attention_width": 16, "scorer_width": 16, "max_length": 40},
    "ldgn": {"word_width": 16, "graph_width": 16, "max_length": 40},
    "spanemo": {},
    "core": {},
    "laco-plcp": {},
    "laco-clcp": {},
    "seqtag": {"hidden": 16},
    "seq2seq": SEQUENCE,
    "sgm": SEQUENCE,
    "seq2set": {**SEQUENCE, "decoder_layers": 1, "reinforced_epochs": 1},
    "ocd": {**SEQUENCE, "decoder_layers": 1, "logistic_layers": 1, "logistic_width": 16},
    "mlr": {"label_width": 8},
    "mlr-textcnn": {"label_width": 8, "filters": 8, "word_width": 16, "dropout": 0.1, "learning_rate": 0.02},
    "dummy": {},
}

# For memorising a dozen documents.
BY_HEART: dict[str, dict[str, Any]] = {
    "br": {"cost": 100.0},
    "cc": {"cost": 100.0, "chains": 1},
    "leam": {"epochs": 60},
    "exam": {"epochs": 60, "learning_rate": 0.01},
    "lsan": {"epochs": 60, "learning_rate": 0.01, "dropout": 0.1},
    "ldgn": {"epochs": 60, "learning_rate": 0.02, "dropout": 0.0},
    "spanemo": {
        "epochs": 160,
        "batch_size": 6,
        "evaluate_every": 40,
        "schedule": "linear",
        "learning_rate": 0.005,
        "head_learning_rate": 0.005,
        "dropout": 0.0,
    },
    "laco-plcp": {"head_learning_rate": 0.01},
    "laco-clcp": {"head_learning_rate": 0.01},
    "seq2seq": {"learning_rate": 0.02},
    "sgm": {"learning_rate": 0.02},
    "seq2set": {"learning_rate": 0.02},
    "ocd": {"epochs": 60, "learning_rate": 0.02},
}

# Why a method cannot memorise a dozen documents.
FORGETFUL: dict[str, str] = {"dummy": "reads no text", "mlknn": "a text is one of k neighbours"}

# Methods without randomness: every seed gives the same result.
WITHOUT_CHANCE = {"dummy", "br", "mlknn"}

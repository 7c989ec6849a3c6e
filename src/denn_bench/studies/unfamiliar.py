"""Predictions for texts unlike a model's documents: one-line summaries and nonsense, compared with test texts.

python -m denn_bench.studies.unfamiliar MODEL TEST [--count 300] [--out FILE]

TEST contains Debian packages. A summary is the first line of a text without the name of the package, which comes before
": "; it has the gold labels of the whole text.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import denn
from denn.data.corpus import read_documents
from denn.prediction_types import Prediction
from denn.types import Document
from denn_bench.studies.machine import report

NONSENSE = (
    "zebra crossing painter",
    "mitochondrial membrane potential in rat hepatocytes",
    "the plaintiff appealed the ruling of the district court",
    "simmer the onions in butter until golden, then add the stock",
    "the striker missed a penalty in the last minute of the match",
    "wheat prices rose after a dry spring in the Black Sea region",
    "colourless green ideas sleep furiously",
    "asdf jkl qwer uiop zxcv",
    "lkjhgfdsa mnbvcxz poiuytrewq",
    "Der Regen fiel den ganzen Tag auf die Dächer der kleinen Stadt.",
    "Les enfants jouent dans le jardin pendant que la soupe refroidit.",
    "昨日、京都で桜を見ました。",
    "x",
    "...",
    "",
)


def main() -> None:
    """Predict all three kinds of texts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--count", type=int, default=300, help="number of summaries")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    documents, _ = read_documents(arguments.test)
    shortened = [(summary(one.text), one.labels) for one in documents]
    short = [Document(text, labels) for text, labels in shortened if text][: arguments.count]
    with denn.load(arguments.model) as model:

        def predict(texts: Sequence[str]) -> list[Prediction]:
            return model.predict(texts, evidence=0)

        nonsense = predict(NONSENSE)
        result = {
            "summaries": figures(short, predict([document.text for document in short])),
            "test texts": figures(documents, predict([document.text for document in documents])),
            "nonsense": [described(text, one) for text, one in zip(NONSENSE, nonsense, strict=True)],
            "nonsense flagged": f"{sum(one.unfamiliar for one in nonsense)} of {len(nonsense)}",
        }
    report(result, arguments.out)


def summary(text: str) -> str:
    """Return the first line of a text after the name of its package; nothing if it has no name."""
    return text.partition("\n")[0].partition(": ")[2].strip()


def figures(documents: Sequence[Document], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Compare the number of predicted and gold labels, and count the flagged texts."""
    given = mean(len(one.labels) for one in predictions)
    gold = mean(len(document.labels) for document in documents)
    measured = sorted(one.familiarity for one in predictions if one.familiarity is not None)
    return {
        "texts": len(documents),
        "labels given": round(given, 3),
        "gold labels": round(gold, 3),
        "given / gold": round(given / gold, 3),
        "flagged, %": round(100 * mean(one.unfamiliar for one in predictions), 2),
        "median familiarity": round(measured[len(measured) // 2], 4) if measured else None,
    }


def described(text: str, prediction: Prediction) -> dict[str, Any]:
    """Return a text with its labels, its best score and its familiarity."""
    return {
        "text": text,
        "labels": prediction.labels,
        "best score": round(max(prediction.scores.values(), default=0.0), 3),
        "familiarity": None if prediction.familiarity is None else round(prediction.familiarity, 4),
        "unfamiliar": prediction.unfamiliar,
    }


if __name__ == "__main__":
    main()

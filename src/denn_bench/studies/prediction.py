"""Cost of each witness in prediction: milliseconds per text, measured alternately.

python -m denn_bench.studies.prediction MODEL TEXTS [--count 512] [--rounds 7] [--out FILE]

The encoder's time includes the tokeniser's. `together` scores the texts in one call, `alone` one text per call.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import denn
from denn.data.files import iterate_texts
from denn.methods.denn import DENN
from denn.witnesses.texts import Texts
from denn_bench.studies.machine import report

ALONE = 64  # number of texts scored one by one


def steps(method: DENN, texts: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Return the timed steps: the encoder, each witness given the encoder's output, the combiner, and everything."""
    embeddings = method.embed(texts)
    found = method.search(embeddings, method.parameters.k)

    def search() -> object:
        return method.search(embeddings, method.parameters.k)

    def hear(name: str) -> Callable[[], object]:
        return lambda: method.witnesses[name].scores(Texts(texts, lambda _: embeddings, lambda _: found))

    said = method.hear(Texts(texts, lambda _: embeddings, lambda _: found))
    return {
        "encoder": lambda: method.embed(texts),
        "search": search,
        **{name: hear(name) for name in method.witnesses},
        "combiner": lambda: method.combine(said, found),
        "everything": lambda: method.scores(texts),
    }


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(method: DENN, batches: Sequence[Sequence[str]], rounds: int) -> dict[str, Any]:
    """Return the median milliseconds per text of each step, and the ratio of everything to the encoder alone."""
    timed = [steps(method, texts) for texts in batches]
    times: list[dict[str, float]] = []
    for _ in range(rounds + 1):
        times.append({name: sum(seconds(batch[name]) for batch in timed) for name in timed[0]})
    count = sum(map(len, batches))
    warm = times[1:]
    found = {name: round(1000 / count * statistics.median(one[name] for one in warm), 4) for name in timed[0]}
    ratio = statistics.median(one["everything"] / one["encoder"] for one in warm)
    return {"ms_per_text": found, "everything_to_encoder": round(ratio, 3)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    texts = [text for text, _ in iterate_texts(a.texts)][: a.count]
    with denn.load(a.model) as model:
        if not isinstance(model.method, DENN):
            raise SystemExit(f"Got a model of the method {model.card.method}, expected denn.")
        found = {
            "texts": len(texts),
            "labels": len(model.labels),
            "documents": len(model.method.store),
            "together": measure(model.method, [texts], a.rounds),
            "alone": measure(model.method, [[text] for text in texts[:ALONE]], a.rounds),
        }
    report(found, a.out)


if __name__ == "__main__":
    main()

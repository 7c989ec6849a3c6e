"""Effect of teaching: texts are predicted, taught with their true labels, and predicted again.

python -m denn_bench.studies.teaching MODEL TEST [--count 100] [--seed 0] [--out FILE]

Works on a copy of the model. Every text is taught alone and removed before the next one. It is predicted again
unchanged, with small edits (line breaks, a typo, without its end) and rearranged (its second half, its sentences in
another order, every other sentence). A label moves the wrong way if its score falls although the document has it, or
rises although it does not.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import denn
from denn.core.thresholds import decide
from denn.data.corpus import read_documents
from denn.model import Model
from denn_bench.studies.machine import report

ROUNDING = 1e-6


def typo(text: str, draw: random.Random) -> str:
    """Delete or double a letter of a word, or swap two."""
    places = [at.start() + 1 for at in re.finditer(r"[^\W\d_]{4}", text)]
    if not places:
        return text
    at = draw.choice(places)
    return text[:at] + draw.choice([text[at + 1 :], text[at] + text[at:], text[at + 1] + text[at] + text[at + 2 :]])


def sentences(text: str) -> list[str]:
    """Split a text into sentences and lines."""
    return [part for part in re.split(r"(?<=[.!?])\s+|\n+", text) if part.strip()]


def rearranged(choose: Callable[[list[str], random.Random], Sequence[str]]) -> Callable[[str, random.Random], str]:
    """Return an alteration that selects sentences."""
    return lambda text, draw: " ".join(choose(sentences(text), draw))


ALTERED: dict[str, Callable[[str, random.Random], str]] = {
    "unchanged": lambda text, _: text,
    "other line breaks": lambda text, _: " ".join(text.split()),
    "a typo": typo,
    "without the last fifth": lambda text, _: text[: -max(1, len(text) // 5)],
    "second half": rearranged(lambda parts, _: parts[len(parts) // 2 :]),
    "sentences in another order": rearranged(lambda parts, draw: draw.sample(parts, len(parts))),
    "every other sentence": rearranged(lambda parts, _: parts[::2]),
}


class Tally:
    """Results of one alteration."""

    def __init__(self) -> None:
        self.texts = self.exact_before = self.exact_after = self.wrong_before = self.wrong_after = 0
        self.moved_wrong_way, self.largest_wrong_move = 0, 0.0

    def add(self, gold: Tensor, before: Tensor, after: Tensor, scores_before: Tensor, scores_after: Tensor) -> None:
        """Add one text: (L,) bool labels and decisions, and scores."""
        self.texts += 1
        self.exact_before += int(torch.equal(before, gold))
        self.exact_after += int(torch.equal(after, gold))
        self.wrong_before += int((before & ~gold).sum())
        self.wrong_after += int((after & ~gold).sum())
        wrong_way = torch.where(gold, scores_before - scores_after, scores_after - scores_before)
        self.moved_wrong_way += int((wrong_way > ROUNDING).sum())
        self.largest_wrong_move = max(self.largest_wrong_move, round(float(wrong_way.max()), 6))


def teach(model: Model, documents: Sequence[denn.Document], seed: int) -> dict[str, Any]:
    """Teach the documents one by one; return the results of each alteration."""
    draw, tallies = random.Random(seed), {name: Tally() for name in ALTERED}
    for number, document in enumerate(documents):
        texts = [alter(document.text, draw) for alter in ALTERED.values()]
        first = model.scores(texts)
        [id] = model.add([denn.Document(document.text, document.labels, f"taught-{number}")])
        second = model.scores(texts)
        model.remove([id])
        width = second.final.shape[1]
        before = torch.zeros(len(texts), width)
        before[:, : first.final.shape[1]] = first.final
        gold = torch.tensor([name in document.labels for name in second.names])
        thresholds = model.decision_thresholds(second)
        for row, tally in enumerate(tallies.values()):
            decided = [decide(scores[row][None], thresholds)[0] for scores in (before, second.final)]
            tally.add(gold, decided[0], decided[1], before[row], second.final[row])
    return {name: vars(tally) for name, tally in tallies.items()}


def main() -> None:
    """Teach and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    documents, _ = read_documents(a.test)
    chosen = random.Random(a.seed).sample(documents, min(a.count, len(documents)))
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(a.model, Path(folder) / "model")
        with denn.load(copy) as model:
            found = teach(model, chosen, a.seed)
    report({"seed": a.seed, "taught": found}, a.out)


if __name__ == "__main__":
    main()

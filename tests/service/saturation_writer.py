"""The process that changes a datastore under a saturated service: python saturation_writer.py FOLDER NUMBER LOG.

It runs until there is a file `stop` next to its log. Every change is logged with the time it began, the time it was
acknowledged, and the labels that its documents have after it (null if they were removed).
"""

import json
import random
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch

from denn.datastore import Datastore
from denn.errors import StoreError
from denn.stores.address import open_store
from denn.types import Document

LIVE = 60  # maximum number of documents per writer
KINDS = ("add", "relabel", "remove", "forget", "vacuum")
OFTEN = (8, 4, 3, 3, 2)
OFTEN_OF_FIRST = (4, 1, 4, 4, 8)  # the first writer renumbers labels most of the time


class Writer:
    def __init__(self, store: Datastore, number: int, trained: list[str], pool: torch.Tensor, log: Path) -> None:
        self.store, self.number, self.trained, self.pool, self.log = store, number, trained, pool, log
        self.chance, self.mine, self.count = random.Random(number), list[str](), 0

    def run(self) -> None:
        with self.log.open("w") as out:
            while not self.log.with_name("stop").exists():
                begun = time.monotonic()
                states = self.change(self.chance.choices(KINDS, OFTEN if self.number else OFTEN_OF_FIRST)[0])
                row = {"begun": begun, "done": time.monotonic(), "states": states}
                out.write(json.dumps(row) + "\n")
                out.flush()
                time.sleep(self.chance.uniform(0, 0.05))

    def change(self, kind: str) -> dict[str, list[str] | None]:
        """Make one change; return the labels of its documents after it."""
        if kind == "vacuum":
            with suppress(StoreError):  # a reader kept the log, but unused labels are removed anyway
                self.store.vacuum(timedelta())
            return {}
        if (kind == "add" and len(self.mine) < LIVE) or not self.mine:
            return self.add()
        ids = self.chance.sample(self.mine, min(len(self.mine), self.chance.randint(1, 4)))
        if kind in ("add", "relabel"):
            labels = self.some_labels()
            self.store.relabel(ids, labels)
            return dict.fromkeys(ids, labels)
        (self.store.forget if kind == "forget" else self.store.remove)(ids)
        self.mine = [id for id in self.mine if id not in ids]
        return dict.fromkeys(ids)

    def add(self) -> dict[str, list[str] | None]:
        self.count += 1
        picked = [self.chance.randrange(len(self.pool)) for _ in range(self.chance.randint(1, 8))]
        states = {f"live {self.number} {self.count} {place}": self.some_labels() for place in range(len(picked))}
        documents = [Document(f"text of {id}", tuple(labels), id) for id, labels in states.items()]
        noise = 0.02 * torch.randn(len(picked), self.pool.shape[1])
        self.store.add(documents, self.pool[picked] + noise, source=f"writer {self.number}")
        self.mine += states
        return dict(states)

    def some_labels(self) -> list[str]:
        own = f"later {self.number}-{self.count // 3}"  # labels are added, and removed with their documents
        return [own, *self.chance.sample(self.trained, min(2, len(self.trained)))]


def main() -> None:
    folder, number, log = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    trained = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
    pool = torch.load(log.with_name("pool.pt"), weights_only=True)
    with open_store(folder, patience=60.0) as store:
        Writer(store, number, trained, pool, log).run()


if __name__ == "__main__":
    main()

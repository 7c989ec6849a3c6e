"""The process that test_kill.py kills: for each line read it forks a child that changes a store until it dies.

The fork saves importing torch for every child. Lines are written whole, so a killed child leaves no half line. A child
says what it is about to do before it does it, and that it is done when the store has said so.
"""

import os
import random
import sys
import threading
import zlib
from contextlib import suppress

import torch

from denn.errors import StoreError
from denn.stores.address import open_store
from denn.types import Document

BATCH, DIMENSION = 20, 32


def batch_of(name: str) -> tuple[list[Document], torch.Tensor]:
    """Return the documents and embeddings of a batch, the same for the same name."""
    documents = [
        Document(f"{name} text {i} " * 40, (f"label {i % 5}", name), f"{name}/{i}", (f"not {i % 3}",)[: i % 2])
        for i in range(BATCH)
    ]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return documents, torch.randn(BATCH, DIMENSION, generator=generator)


def ids_of(name: str) -> list[str]:
    """Return the ids of a batch."""
    return [str(document.id) for document in batch_of(name)[0]]


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def search_for_ever(store) -> None:
    while True:
        found = store.search(torch.ones(2, DIMENSION), 5)
        if len({len(ids) for ids in found.ids}) != 1:
            say("a search found rows of different lengths")


def change_until_killed(address: str, run: str) -> None:
    chance, mine = random.Random(run), []
    early = chance.random() < 0.1  # some are killed while they open the store, most while they change it
    if early:
        say(f"{run} started {os.getpid()}")
    store = open_store(address, patience=60.0)
    if not early:
        say(f"{run} started {os.getpid()}")
    threading.Thread(target=search_for_ever, args=(store,), daemon=True).start()
    for number in range(10**9):
        wanted = chance.choices(("add", "remove", "forget", "relabel", "vacuum"), (20, 6, 6, 6, 1))[0]
        if wanted == "vacuum":
            say(f"{run} vacuuming {run}.{number}")
            with suppress(StoreError):  # another process may be reading
                store.vacuum()
            say(f"{run} vacuumed {run}.{number}")
        elif wanted == "add" or not mine:
            name = f"{run}.{number}"
            say(f"{run} adding {name}")
            store.add(*batch_of(name))
            say(f"{run} added {name}")
            mine.append(name)
        elif wanted == "relabel":
            name = chance.choice(mine)
            say(f"{run} relabelling {name}")
            store.relabel(ids_of(name), add=[f"again {name}"])
            say(f"{run} relabelled {name}")
        else:
            name = mine.pop(chance.randrange(len(mine)))
            say(f"{run} {'removing' if wanted == 'remove' else 'forgetting'} {name}")
            (store.remove if wanted == "remove" else store.forget)(ids_of(name))
            say(f"{run} {'removed' if wanted == 'remove' else 'forgot'} {name}")


def main() -> None:
    torch.set_num_threads(1)
    open_store(sys.argv[1]).close()  # imports what the store needs
    say("ready")
    for line in sys.stdin:
        runs = line.split()
        children = {}
        for run in runs:
            child = os.fork()
            if not child:
                try:
                    change_until_killed(sys.argv[1], run)
                finally:
                    os._exit(1)
            children[child] = run
        while children:
            child, status = os.wait()
            say(f"{children.pop(child)} ended {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()

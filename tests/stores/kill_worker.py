"""The process that test_kill.py kills: for each line read it forks a child that adds batches until it dies.

The fork saves importing torch for every child. Lines are written whole, so a killed child leaves no half line.
"""

import os
import sys
import zlib
from pathlib import Path

import torch

from denn.stores.embedded import EmbeddedStore
from denn.types import Document

BATCH, DIMENSION = 20, 32


def batch_of(name: str) -> tuple[list[Document], torch.Tensor]:
    """Return the documents and embeddings of a batch, the same for the same name."""
    documents = [Document(f"{name} text {i} " * 40, (f"label {i % 5}", name), f"{name}/{i}") for i in range(BATCH)]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return documents, torch.randn(BATCH, DIMENSION, generator=generator)


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def add_until_killed(path: Path, run: str) -> None:
    say(f"started {os.getpid()}")
    store = EmbeddedStore.open(path)
    for number in range(10**9):
        name = f"{run}.{number}"
        store.add(*batch_of(name))
        say(f"added {name}")


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                add_until_killed(Path(sys.argv[1]), line.strip())
            finally:
                os._exit(1)
        say(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main()

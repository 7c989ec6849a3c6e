"""The process that test_kill.py kills: for each line read, a folder, it forks a child that trains a model there.

The fork saves importing torch for every child. Lines are written whole, so a killed child leaves no half line.
"""

import json
import os
import sys

import sklearn.svm  # noqa: F401  # the word witness needs it; each child would import it again
import torch
import torch._dynamo  # the first optimiser imports it

import denn


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main() -> None:
    torch.set_num_threads(1)
    train, valid, warm, settings = sys.argv[1:]
    corpus = denn.read_corpus(train, valid=valid)
    denn.load(warm).close()  # imports all that the children need
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                say(f"started {os.getpid()}")
                denn.train(corpus, out=line.strip(), replace=True, allow_poor=True, **json.loads(settings)).close()
                os._exit(0)
            finally:
                os._exit(1)
        say(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main()

"""The process that test_refit_kill.py drives: for each line, a moment and a folder, a fork of it refits a model.

The fork kills itself at the moment: when a stage begins, before or after the file is written that makes the refit
count, or while it clears up. Forking saves importing everything for each of them.
"""

import os
import signal
import sys

import sklearn.svm  # noqa: F401
import torch
import torch._dynamo  # the first optimizer imports it

import denn
from denn import bundle
from denn.types import Stage


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """Progress that ends the process when a stage begins."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def start(self, stage: Stage) -> None:
        if stage.what.startswith(self.stage):
            die()

    def advance(self, done: int, **values: object) -> None:
        pass

    def note(self, message: str) -> None:
        pass


def arm(moment: str) -> None:
    """Kill the process at one of the steps of the commit."""
    write = bundle.write_card
    if moment == "before the commit":
        bundle.write_card = lambda folder, card: die()
    elif moment == "after the commit":
        bundle.write_card = lambda folder, card: (write(folder, card), die())
    elif moment == "clearing":
        removed = bundle.shutil.rmtree
        bundle.shutil.rmtree = lambda path, **options: (removed(path, **options), die())


def main() -> None:
    torch.set_num_threads(1)
    denn.load(sys.argv[1]).close()  # imports the rest of what the children need
    for line in sys.stdin:
        moment, folder = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            try:
                arm(moment)
                denn.refit(folder, progress=Deadly(moment), force=True).close()
                os._exit(0)
            finally:
                os._exit(1)
        say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


if __name__ == "__main__":
    main()

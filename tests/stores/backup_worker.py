"""The process that test_backup_kill.py drives: a fork of it backs up, restores or upgrades, and is killed.

Each line names an action and its paths; the first answer is the process id of the fork, the second how it ended. A fork
saves importing torch.
"""

import os
import signal
import sys
from itertools import count
from pathlib import Path

import torch

from denn import backups, bundle, upgrading
from denn.progress import Silent
from denn.stores.embedded import transfer

STEPS = {  # calls that copy, replace, rename or delete: (where, name, how many there were before)
    "backup": [
        (transfer, "copy_file", 0),
        (bundle, "sync_all", 0),
        (Path, "rename", 0),
        (Path, "rename", 1),
        (bundle.shutil, "rmtree", 1),
    ],
    "restore": [
        (transfer, "prepare", 0),
        (transfer, "forget_again", 0),
        (transfer, "keep_access", 0),
        (Path, "replace", 0),
    ],
    "upgrade": [
        (transfer, "copy_from", 0),
        (Path, "rename", 0),
        (upgrading, "prepare_writer", 0),
        (Path, "replace", 0),
    ],
    "undo": [
        (upgrading.shutil, "copyfile", 0),
        (Path, "replace", 0),
        (Path, "replace", 1),
        (upgrading.shutil, "rmtree", 0),
    ],
}


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(action: str, moment: str) -> None:
    """Kill this process before the step of this number, or after it if it is negative; not for "never"."""
    if moment == "never":
        return
    place, name, earlier = STEPS[action][int(moment)]
    real, calls = getattr(place, name), count()

    def deadly(*arguments, **options):
        hit = next(calls) == earlier
        if hit and int(moment) >= 0:
            die()
        found = real(*arguments, **options)
        if hit:
            die()
        return found

    setattr(place, name, deadly)


def work(action: str, one: str, other: str) -> None:
    if action == "backup":
        backups.back_up(one, Path(other), Silent(), overwrite=True)
    elif action == "restore":
        backups.restore(one, Path(other), Silent())
    elif action == "upgrade":
        upgrading.upgrade(Path(one), Silent())
    else:
        upgrading.undo(Path(one))


def main() -> None:
    torch.set_num_threads(1)
    say("ready")
    for line in sys.stdin:
        action, moment, one, other = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            try:
                arm(action, moment)
                work(action, one, other)
                os._exit(0)
            finally:
                os._exit(1)
        say(str(child))
        say(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


if __name__ == "__main__":
    main()

"""A process that gives damaged corpus files to whole commands, each in a fork of its own; see corpus_reader.py."""

import io
import json
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

from corpus_cases import make_case

import denn
import denn.build
import denn.cli.app
import denn.cli.evaluate
from denn.cli import main

SECONDS = 60
COMMANDS = {
    "train": lambda model, path, folder: ["train", path, "--out", folder / "new", "--method", "dummy", "--replace"],
    "evaluate": lambda model, path, folder: ["evaluate", model, path, "--json"],
    "predict": lambda model, path, folder: ["predict", model, path, "--output", folder / "out.jsonl"],
}


def run_all() -> None:
    first, last, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    tempfile.tempdir = str(folder / "tmp")
    Path(tempfile.tempdir).mkdir()
    rows = [("licensor and contributor", ["a", "b"]), ("work and derivative", ["b"])] * 10
    denn.train(denn.read_corpus(rows), out=folder / "model", method="dummy").close()
    for number in range(first, last):
        case, command = make_case(number), list(COMMANDS)[number % len(COMMANDS)]
        path = folder / case.name
        path.write_bytes(case.content)
        code, memory, said = fork([str(part) for part in COMMANDS[command](folder / "model", path, folder)])
        left = [
            *(path.name for place in (Path(tempfile.tempdir).iterdir(), folder.glob("*.training")) for path in place)
        ]
        row = {"number": number, "command": command, "name": case.name, "code": code, "memory": memory, "said": said}
        sys.stdout.write(json.dumps(row | {"left": left}) + "\n")
        sys.stdout.flush()
        path.unlink()


def fork(arguments: list[str]) -> tuple[int, int, str]:
    """Run a command and return its exit code, its memory and what it said on stderr."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        os.close(receiver)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(6 * SECONDS)
        os.dup2(sender, 2)
        sys.stdin, sys.stdout = io.StringIO(), Path(os.devnull).open("w")
        code = 1
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code or 0
        except BaseException as error:  # as Python would print it
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        os._exit(int(code))
    os.close(sender)
    with os.fdopen(receiver, errors="replace") as stream:
        said = stream.read()
    _, status, used = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), 1024 * used.ru_maxrss, said


if __name__ == "__main__":
    run_all()

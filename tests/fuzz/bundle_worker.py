"""Damage copies of models and load each in a child of this process, which has everything imported and warm.

    bundle_worker.py COUNT SEED SCRATCH OUT MODEL...

Writes one JSON line for each damaged model: what was done to it, how it ended, its seconds and its peak memory. A child
that does not end in time, dies, takes too much memory, opens a connection or raises anything but a DennError of one
line is a failure.
"""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

import torch
from bundle_mutations import mutate

import denn
from denn.errors import DennError

SECONDS = 20
MEMORY = 2 * 2**30
MOST = 12 * 2**30  # addresses of this process and of each child
TEXTS = ["goal match team", ""]


def sign(folder: Path) -> None:
    """Write the digests of the current files into bundle.json, as the maker of a model could."""
    card = folder / "bundle.json"
    if card.is_symlink() or not card.is_file():  # /dev/zero has no end
        return
    try:
        content = json.loads(card.read_bytes())
        names = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        content["digests"] = {
            path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in names
            if path != card and path.parent != folder / "store"
        }
        card.write_text(json.dumps(content))
    except (ValueError, TypeError, OSError, RecursionError):
        pass  # the card itself is damaged


def load(folder: Path) -> str:
    """Load a model and score a text; return the outcome."""
    try:
        with denn.load(folder) as model:
            for found in model.predict(TEXTS):
                assert all(0 <= score <= 1 for score in found.scores.values()), found.scores
            final = model.scores(TEXTS).final
            assert bool((final.isfinite() & (final > -1e-3) & (final < 1.001)).all()), final
            return "loaded"
    except DennError as error:
        sentence = str(error)
        return "refused" if sentence and "\n" not in sentence else f"failed: sentence {sentence!r}"


def refuse_connections(*where: object, **_: object) -> None:
    raise AssertionError(f"a connection to {where[-1]}")


def child(folder: Path, answer: int) -> None:
    """Load a damaged model under limits and send the outcome."""
    sys.stdin = Path(os.devnull).open()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 2)  # panics of Rust
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (min(in_use + MEMORY, MOST),) * 2)
    socket.socket.connect = refuse_connections  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = refuse_connections  # type: ignore[assignment]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    try:
        ended = load(folder)
    except BaseException as error:
        import traceback

        where = traceback.extract_tb(error.__traceback__)
        place = next((frame for frame in reversed(where) if "/denn/" in frame.filename), where[-1])
        ended = f"failed: {type(error).__name__}: {str(error)[:300]} at {Path(place.filename).name}:{place.lineno}"
    os.write(answer, ended.encode(errors="replace")[:4000])


def try_one(folder: Path) -> tuple[str, int]:
    """Fork a child for a damaged model; return how it ended and its peak memory in bytes."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            child(folder, sending)
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        said = pipe.read().decode()
    _, status, usage = os.wait4(pid, 0)
    code, peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
    if code == -signal.SIGALRM:
        said = f"failed: took more than {SECONDS} s"
    elif code or not said:
        said = f"failed: ended with {code}"
    return (f"failed: took {peak:,} bytes" if peak > MEMORY else said), peak


def main() -> None:
    count, seed, scratch, out = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])
    models = [Path(path) for path in sys.argv[5:]]
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))  # a bug in this test must not exhaust the machine
    torch.set_num_threads(1)
    for model in models:
        assert load(model) == "loaded"
    folder = scratch / "model"
    with out.open("w") as results:
        for number in range(count):
            draw = random.Random(f"{seed} {number}")
            model = models[0] if draw.random() < 0.8 else draw.choice(models[1:])
            shutil.copytree(model, folder)
            kind, done = mutate(folder, f"{seed} {number} mutation")
            signed = number % 2 == 0
            if signed and not (folder / ".unsigned").exists():
                sign(folder)
            (folder / ".unsigned").unlink(missing_ok=True)
            begun = time.monotonic()
            ended, peak = try_one(folder)
            if (scratch / "canary").exists():
                ended = "failed: code ran"
                (scratch / "canary").unlink()
            row = {"number": number, "model": model.name, "kind": kind, "done": done, "signed": signed, "ended": ended}
            print(
                json.dumps(row | {"seconds": round(time.monotonic() - begun, 3), "peak": peak}),
                file=results,
                flush=True,
            )
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()

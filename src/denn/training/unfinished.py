"""The folder of an unfinished training run: which run it belongs to, what to keep, and how to remove it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from denn.durable import sync, sync_all
from denn.errors import TrainingError
from denn.untrusted import read_object

RUN = "run.json"  # identifies the run
FIRST, FIRST_FACTS = "first", "first.json"  # the model of a first try, complete once the second file exists


def open_folder(workdir: Path, fingerprint: str, restart: bool, processes: int = 1) -> None:
    """Create the folder of resumable state, or reuse the one of this same run, in as many processes."""
    file, beside = workdir / RUN, workdir / f"{RUN}.part"
    if workdir.exists() and not file.exists() and any(path != beside for path in workdir.iterdir()):
        raise TrainingError(f"{workdir} exists and is not an unfinished training run. Move it or choose another --out.")
    if restart:
        discard(workdir)
    if file.exists():
        found = read_object(file, TrainingError)
        if found.get("fingerprint") != fingerprint:
            raise TrainingError(
                f"{workdir} contains an unfinished training run with other data or settings. Run its command again to "
                "finish it, or pass --restart to discard it."
            )
        if (begun := found.get("processes", 1)) != processes:
            raise TrainingError(
                f"{workdir} contains an unfinished training run with a process count of {begun}, got {processes}. Use "
                f"{begun} to finish it, or pass --restart to discard it."
            )
        return
    workdir.mkdir(exist_ok=True)
    with ExitStack() as failed:
        failed.callback(discard, workdir)
        beside.write_text(json.dumps({"fingerprint": fingerprint, "processes": processes}))
        sync(beside)
        beside.replace(file)
        failed.pop_all()


def discard(workdir: Path) -> None:
    """Remove the folder of resumable state, after moving it aside, so that a kill leaves all of it or nothing."""
    aside = workdir.with_name(f".{workdir.name}.discarded")
    shutil.rmtree(aside, ignore_errors=True)
    if workdir.exists():
        workdir.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def keeping_what_is_learnt(workdir: Path) -> Iterator[None]:
    """Keep what an interrupted run learnt, and remove the folder if there is nothing to resume.

    After an error, keep the folder only if it contains a checkpoint or contained something before.
    """
    resumed = _has_learnt(workdir)
    try:
        yield
    except Exception:  # any error that ended training: it may recur when the same command is run again
        if not (resumed or has_checkpoint(workdir)):
            discard(workdir)
        raise
    except BaseException:  # Ctrl-C, or a termination signal
        if not _has_learnt(workdir):
            discard(workdir)
        raise


def has_checkpoint(workdir: Path) -> bool:
    """Return whether the folder contains weights to continue from, or the model of a first try."""
    return any(workdir.glob("*.safetensors")) or (workdir / FIRST_FACTS).exists()


def keep_first(workdir: Path, model: Path, facts: Mapping[str, object]) -> None:
    """Keep the model of a first try, with JSON facts, for resuming."""
    sync_all(model)
    shutil.rmtree(workdir / FIRST, ignore_errors=True)
    model.rename(workdir / FIRST)
    beside = workdir / f"{FIRST_FACTS}.part"
    beside.write_text(json.dumps(facts))
    sync(beside)
    beside.replace(workdir / FIRST_FACTS)
    sync(workdir)


def first_facts(workdir: Path) -> dict[str, Any] | None:
    """Return the facts of a first try whose model is kept; None if there is none."""
    file = workdir / FIRST_FACTS
    return read_object(file, TrainingError) if file.exists() else None


def _has_learnt(workdir: Path) -> bool:
    """Return whether the folder contains a checkpoint, or anything that a witness finished learning."""
    files = (file.relative_to(workdir) for file in workdir.rglob("*") if file.is_file())
    return any(file != Path(RUN) and not any(part.endswith(".part") for part in file.parts) for file in files)

"""Kill -9 at every step of a refit: the model is always complete, old or new, and the next refit works."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import denn

MOMENTS = {  # → whether the new model counts by then
    "reading the datastore": False,
    "training the head": False,
    "reading words": False,
    "learning the words of labels": False,
    "scoring": False,
    "comparing": False,
    "writing the model": False,
    "before the commit": False,
    "after the commit": True,
    "clearing": True,
    "never": True,
}


@pytest.mark.slow
def test_killed_at_every_step(tiny_model, tmp_path):
    new = [denn.Document(f"gambit bishop knight {n}", ("chess",), f"later-{n}") for n in range(20)]
    taught = Path(shutil.copytree(tiny_model, tmp_path / "taught"))
    with denn.load(taught) as model:
        model.add(new)
        old = model.predict(["gambit bishop", "violin chord"])
    command = [sys.executable, Path(__file__).with_name("refit_worker.py"), tiny_model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:

        def refit(moment: str, folder: Path) -> int:
            print(f"{moment}\t{folder}", file=worker.stdin, flush=True)
            return int(worker.stdout.readline())

        for moment, counts in MOMENTS.items():
            folder = Path(shutil.copytree(taught, tmp_path / moment))
            assert refit(moment, folder) == (0 if moment == "never" else -signal.SIGKILL), moment
            with denn.load(folder) as model:  # checks every digest
                assert ("chess" in model.labels) == counts, moment
                assert (model.predict(["gambit bishop", "violin chord"]) == old) != counts, moment
            assert refit("never", folder) == 0, moment
            with denn.load(folder) as model:
                assert "chess" in model.labels
            names = {path.name for path in folder.iterdir()}
            assert names == {"bundle.json", "labels.txt", "encoder", "store", "validation", model.card.learnt}, moment
            shutil.rmtree(folder)
        worker.stdin.close()

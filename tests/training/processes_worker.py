"""The process that test_processes.py talks to: for each line read, it forks several processes that train together.

The fork saves importing torch for every one of them; they see the environment that torchrun would give them.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch._dynamo  # the first optimiser imports it

import denn
import denn.cli.app
import denn.cli.train
from denn.cli import main as command
from denn.encoders.transformer import TransformerEncoder
from denn.methods.contrastive import DennNetwork, DennParameters, DennTraining
from denn.training import processes
from denn.training.gradients import Gradients
from denn.training.share import WHOLE


def threads() -> set[str]:
    """Return the names of this process's threads."""
    return {path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")}


def compare(train: str, encoder: str, out: str) -> None:
    """Compute loss and gradients of batches in all processes and in the first one alone, and write both."""
    before = threads()
    with processes.joined() as team:
        if team.rank:
            team.follow()
            return
        found = {}
        for name, settings in {
            "debiased": {"alpha": 1.0},
            "wscl, consistent": {"alpha": 0.5, "loss": "wscl", "consistency": 0.5},
            "no contrast": {"alpha": 0.0},
        }.items():
            training = made(train, encoder, DennParameters(device="cpu", dropout=0.0, **settings))
            alone = Gradients(training.network.parameters(), training.prepare, training.compute)
            training.network.train()
            together = team.share(training)
            for size in (32, 31, 1):
                rows = torch.randperm(60, generator=torch.Generator().manual_seed(size))[:size]
                training.share = WHOLE
                pairs = []
                for gradients in (alone, together):
                    loss = gradients(rows)
                    pairs.append([[float(loss)], *(p.grad.flatten().tolist() for p in alone.parameters)])
                found[f"{name}, {size}"] = pairs
    # `together` still exists; threads that outlived the group could abort the process when Python exits.
    Path(out).write_text(json.dumps({"compared": found, "threads_left": sorted(threads() - before)}))


def made(train: str, encoder: str, parameters: DennParameters) -> DennTraining:
    """Prepare training without dropout, so that the processes need not draw the same masks."""
    torch.manual_seed(0)
    corpus = denn.read_corpus(train)
    corpus = replace(corpus, train=[*corpus.train, *corpus.valid])
    loaded = TransformerEncoder.load(encoder, precision="float32")
    loaded.model.config.hidden_dropout_prob = loaded.model.config.attention_probs_dropout_prob = 0.0
    return DennTraining(DennNetwork(loaded, len(corpus.labels), parameters), corpus, parameters)


def child(rank: int, size: int, port: int, logs: str, arguments: list[str]) -> None:
    """Be one of the processes; `compare` is not a command of denn."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "tests", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
    }  # fmt: skip
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{logs}/{rank}.{name}", os.O_WRONLY), number)
    code = 0
    try:
        compare(*arguments[1:]) if arguments[0] == "compare" else command(arguments)
    except SystemExit as end:
        code = end.code or 0
    except BaseException as error:
        code = 1
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def say(numbers: list[int]) -> None:
    """Write a line to the test."""
    os.write(sys.stdout.fileno(), f"{json.dumps(numbers)}\n".encode())


def main() -> None:
    torch.set_num_threads(1)
    denn.load(sys.argv[1]).close()  # imports all that the children need
    for line in sys.stdin:
        port, logs, each = json.loads(line)
        pids = []
        for rank, arguments in enumerate(each):
            if not (pid := os.fork()):
                child(rank, len(each), port, logs, arguments)
            pids.append(pid)
        say(pids)
        say([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])


if __name__ == "__main__":
    main()

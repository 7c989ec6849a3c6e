"""Training in several processes that torchrun started: one of them trains, and all share the work of each step.

The first process runs the whole command: it alone reads and writes files, validates, decides and reports. The others
keep nothing between steps. For each step they receive the weights, compute the gradients of their share of the batch,
and send them back, so whatever the first process does in between (resume, roll back, stop early) needs no agreement.
"""

from __future__ import annotations

import atexit
import io
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist

# Functions of this module have the default group as a default argument. Imported while a group exists, which
# torch._dynamo does, they would keep its threads alive; see `Team.channel`.
import torch.distributed.nn.functional
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # torch's __all__ leaves it out
from torch.distributed.rendezvous import rendezvous

from denn.errors import ConfigError, LostProcessError
from denn.training.batches import seed_of
from denn.training.gradients import Gradients
from denn.training.share import Group, Share, connected, finish, summed
from denn.training.steps import Steps

PATIENCE = timedelta(days=365)  # the others wait while the first one validates, embeds and writes


class Team:
    """The processes of a training run, seen from one of them."""

    def __init__(self) -> None:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        with connected():
            store, self.rank, self.size = next(rendezvous("env://"))
            # torchrun may keep its store when it restarts processes, with the addresses of those that are gone.
            store = PrefixStore(f"denn {attempt}", store)
            dist.init_process_group("gloo", timeout=PATIENCE, store=store, rank=self.rank, world_size=self.size)
        self.is_stepping = False  # whether the others wait for something else than an order

    def order(self, order: object = None) -> Any:
        """Give an order to all other processes, or receive the one of the first process, however long it takes."""
        content = torch.frombuffer(bytearray(pickle.dumps(order)), dtype=torch.uint8)
        size = torch.tensor(len(content))
        self._send(size)
        if self.rank:
            content = torch.empty(int(size), dtype=torch.uint8)
        self._send(content)
        return pickle.loads(content.numpy().tobytes()) if self.rank else order

    def _send(self, values: Tensor) -> None:
        """Send values to all other processes, or receive those of the first process."""
        with connected():
            if self.rank:
                dist.broadcast(values, src=0)
            else:
                finish(dist.broadcast(values, src=0, async_op=True))

    def channel(self, device: torch.device) -> Group:
        """Return the group for tensors on these devices: NCCL if each process has its own GPU, otherwise None (gloo).

        None stands for the default group. A reference to the group itself would keep its threads alive after `joined`,
        and a thread that releases a tensor while Python exits aborts the process.
        """
        digests = torch.zeros(self.size, 32, dtype=torch.int64)  # of the names of all GPUs; zeros for a CPU
        if device.type == "cuda":
            name = str(torch.cuda.get_device_properties(device).uuid)
            digests[self.rank] = torch.tensor(list(sha256(name.encode()).digest()))
        summed(digests)
        different = {tuple(digest) for digest in digests.tolist() if any(digest)}
        if len(different) < self.size:
            return None
        with connected():
            return dist.new_group(backend="nccl")

    def share(self, steps: Steps) -> Callable[[Tensor], Tensor]:
        """Return a function that computes loss and gradients of rows as `Gradients` does, in all processes."""
        run: _Shared | None = None

        def gradients(rows: Tensor) -> Tensor:
            nonlocal run
            self.is_stepping = True
            if run is None:  # only now, because the loop may have loaded a checkpoint
                buffer = io.BytesIO()
                torch.save(Steps(steps.network, steps.on_device, steps.labels, steps.multiple), buffer)
                self.order((steps.network.device.type, buffer.getvalue()))
                run = _Shared(self, steps)
            self.order((rows, torch.initial_seed()))
            loss = run.step(rows)
            self.is_stepping = False
            return loss

        return gradients

    def follow(self) -> None:
        """Compute shares of steps until the first process is done."""
        run: Any = None
        while (order := self.order()) is not None:
            if run is None or isinstance(order[0], str):
                device = _own_device(order[0])
                steps = torch.load(io.BytesIO(order[1]), map_location=_same_kind(device), weights_only=False)
                run = _Shared(self, steps)
            else:
                rows, seed = order
                torch.manual_seed(seed_of(seed, "process", self.rank))
                run.step(rows)


class _Shared:
    """The steps of one training loop, as one of the processes computes them."""

    def __init__(self, team: Team, steps: Steps) -> None:
        self.team, self.steps = team, steps
        # Steps are not recorded: a recording could not contain the exchange with other processes.
        self.gradients = Gradients(steps.network.parameters(), steps.prepare, steps.compute)
        self.parameters = self.gradients.parameters
        self.group = team.channel(steps.network.device)

    @torch.no_grad()
    def step(self, rows: Tensor) -> Tensor:
        """Compute the mean loss of a batch, and leave its gradients in the parameters."""
        team, parameters = self.team, self.parameters
        weights = _flat(parameters)
        with connected():
            finish(dist.broadcast(weights, src=0, group=self.group, async_op=True))
        if team.rank:
            torch._foreach_copy_(list(parameters), _like(weights, parameters))
        share = self.steps.share = Share.of(len(rows), team.rank, team.size, self.group)
        if share.count:
            with torch.enable_grad():
                loss = self.gradients(share.own(rows))
            found = _flat([loss, *(parameter.grad for parameter in parameters if parameter.grad is not None)])
        else:
            found = weights.new_zeros(1 + len(weights))
        summed(found, self.group)
        for parameter, gradient in zip(parameters, _like(found[1:], parameters), strict=True):
            parameter.grad = gradient
        return found[0].clone()


_team: Team | None = None  # like torch's process group, one for the whole process


@contextmanager
def joined() -> Iterator[Team | None]:
    """Join the other processes of this training run, if torchrun started several; otherwise yield None.

    The first process should do the work, and the others should `follow`.
    """
    global _team
    if not dist.is_available() or not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) < 2:
        yield None
        return
    team = _team = Team()
    if team.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the others when it is done
    else:
        _interrupt_once()
    try:
        yield team
    except (LostProcessError, KeyboardInterrupt) as error:
        if team.is_stepping:  # an operation may never end, and torch would wait for it when Python exits
            _exit_without_waiting(2 if isinstance(error, LostProcessError) else 130)
        raise
    finally:
        if not team.rank and not team.is_stepping:
            with suppress(LostProcessError):  # no other process is left
                team.order(None)
        _team = None
        if not team.is_stepping:
            dist.destroy_process_group()


def _exit_without_waiting(code: int) -> None:
    """Let this process exit with a code after all messages were written, whatever its threads wait for."""

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    atexit.register(leave)


def _interrupt_once() -> None:
    """Treat a termination like Ctrl-C, and ignore further ones while a checkpoint is written.

    torchrun terminates all processes when one of them ends, and sends a second signal after Ctrl-C.
    """

    def interrupt(*_: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # which may be delayed


def team() -> Team | None:
    """Return the processes that this one has joined."""
    return _team


def count() -> int:
    """Return the number of processes that train together."""
    return _team.size if _team else 1


def check(parameters: Any) -> None:
    """Reject parameters with which these processes cannot share the work."""
    size, batch, device = count(), getattr(parameters, "batch_size", 0), getattr(parameters, "device", "auto")
    if batch % size:
        raise ConfigError(
            f"Got {size} processes and batch_size = {batch}, which is the size of the whole batch and must be "
            f"divisible by {size}. Use --set batch_size={batch + size - batch % size} or another number of processes."
        )
    if size > 1 and device.startswith("cuda:"):
        raise ConfigError(
            f"Got {size} processes and device = {device!r}, but each process chooses its own GPU. Use "
            "--set device=cuda."
        )


def _own_device(kind: str) -> torch.device:
    """Return the device of this process: the GPUs of a host are assigned in turn."""
    if kind != "cuda":
        return torch.device(kind)
    if not torch.cuda.is_available():
        raise ConfigError("The first process trains on a GPU, but this one has none. Use --set device=cpu.")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _same_kind(device: torch.device) -> Callable[[Any, str], Any]:
    """Return torch.load's rule to put on this device what was on a GPU, and to leave the rest in the CPU's memory."""
    return lambda storage, place: storage.to(device=device) if place.startswith(device.type) else storage


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate the values of tensors."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _like(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Split values into tensors of these shapes."""
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

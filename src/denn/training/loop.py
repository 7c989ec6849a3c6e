"""The training loop: loss → step → validate → keep the best → stop; resumes exactly after a kill."""

from __future__ import annotations

import hashlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from denn.errors import TrainingError
from denn.training import checkpoint
from denn.types import Progress

CHECK_EVERY = 10  # steps between looks at the loss: each look waits for the device


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to train: flat, and the same for every method."""

    batch_size: PositiveInt = 32
    epochs: NonNegativeInt = 10
    optimiser: Literal["adam", "adamw"] = "adam"
    weight_decay: NonNegativeFloat = 0.0
    schedule: Literal["constant", "linear"] = "linear"
    warmup: Annotated[float, Field(ge=0, lt=1)] = 0.05  # share of the run, for the linear schedule
    clip: NonNegativeFloat = 0.0  # largest gradient norm; 0: no clipping
    evaluate_every: NonNegativeInt = 0  # steps between validations; 0: once an epoch
    patience: NonNegativeInt = 10  # validations without improvement before stopping; 0: never stop early
    time_budget: NonNegativeFloat | None = None  # seconds for the whole training, earlier tries included
    checkpoint_seconds: NonNegativeFloat = 60.0
    seed: int = 0


@dataclass
class State:
    """Where a run stands; with the weights and the optimiser this is all that a resume needs."""

    step: int = 0
    seconds: float = 0.0
    validation_seconds: float = 0.0
    tokens: int = 0  # that went through the encoder in training
    best_score: float = -math.inf
    best_step: int = 0
    failures: int = 0
    owed: bool = False  # whether the next thing to do is a validation
    loss: float = math.nan  # mean of the steps before the last look
    history: list[dict[str, float]] = field(default_factory=list)


Gradients = Callable[[Tensor], Tensor]  # rows of the training part → mean loss, its gradients left in the parameters
Validate = Callable[[], Mapping[str, float]]  # → scores; "score" is the one to maximise


def fit(
    module: nn.Module,
    groups: Iterable[dict[str, Any]],
    gradients: Gradients,
    validate: Validate,
    tokens: Tensor,
    plan: Plan,
    workdir: Path,
    progress: Progress,
    weights: Tensor | None = None,
) -> State:
    """Train `module` on rows of (n,) tokens each and leave it with the weights of the best validation.

    An epoch takes every row once, or, where there are (n,) weights, draws as many rows by them.

    Every step seeds the generators from (seed, step) and every epoch's order from (seed, epoch), so a run that is
    killed and resumed takes the same steps as one that is not.
    """
    run = _Run(module, groups, tokens, plan, workdir, weights)
    if run.resume():
        progress.note(f"resuming at step {run.state.step} of {run.total}")
    progress.start("training", run.total * run.batch)
    run.begun = run.saved = time.monotonic()
    with torch.random.fork_rng(devices=_cuda_devices(module)):
        try:
            _steps(run, gradients, validate, progress)
        except KeyboardInterrupt:
            if run.state.step:
                run.state.owed |= run.done()
                run.save()
            raise
    run.save_if_due()
    run.state.seconds = run.elapsed()
    if run.state.best_step:
        checkpoint.load_module(module, run.best_weights)
    return run.state


def _steps(run: _Run, gradients: Gradients, validate: Validate, progress: Progress) -> None:
    """Step, look at the loss, validate and save as each is due, until the run is done."""
    done = run.done()
    while run.state.owed or not done:
        if not run.state.owed:
            run.advance(gradients)
            done = run.done()
            run.state.owed |= done
        if run.state.owed:
            run.check()
            progress.note(run.judge(validate))
            done = run.done()
        elif run.state.step % CHECK_EVERY == 0:
            run.check()
            run.save_if_due()
        progress.advance(run.state.step * run.batch, loss=run.state.loss, seconds_left=run.seconds_left())


class _Run:
    """One run of the loop: module, optimiser, state and the files they are kept in."""

    def __init__(
        self,
        module: nn.Module,
        groups: Iterable[dict[str, Any]],
        tokens: Tensor,
        plan: Plan,
        workdir: Path,
        weights: Tensor | None,
    ) -> None:
        self.module, self.plan, self.tokens, self.size, self.weights = module, plan, tokens, len(tokens), weights
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[plan.optimiser]
        self.optimiser = kind(groups, weight_decay=plan.weight_decay, fused=True)
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self.batch = min(plan.batch_size, self.size)
        self.steps_per_epoch = self.size // self.batch  # without the rest of an epoch: a batch of one has no negatives
        self.total = self.steps_per_epoch * plan.epochs
        self.every = plan.evaluate_every or self.steps_per_epoch
        self.budget = math.inf if plan.time_budget is None else plan.time_budget
        self.state = State()
        self.workdir, self.last = workdir, workdir / "last.safetensors"
        self.best_weights: dict[str, Tensor] = {}
        self.best_written = 0  # step of the weights in the file
        self.begun = self.saved = time.monotonic()
        self.began_at = 0.0  # seconds spent before this process
        self.began_step = 0
        self.epoch_order: tuple[int, Tensor] | None = None
        self.losses: list[Tensor] = []  # since the last look

    def resume(self) -> bool:
        """Take up the last checkpoint, if there is one."""
        if not self.last.exists():
            return False
        tensors, facts = checkpoint.read(self.last)
        checkpoint.load_module(self.module, tensors)
        checkpoint.load_optimiser(self.optimiser, tensors)
        self.state = State(**facts)
        if self.state.best_step:
            self.best_weights = checkpoint.read(self.best_file())[0]
            self.best_written = self.state.best_step
        self.began_at, self.began_step = self.state.seconds, self.state.step
        return True

    def done(self) -> bool:
        """Say whether the steps, the time or the patience are used up."""
        tired = 0 < self.plan.patience <= self.state.failures
        return tired or self.state.step >= self.total or self.elapsed() >= self.budget

    def elapsed(self) -> float:
        """Seconds spent in the loop, earlier processes included."""
        return self.began_at + time.monotonic() - self.begun

    def seconds_left(self) -> float:
        """Estimate the time to the last step or to the end of the budget, whichever comes first."""
        taken = self.state.step - self.began_step
        pace = (time.monotonic() - self.begun) / max(taken, 1)
        return max(0.0, min(pace * (self.total - self.state.step), self.budget - self.elapsed()))

    def advance(self, gradients: Gradients) -> None:
        """Take one optimiser step on the next batch."""
        self.module.train()
        self.sow(_seed_of(self.plan.seed, "step", self.state.step))
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.rate_factor()
        rows = self.next_rows()
        value = gradients(rows)
        if self.plan.clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.plan.clip)
        with _uninterrupted():
            self.optimiser.step()
            self.losses.append(value)
            self.state.tokens += int(self.tokens[rows].sum())
            self.state.step += 1
            self.state.owed = self.state.step % self.every == 0

    def sow(self, seed: int) -> None:
        """Seed the generators of the CPU and of the module's device; torch.manual_seed notes a traceback each time."""
        torch.default_generator.manual_seed(seed)
        if _cuda_devices(self.module):
            torch.cuda.manual_seed(seed)

    def next_rows(self) -> Tensor:
        """Return the rows of the next batch; the order of an epoch depends on the seed and the epoch alone."""
        epoch, place = divmod(self.state.step, self.steps_per_epoch)
        if self.epoch_order is None or self.epoch_order[0] != epoch:
            generator = torch.Generator().manual_seed(_seed_of(self.plan.seed, "epoch", epoch))
            if self.weights is None:
                order = torch.randperm(self.size, generator=generator)
            else:
                order = torch.multinomial(self.weights, self.size, replacement=True, generator=generator)
            self.epoch_order = epoch, order
        return self.epoch_order[1][place * self.batch : (place + 1) * self.batch]

    def rate_factor(self) -> float:
        """Return the share of the learning rate for this step: warm-up and decay run by steps or by the time budget."""
        if self.plan.schedule == "constant":
            return 1.0
        spent = self.elapsed() / self.budget if self.budget > 0 else 1.0
        share = max((self.state.step + 1) / (self.total + 1), min(spent, 1.0))
        return min(share / self.plan.warmup if self.plan.warmup else 1.0, (1 - share) / (1 - self.plan.warmup))

    def check(self) -> None:
        """Look at the losses since the last look; one that is not a number ends the run."""
        if not self.losses:  # taken up with a validation owed
            return
        self.state.loss = float(torch.stack(self.losses).mean())
        self.losses = []
        if not math.isfinite(self.state.loss):
            kept = "none kept"
            if self.state.best_step:
                kept = f"the best weights, of step {self.state.best_step}, are kept"
                self.state.owed = False
                self.save()
            raise TrainingError(
                f"The loss became {self.state.loss} by step {self.state.step}; {kept} in {self.workdir}. Lower the "
                "learning rate and train with --restart, or keep those weights by training on with --time-budget 0s."
            )

    def judge(self, validate: Validate) -> str:
        """Validate, keep the weights if they are the best so far, and say so in one line."""
        state, begun = self.state, time.monotonic()
        scores = validate()
        better = scores["score"] >= state.best_score
        with _uninterrupted():
            state.validation_seconds += time.monotonic() - begun
            state.history.append({"step": state.step, "seconds": round(self.elapsed(), 3), **scores})
            if better:
                state.best_score, state.best_step, state.failures = scores["score"], state.step, 0
                weights = checkpoint.module_tensors(self.module)
                self.best_weights = {name: tensor.detach().clone() for name, tensor in weights.items()}
            else:
                state.failures += 1
            state.owed = False
        self.save_if_due()
        shown = ", ".join(f"{name} {100 * value:.1f}" for name, value in scores.items() if name != "score")
        return f"step {state.step}: loss {state.loss:.4f}, {shown}{' (best)' if better else ''}"

    def best_file(self) -> Path:
        """Return where the best weights are kept; the step in its name ties it to the state that speaks of it."""
        return self.workdir / f"best-{self.state.best_step}.safetensors"

    def save_if_due(self) -> None:
        """Save the state when the last save is long enough ago."""
        if time.monotonic() - self.saved >= self.plan.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Write weights, optimiser and state; the best weights first, which the state speaks of."""
        self.state.seconds = self.elapsed()
        if self.best_written != self.state.best_step:
            checkpoint.write(self.best_file(), self.best_weights, {"step": self.state.best_step})
            self.best_written = self.state.best_step
        tensors = checkpoint.module_tensors(self.module) | checkpoint.optimiser_tensors(self.optimiser)
        checkpoint.write(self.last, tensors, asdict(self.state))
        for older in set(self.workdir.glob("best-*.safetensors")) - {self.best_file()}:
            older.unlink()
        self.saved = time.monotonic()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block, so that weights and state always belong together."""
    main = threading.current_thread() is threading.main_thread()  # others are not interrupted
    if not main or signal.getsignal(signal.SIGINT) is None:
        yield
        return
    came: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            signal.raise_signal(signal.SIGINT)


def _seed_of(seed: int, what: str, number: int) -> int:
    """Hash a seed and a place in the run to the 32 bits that the CPU's generator takes of a seed."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {what} {number}".encode(), digest_size=4).digest())


def _cuda_devices(module: nn.Module) -> list[torch.device]:
    """List the accelerator whose generator the loop seeds, to be restored afterwards."""
    device = next(module.parameters()).device
    return [device] if device.type == "cuda" else []

"""The training loop: step, validate, keep the best weights, stop early; resumes exactly after a kill."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from denn.clock import Clock
from denn.errors import FineTuningError, LostProcessError, TrainingError
from denn.protocols import Progress
from denn.training import checkpoint
from denn.training.batches import Batches, seed_of
from denn.training.guard import RATE_SHARE, RECOVERIES, loss_stays_high, sign_of_collapse
from denn.training.interruption import uninterrupted
from denn.training.pace import Pace
from denn.training.plan import Plan, State
from denn.types import Stage

CHECKPOINT = "last.safetensors"
CHECK_EVERY = 10  # steps between checks of the loss, because each check waits for the device
RAMP = 50  # steps of warm-up after a collapse, because the optimiser has lost its moments
UNSHOWN = {"score", "spread", "noise"}  # results of a validation that only the loop uses

Gradients = Callable[[Tensor], Tensor]  # rows of the training split → mean loss, with gradients left in the parameters
Validate = Callable[[], Mapping[str, float]]
"""→ scores: `score` is maximised, and absent if there are no validation documents; `noise` is its standard error;
`spread` is how much the texts' scores differ."""


def fit(
    module: nn.Module,
    groups: Iterable[dict[str, Any]],
    gradients: Gradients,
    validate: Validate,
    tokens: Tensor,
    plan: Plan,
    workdir: Path,
    progress: Progress,
    *,
    weights: Tensor | None = None,
    keep_last: bool = False,
    clock: Clock | None = None,
    reserve: Callable[[], float] = lambda: 0.0,
) -> State:
    """Train `module` on rows of (n,) tokens each, and leave it with the weights of the best validation.

    An epoch uses every row once, or draws the same number of rows by (n,) weights if given. `keep_last` prefers later
    weights to better ones as long as the difference is noise. The loop ends in time for a last validation and the work
    after it, which takes `reserve()` seconds by the latest estimate.

    If training collapses, it rolls back to the kept weights and continues with half the learning rate; see `guard`.
    Every step seeds the generators from (seed, step), and every epoch's order from (seed, epoch), so a run that is
    killed and resumed takes the same steps as one that is not.
    """
    run = _Run(module, groups, tokens, plan, workdir, weights, keep_last, clock or Clock(plan.time_budget), reserve)
    if run.resume():
        progress.note(f"resuming at step {run.state.step} of {run.total}")
        run.state.owed |= run.done() and run.state.step > run.judged_step()
    progress.start(Stage("training", len(tokens) * plan.epochs, trains=True))
    run.begun = run.saved = time.monotonic()
    with torch.random.fork_rng(devices=_cuda_devices(module)):
        try:
            _steps(run, gradients, validate, progress)
        except (KeyboardInterrupt, LostProcessError):
            if run.state.step:
                run.state.owed |= run.done()
                with uninterrupted():
                    run.save()
            raise
    collapses = run.state.collapses
    if collapses and not run.state.best_step:
        raise FineTuningError(
            f"Training collapsed before its first sound validation, most recently by step {collapses[-1]['step']}: "
            f"{collapses[-1]['why']}. Lower the learning rate and train with --restart."
        )
    run.save_if_due()
    run.state.seconds = run.elapsed()
    run.state.out_of_time = run.time_is_up and run.state.step < run.total
    checkpoint.load_module(module, run.kept_weights)
    return run.state


def _steps(run: _Run, gradients: Gradients, validate: Validate, progress: Progress) -> None:
    """Step, check the loss, validate and save as each is due, until the run is done."""
    done = run.done()
    while run.state.owed or not done:
        if not run.state.owed:
            run.advance(gradients)
            done = run.done()
            run.state.owed |= done
        validations = len(run.state.history)
        if run.state.owed or run.state.step % CHECK_EVERY == 0:
            line = run.check() or (run.judge(validate) if run.state.owed else None)
            if line:
                progress.note(line)
                done = run.done()
            else:
                run.save_if_due()
        extra = {"validation": run.last_validation()} if len(run.state.history) > validations else {}
        done_rows, left = run.batches.rows_before(run.state.step), run.seconds_left()
        progress.advance(done_rows, loss=run.state.loss, seconds_left=left, **extra)


class _Run:
    """One run of the loop: module, optimiser, state and their files."""

    def __init__(
        self,
        module: nn.Module,
        groups: Iterable[dict[str, Any]],
        tokens: Tensor,
        plan: Plan,
        workdir: Path,
        weights: Tensor | None,
        keep_last: bool,
        clock: Clock,
        reserve: Callable[[], float],
    ) -> None:
        self.module, self.plan, self.tokens = module, plan, tokens
        kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[plan.optimiser]
        self.optimiser = kind(groups, weight_decay=plan.weight_decay, eps=plan.epsilon, fused=True)
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self.batches = Batches(len(tokens), plan.batch_size, plan.seed, weights)
        self.total = self.batches.per_epoch * plan.epochs
        self.every = plan.evaluate_every or self.batches.per_epoch
        self.keep_last, self.clock, self.reserve = keep_last, clock, reserve
        self.state = State()
        self.workdir, self.last = workdir, workdir / CHECKPOINT
        self.kept_weights = self.copy_weights()
        self.kept_written = -1  # step of the weights in the file
        self.begun = self.saved = time.monotonic()
        self.began_at = 0.0  # seconds spent before this process
        self.began_step = 0
        self.losses: list[Tensor] = []  # since the last check
        self.pace = Pace()
        self.time_is_up = False

    def resume(self) -> bool:
        """Resume from the last checkpoint, if there is one."""
        if not self.last.exists():
            return False
        tensors, facts = checkpoint.read(self.last)
        checkpoint.load_module(self.module, tensors)
        checkpoint.load_optimiser(self.optimiser, tensors)
        try:
            self.state = State(**facts)
        except TypeError as error:
            raise TrainingError(f"{self.last} is from another version of denn. Train again with --restart.") from error
        self.kept_weights = checkpoint.read(self.kept_file())[0]
        self.kept_written = self.state.best_step
        self.began_at, self.began_step = self.state.seconds, self.state.step
        self.clock.earlier = self.state.clock_seconds
        return True

    def done(self) -> bool:
        """Return whether steps, time, patience or recoveries are used up."""
        tired = 0 < self.plan.patience <= self.state.failures
        broken = len(self.state.collapses) > RECOVERIES
        left = self.time_left()
        self.time_is_up |= left <= 0 or left < self.step_seconds()
        return tired or broken or self.time_is_up or self.state.step >= self.total

    def judged_step(self) -> int:
        """Return the last step at which the weights were validated or discarded."""
        return max((entry["step"] for entry in (*self.state.history, *self.state.collapses)), default=0)

    def elapsed(self) -> float:
        """Return the seconds spent in the loop, including earlier processes."""
        return self.began_at + time.monotonic() - self.begun

    def time_left(self) -> float:
        """Return the seconds of the time budget left for steps; the work after them slows down as they do."""
        if self.clock.budget == math.inf:
            return math.inf
        return self.clock.left() - self.reserve() * self.pace.slower()

    def step_seconds(self) -> float:
        """Estimate how long a step takes."""
        taken = self.state.step - self.began_step
        return (time.monotonic() - self.begun) / taken if taken else 0.0

    def seconds_left(self) -> float:
        """Estimate the time to the last step or to the end of the budget, whichever comes first."""
        return max(0.0, min(self.step_seconds() * (self.total - self.state.step), self.time_left()))

    def advance(self, gradients: Gradients) -> None:
        """Take one optimiser step on the next batch."""
        begun = time.monotonic()
        self.module.train()
        self.seed_generators(seed_of(self.plan.seed, "step", self.state.step))
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * self.rate_factor()
        rows = self.batches.rows(self.state.step)
        tokens = int(self.tokens[rows].sum())
        value = gradients(rows)
        if self.plan.clip:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.plan.clip)
        with uninterrupted():
            self.optimiser.step()
            self.losses.append(value)
            self.state.tokens += tokens
            self.state.step += 1
            self.state.owed = self.state.step % self.every == 0
        self.pace.note(time.monotonic() - begun, tokens)

    def seed_generators(self, seed: int) -> None:
        """Seed the generators of the CPU and the module's device; torch.manual_seed would record a traceback."""
        torch.default_generator.manual_seed(seed)
        if _cuda_devices(self.module):
            torch.cuda.manual_seed(seed)

    def rate_factor(self) -> float:
        """Return the factor on the learning rate for this step: warm-up and decay follow steps or the time budget."""
        share = RATE_SHARE ** len(self.state.collapses)
        if self.state.collapses:
            share *= min(1.0, (self.state.step - self.state.collapses[-1]["step"] + 1) / RAMP)
        warmup = self.plan.warmup or 0.0
        if self.plan.schedule == "constant" and not warmup:
            return share
        elapsed, left = self.elapsed(), self.time_left()
        spent = elapsed / (elapsed + left) if left > 0 else 1.0
        done = max((self.state.step + 1) / (self.total + 1), spent)
        rise = done / warmup if warmup else 1.0
        return share * min(rise, _decay(self.plan.schedule, (1 - done) / (1 - warmup)))

    def check(self) -> str | None:
        """Check the losses since the last check: validate after a jump, and recover if one is not finite."""
        if not self.losses:  # resumed with a pending validation
            return None
        loss = float(torch.stack(self.losses).mean())
        self.losses = []
        if not math.isfinite(loss):
            return self.recover("the loss is not a finite number")
        self.state.loss = loss
        self.state.owed |= loss_stays_high(self.state, loss)
        return None

    def judge(self, validate: Validate) -> str:
        """Validate, keep the weights if they are the best so far, and return one line about it."""
        state, begun = self.state, time.monotonic()
        scores = validate()
        self.pace.forget()  # the validation has just measured the machine's speed
        state.validation_seconds += time.monotonic() - begun
        if why := sign_of_collapse(state, scores, self.has_finite_weights()):
            return self.recover(why)
        score, best = scores.get("score"), state.best_score
        better = score is None or best is None or score > best
        noise = scores.get("noise", 0.0) if self.keep_last else 0.0
        with uninterrupted():
            state.history.append({"step": state.step, "seconds": round(self.elapsed(), 3), **scores})
            kept = better or (score is not None and best is not None and score >= best - noise)
            if kept:
                state.best_step, state.best_spread = state.step, scores.get("spread", 0.0)
                self.kept_weights = self.copy_weights()
            if better:
                state.best_score = score
            state.failures = 0 if better or not best else state.failures + 1  # patience starts once something is learnt
            state.owed = False
        self.save_if_due()
        shown = [f"{name} {100 * value:.1f}" for name, value in scores.items() if name not in UNSHOWN]
        values = ", ".join([f"loss {math.nan if state.loss is None else state.loss:.4f}", *shown])
        mark = "" if score is None or not kept else " (best)" if better else " (kept)"
        return f"step {state.step}: {values}{mark}"

    def last_validation(self) -> dict[str, Any]:
        """Return the last validation for callbacks; see `denn.callbacks.Validation`."""
        entry = dict(self.state.history[-1])
        step, seconds = int(entry.pop("step")), entry.pop("seconds")
        metrics = {name: value for name, value in entry.items() if name not in UNSHOWN}
        epoch = step / self.batches.per_epoch
        return {"step": step, "epoch": epoch, "seconds": seconds, "loss": self.state.loss, "metrics": metrics}

    def recover(self, why: str) -> str:
        """Roll back to the kept weights and continue with half the rate, or end after too many recoveries."""
        state = self.state
        with uninterrupted():
            state.collapses.append({"step": state.step, "why": why, "back_to": state.best_step})
            checkpoint.load_module(self.module, self.kept_weights)
            self.optimiser.state.clear()
            self.losses = []
            state.failures = state.high_looks = state.low_scores = 0
            state.usual_loss, state.owed = None, False
        message = f"step {state.step}: training collapsed: {why}; rolling back to the weights of step {state.best_step}"
        if not self.done():
            return f"{message} and continuing with half the learning rate"
        return f"{message} and ending training"

    def copy_weights(self) -> dict[str, Tensor]:
        """Copy the weights of the module."""
        return {name: tensor.detach().clone() for name, tensor in checkpoint.module_tensors(self.module).items()}

    def has_finite_weights(self) -> bool:
        """Return whether every weight is finite."""
        norms = torch._foreach_norm([parameter.detach() for parameter in self.module.parameters()])
        return bool(torch.stack([norm.float().cpu() for norm in norms]).isfinite().all())

    def kept_file(self) -> Path:
        """Return the file of the kept weights; the step in its name ties it to the state that refers to it."""
        return self.workdir / f"best-{self.state.best_step}.safetensors"

    def save_if_due(self) -> None:
        """Save the state if the last save is long enough ago."""
        if time.monotonic() - self.saved >= self.plan.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Write weights, optimiser and state; first the kept weights, which the state refers to."""
        self.state.seconds, self.state.clock_seconds = self.elapsed(), self.clock.elapsed()
        if self.kept_written != self.state.best_step:
            checkpoint.write(self.kept_file(), self.kept_weights, {"step": self.state.best_step})
            self.kept_written = self.state.best_step
        tensors = checkpoint.module_tensors(self.module) | checkpoint.optimiser_tensors(self.optimiser)
        checkpoint.write(self.last, tensors, asdict(self.state))
        for older in set(self.workdir.glob("best-*.safetensors")) - {self.kept_file()}:
            older.unlink()
        self.saved = time.monotonic()


def _decay(schedule: str, left: float) -> float:
    """Return the factor on the learning rate when this share of the run after the warm-up is left."""
    if schedule == "constant":
        return 1.0
    return left if schedule == "linear" else (1 - math.cos(math.pi * min(left, 1.0))) / 2


def _cuda_devices(module: nn.Module) -> list[torch.device]:
    """List the CUDA device whose generator the loop seeds, to be restored afterwards."""
    device = next(module.parameters()).device
    return [device] if device.type == "cuda" else []

r"""Why long training runs collapse: train DENN in one variant and record the signs of a collapse.

    python -m denn_bench.studies.collapse run DATA/aapd_recon --variant as-is --seed 1 --out RUNS \
        --set learning_rate=5e-5
    python -m denn_bench.studies.collapse run DATA/aapd_recon --variant clip --from RUNS/NAME_at2750.safetensors \
        --out RUNS
    python -m denn_bench.studies.collapse run DATA/eurlex57k --corpus eurlex57k --set epochs=6 --out RUNS

A run is a file of JSON lines, each flushed immediately; non-finite values are null. A run has collapsed if its
validation micro-F1, after exceeding 0.2, is below half of its best at two consecutive validations, if the mean cosine
similarity of different validation texts is above 0.9 (in the first `--settle` steps only after micro-F1 exceeded 0.2),
or if a loss, gradient or weight is not finite. It then trains `--after` more steps and ends. With `--snapshots` it
saves weights and optimiser from before its collapse; `--from` continues there, in any variant, and `--fork` with other
batches and dropout. `collapse_page.py` shows the records.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from denn.clock import Clock
from denn.config import make_recipe, parse_settings, read_recipe
from denn.data import aapd, eurlex57k
from denn.encoders import packed
from denn.encoders.tokens import Tokens
from denn.methods.contrastive import DennNetwork, DennTraining
from denn.methods.denn import DENN
from denn.progress import Silent
from denn.training import checkpoint
from denn.training.gradients import Gradients
from denn.training.loop import _Run
from denn.training.neural import device_of
from denn.training.plan import Plan
from denn.training.session import SAMPLED, micro_f1
from denn.types import Corpus
from denn_bench.studies import collapse_probes as probes

RECIPES = Path(__file__).parents[3] / "recipes"
CORPORA = {
    "aapd": (aapd.load, "aapd/denn.toml", {"learning_rate": 8e-5}),
    "eurlex57k": (eurlex57k.load, "eurlex57k/denn-tuned.toml", {}),
}
LOOK, DEEP, SNAPSHOT = 50, 200, 50  # steps between probes, between validations and between snapshots
SPREAD_TEXTS, SCORED_TEXTS, PROBED_TEXTS = 256, 1000, 16
MEMORY, SETTLE = 0.98, 20  # smoothing of the usual gradient norm per step; steps before it is known
LEARNT, LOW_SHARE, HIGH_COSINE = 0.2, 0.5, 0.9  # the rule: micro-F1 to fall from, share of the best, mean cosine


@dataclass(frozen=True)
class Variant:
    """One small change to training."""

    settings: dict[str, Any] = field(default_factory=dict)  # parameters of the method
    adam: dict[str, Any] = field(default_factory=dict)
    warmup: float = 0.0  # share of the run, in addition to the schedule's own warm-up
    folded: bool = False  # fold the scale of the pooled vector into the last LayerNorm
    kernels: bool = True
    recorded: bool = True
    residual32: bool = False  # products in bfloat16, everything between them in float32, by torch's operations
    tf32: bool = False
    dropouts: dict[str, float] = field(default_factory=dict)  # of the encoder's settings
    usual: float = 0.0  # clip gradients at this many times the usual norm of their tensor


VARIANTS = {
    "as-is": Variant(),
    "folded": Variant(folded=True),
    "clip": Variant({"clip": 1.0}),
    "warmup": Variant(warmup=0.05),
    "linear": Variant({"schedule": "linear"}),
    "eps": Variant(adam={"eps": 1e-6}),
    "beta2": Variant(adam={"betas": (0.9, 0.98)}),
    "decay": Variant({"optimiser": "adamw", "weight_decay": 0.01}),
    "no-contrast": Variant({"alpha": 0.0}),
    "usual": Variant(usual=2.0),
    "usual-tight": Variant(usual=1.05),
    "usual-warmup": Variant(usual=2.0, warmup=0.05),
    "layers": Variant({"layer_decay": 0.85}),
    "no-hidden-dropout": Variant(dropouts={"hidden_dropout_prob": 0.0}),
    "no-attention-dropout": Variant(dropouts={"attention_probs_dropout_prob": 0.0}),
    "unrecorded": Variant(recorded=False),
    "torch-ops": Variant(kernels=False),
    "residual32": Variant({"precision": "float32"}, residual32=True),
    "float32": Variant({"precision": "float32"}),
    "tf32": Variant({"precision": "float32"}, tf32=True),
}


class Run(_Run):
    """The product's loop, with a warm-up before any schedule."""

    warmup = 0.0
    clipping: UsualNorms | None = None

    def advance(self, gradients: Any) -> None:
        """Clip by the usual norm, if the variant requires it, between gradients and step."""

        def clipped(rows: Tensor) -> Tensor:
            loss = gradients(rows)
            if self.clipping:
                self.clipping.clip()
            return loss

        super().advance(clipped)

    def kept_file(self) -> Path:
        """Return a file for weights that need not be kept."""
        return self.last

    def rate_factor(self) -> float:
        """Return the learning rate factor of this step."""
        ramp = (self.state.step + 1) / (self.warmup * self.total) if self.warmup else 1.0
        return super().rate_factor() * min(1.0, ramp)


class UsualNorms:
    """Scale each tensor's gradient down to `factor` times the running mean of its norm, if it is longer.

    The mean uses clipped norms, so that one outlier does not make the next one look usual.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        self.parameters, self.factor, self.steps = [p for p in parameters if p.requires_grad], factor, 0
        self.mean = torch.zeros(len(self.parameters), device=self.parameters[0].device)

    def clip(self) -> None:
        """Scale the gradients of one step and record their norms."""
        gradients = [parameter.grad for parameter in self.parameters]
        norms = torch.stack(torch._foreach_norm(gradients))
        if self.steps >= SETTLE:
            usual = self.mean / (1 - MEMORY**self.steps)
            shares = (self.factor * usual / norms).nan_to_num(1.0, 1.0, 0.0).clamp_(max=1.0)
            torch._foreach_mul_(gradients, list(shares.unbind()))
            norms = norms * shares
        self.mean.mul_(MEMORY).add_(norms, alpha=1 - MEMORY)
        self.steps += 1


class Record:
    """A file of JSON lines that is always complete up to its last line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_name(f"{path.name}.before"))  # left by a killed run
        self.file, self.begun = path.open("w"), time.monotonic()

    def write(self, kind: str, **values: Any) -> None:
        """Append a line and flush it."""
        line = {"kind": kind, "seconds": time.monotonic() - self.begun, **values}
        self.file.write(json.dumps(_short(line)) + "\n")
        self.file.flush()


def _short(value: Any) -> Any:
    """Round every number to five digits; None for non-finite ones."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    return [_short(part) for part in value] if isinstance(value, list | tuple) else value


@dataclass
class Watch:
    """Decide when a run has collapsed."""

    settle: int = 0  # steps in which texts may be similar because nothing is learnt yet
    best: float = 0.0
    low: list[int] = field(default_factory=list)  # consecutive validations far below the best
    collapsed: dict[str, Any] | None = None

    def look(self, step: int, cosine: float, not_finite: int) -> None:
        """Judge a probe: cosine similarity of different texts, and the number of non-finite values."""
        if not_finite or not math.isfinite(cosine):
            self._say(step, step - LOOK, "not finite")
        elif cosine > HIGH_COSINE and (self.best > LEARNT or step >= self.settle):
            self._say(step, step - LOOK, "cosine")

    def score(self, step: int, value: float) -> None:
        """Judge a validation."""
        self.best = max(self.best, value)
        fallen = self.best > LEARNT and value < LOW_SHARE * self.best
        self.low = [*self.low, step] if fallen else []
        if len(self.low) > 1:
            self._say(step, self.low[0] - DEEP, "micro-F1")

    def _say(self, step: int, sound: int, why: str) -> None:
        """Record the first sign and the last step known to be sound."""
        self.collapsed = self.collapsed or {"step": step, "sound": max(sound, 0), "why": why}


class Collapse:
    """One training run of one variant, and its record."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.variant = a, VARIANTS[a.variant]
        _, recipe, ours = CORPORA[a.corpus]
        self.corpus = _corpus(a.corpus, a.data, a.documents)
        _, settings = read_recipe(RECIPES / recipe)
        settings |= ours | {"patience": 0, "seed": a.seed} | parse_settings(a.set) | self.variant.settings
        self.parameters = make_recipe("denn", settings).parameters
        rate = f"{self.parameters.learning_rate:g}"
        start = f"_{a.start.stem}" if a.start else ""
        fork = f"_fork{a.fork}" if a.fork else ""
        self.name = a.name or f"{a.corpus}_{a.variant}_{rate}_seed{a.seed}{start}{fork}"
        self.record = Record(a.out / f"{self.name}.jsonl")
        self.watch = Watch(a.settle)
        self.dissected = 0
        self.kept: list[tuple[int, dict[str, Tensor], dict[str, Any]]] = []

    def run(self) -> dict[str, Any]:
        """Train to the end, until the time is up, or until a collapse and its aftermath are recorded."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng())
            stack.enter_context(_machinery(self.variant))
            run = self._start()
            stack.enter_context(self.traced.watching(self.parameters.loss))
            end = self._loop(run)
        collapsed = self.watch.collapsed
        facts = {"reason": end, "step": run.state.step, "collapsed": collapsed, "best": self.watch.best}
        self.record.write("end", **facts)
        if self.a.snapshots and collapsed:
            self._write_snapshots(collapsed["sound"])
        return facts

    def _start(self) -> Run:
        """Create the network and its loop as the product does."""
        a, p, v = self.a, self.parameters, self.variant
        device = device_of(p.device)
        torch.manual_seed(p.seed)
        network = DENN(p).make(p.new_encoder(self.corpus), len(self.corpus.labels))
        network.to(device)
        for name, share in v.dropouts.items():
            setattr(network.encoder.model.config, name, share)
        network.tokenize = lambda texts: _tokens(network, texts)
        if v.residual32:
            _in_mixed_precision(network)
        training = DennTraining(network, self.corpus, p)
        network.start(training.train_tokens, training.labels, p, Silent(), SAMPLED)
        recorded = training.multiple > 1
        gradients = Gradients(network.parameters(), training.prepare, training.compute, recorded and v.recorded)
        self.network, self.training, self.traced = network, training, probes.Traced(gradients, network)
        groups = [group | v.adam for group in network.groups(p)]
        plan = Plan(**{f.name: getattr(p, f.name) for f in fields(Plan)})
        plan = replace(plan, seed=plan.seed + 1000 * a.fork)
        tokens = training.train_tokens.lengths * network.views
        run = Run(network, groups, tokens, plan, a.out, None, False, Clock(), lambda: 0.0)
        run.warmup = v.warmup
        if v.usual:
            run.clipping = UsualNorms(network.parameters(), v.usual)
        if a.dissect:
            self.traced.dissect = lambda rows, norm: self._dissect(run, rows, norm)
        if a.start:
            run.last = a.start
            if not run.resume():
                raise SystemExit(f"{a.start} does not exist. Write states with --snapshots.")
        scale = float(network.scale)
        if v.folded:
            fold(network, run.optimiser)
        self.valid = training.valid_tokens.first(SCORED_TEXTS)
        self.gold = training.valid_labels[:SCORED_TEXTS]
        self.record.write(
            "start", name=self.name, variant=a.variant, corpus=a.corpus, seed=a.seed, fork=a.fork, scale=scale,
            parameters=asdict(p), kernels=bool(network.encoder.kernels), recorded=gradients.recorded,
            began_at=run.state.step, total=run.total, documents=len(self.corpus.train), torch=torch.__version__,
            device=torch.cuda.get_device_name() if device.type == "cuda" else "cpu", step_fields=probes.STEP,
        )  # fmt: skip
        return run

    def _loop(self, run: Run) -> str:
        first, deadline = run.state.step, time.monotonic() + self.a.seconds
        last = min(run.total, first + self.a.steps) if self.a.steps else run.total
        self._look(run, None)
        while run.state.step < last:
            due = (run.state.step + 1) % LOOK == 0 or run.state.step + 1 == last
            before = [weight.detach().clone() for weight in self.traced.parameters] if due else None
            run.advance(self.traced)
            run.losses.clear()
            if due:
                self._look(run, before)
            if self.a.snapshots and run.state.step % SNAPSHOT == 0 and not self.watch.collapsed:
                self._keep(run)
            collapsed = self.watch.collapsed
            if collapsed and run.state.step >= collapsed["step"] + self.a.after:
                return "collapsed"
            if time.monotonic() > deadline:
                return "out of time"
        return "done"

    def _look(self, run: Run, before: list[Tensor] | None) -> None:
        """Record the steps since the last probe and the state of the network, and validate if it is due."""
        network, step, now = self.network, run.state.step, {}
        if before is not None:
            rate = run.optimiser.param_groups[0]["lr"]
            now = self.traced.take() | self.traced.updates(before, rate) | {"rate": rate}
        network.eval()
        now |= probes.gains(network.encoder) | probes.spread(network.encode(self.valid.first(SPREAD_TEXTS)))
        self.record.write("look", step=step, **now)
        bad = now.get("steps_not_finite", 0) + now.get("weights_not_finite", 0)
        had = self.watch.collapsed
        self.watch.look(step, now["cosine"], bad)
        if step % DEEP == 0 or before is None:
            deep = self._deep(run)
            self.record.write("deep", step=step, **deep)
            self.watch.score(step, deep["micro_f1"])
        if self.watch.collapsed and not had:
            self.record.write("collapse", **self.watch.collapsed)
        print(self.name, step, *(f"{k} {now[k]:.4g}" for k in ("cosine", "gain", "update") if k in now), flush=True)

    def _deep(self, run: Run) -> dict[str, Any]:
        """Validate, and probe the network on a few fixed texts, outside the recorded steps."""
        network = self.network
        scores = network.probabilities(network.encode(self.valid)).cpu()
        found = {"micro_f1": micro_f1(scores, self.gold, 0.5), "largest_score": float(scores.max())}
        found["labels_per_text"] = float((scores > 0.5).float().sum(1).mean())
        ids, layout = probes.pack_all(self.valid.first(PROBED_TEXTS), network.device)
        found |= probes.largest_inside(network.encoder, ids, layout)
        found |= probes.errors(network, ids, layout, self.gold[:PROBED_TEXTS].to(network.device))
        return found | probes.small_moments(run.optimiser)

    def _dissect(self, run: Run, rows: Tensor, norm: float) -> None:
        """Record the source of a gradient spike."""
        if self.dissected < self.a.dissect:
            self.dissected += 1
            ids, starts, labels, _ = self.training.prepare(rows)
            found = probes.anatomy(self.network, ids, starts, labels)
            found["token"] = self.network.encoder.tokenizer.id_to_token(found["token"])
            self.record.write("spike", step=run.state.step, norm=norm, **found)

    def _keep(self, run: Run) -> None:
        """Keep the last five snapshots of weights and optimiser in memory."""
        tensors = checkpoint.module_tensors(self.network) | checkpoint.optimiser_tensors(run.optimiser)
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.kept = [*self.kept[-4:], (run.state.step, copies, asdict(run.state))]

    def _write_snapshots(self, sound: int) -> None:
        """Write the last two snapshots that were taken while the run was sound."""
        for step, tensors, facts in [kept for kept in self.kept if kept[0] <= sound][-2:]:
            path = self.a.out / f"{self.name}_at{step}.safetensors"
            checkpoint.write(path, tensors, facts)
            print("wrote", path, flush=True)


def fold(network: DennNetwork, optimiser: torch.optim.Optimizer) -> None:
    """Fold the constant scale of the pooled vector into the last LayerNorm: the same function, another geometry."""
    scale, norm = float(network.scale), probes.last_norm(network.encoder)
    with torch.no_grad():
        for weight in (norm.weight, norm.bias):
            weight.mul_(scale)
            if weight in optimiser.state:  # gradients of the larger weight are smaller by the scale
                optimiser.state[weight]["exp_avg"].div_(scale)
                optimiser.state[weight]["exp_avg_sq"].div_(scale**2)
        network.scale.fill_(1.0)


@contextmanager
def _machinery(variant: Variant) -> Iterator[None]:
    """Switch off our kernels or exact float32 products within the block."""
    kernels, tf32 = packed.kernels, torch.backends.cuda.matmul.allow_tf32
    if not variant.kernels:
        packed.kernels = lambda: None
    torch.backends.cuda.matmul.allow_tf32 = variant.tf32
    try:
        yield
    finally:
        packed.kernels, torch.backends.cuda.matmul.allow_tf32 = kernels, tf32


def _in_mixed_precision(network: DennNetwork) -> None:
    """Run products of the encoder in bfloat16 with a residual stream in float32."""
    encoder = network.encoder
    states = encoder.states

    def mixed(*arguments: Any, **named: Any) -> Tensor:
        with torch.autocast(encoder.device.type, torch.bfloat16):
            return states(*arguments, **named)

    encoder.states = mixed


@cache
def _corpus(name: str, folder: Path, documents: int | None) -> Corpus:
    corpus = CORPORA[name][0](folder)
    if documents is None:
        return corpus
    return replace(corpus, train=corpus.train[:documents], valid=corpus.valid[:documents])


_known: dict[tuple[int, int, str], Tokens] = {}


def _tokens(network: DennNetwork, texts: Sequence[str]) -> Tokens:
    """Tokenise the texts of a corpus once per process."""
    key = network.encoder.max_length, len(texts), texts[0]
    if key not in _known:
        _known[key] = network.encoder.tokenize(texts)
    return _known[key]


def one_run(arguments: Sequence[str]) -> dict[str, Any]:
    """Train with these arguments of `run`, and restore the device settings."""
    try:
        return Collapse(parser().parse_args(["run", *arguments])).run()
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def parser() -> argparse.ArgumentParser:
    """Create the argument parser."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train once and record")
    run.add_argument("data", type=Path, help="folder of the corpus")
    run.add_argument("--corpus", choices=CORPORA, default="aapd")
    run.add_argument("--variant", choices=VARIANTS, default="as-is")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--out", type=Path, required=True, help="folder of the records")
    run.add_argument("--name", help="name of the record; default: from variant, rate and seed")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the method")
    run.add_argument("--steps", type=int, help="maximum number of steps; the schedule is that of all epochs")
    run.add_argument("--seconds", type=float, default=math.inf, help="maximum training time in seconds")
    run.add_argument("--after", type=int, default=200, help="steps to continue after a collapse")
    run.add_argument(
        "--settle", type=int, default=1000, help="steps before the cosine similarity counts, if micro-F1 is below 0.2"
    )
    run.add_argument("--documents", type=int, help="use only the first documents of training and validation")
    run.add_argument("--snapshots", action="store_true", help="save two states from before a collapse")
    run.add_argument("--dissect", type=int, default=0, help="number of gradient spikes to analyse")
    run.add_argument("--from", dest="start", type=Path, help="state to continue from")
    run.add_argument("--fork", type=int, default=0, help="use other batches and dropout than the seed's")
    return top


def main() -> None:
    """Run."""
    parser().parse_args()
    print(json.dumps(one_run(sys.argv[2:])), flush=True)


if __name__ == "__main__":
    main()

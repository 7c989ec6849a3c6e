"""The loop: reproducible steps, also after a kill, the best weights, and every way to stop."""

import math
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import denn.clock
from denn.errors import TrainingError
from denn.progress import Silent
from denn.training import checkpoint, loop
from denn.training.guard import RECOVERIES
from denn.training.loop import RAMP, fit
from denn.training.plan import Plan, State

ROWS = 24
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
Y = (X @ torch.randn(4, 3, generator=torch.Generator().manual_seed(1)) > 0).float()


class Killed(BaseException):
    """The error that ends a run in these tests."""


class Toy:
    """A linear classifier with dropout, its loss and its validation; `at` maps a step to what happens there."""

    def __init__(self, workdir, *, at=None, scores=None, rate=0.05) -> None:
        self.workdir, self.at, self.given = workdir, at or {}, iter(scores) if scores else None
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.module = nn.Linear(4, 3)
        self.group = {"params": list(self.module.parameters()), "lr": rate}
        self.calls, self.batches, self.rates, self.norms = 0, [], [], []

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        self.batches.append(rows.tolist())
        self.rates.append(self.group["lr"])
        factor = self.at.get(self.calls, lambda: 1.0)()
        self.calls += 1
        return factor * F.binary_cross_entropy_with_logits(self.module(F.dropout(X[rows], 0.3)), Y[rows])

    def gradients(self, rows: torch.Tensor) -> torch.Tensor:
        self.module.zero_grad()
        value = self.loss(rows)
        value.backward()
        return value.detach()

    def validate(self) -> dict[str, float]:
        gradients = [p.grad.flatten() for p in self.module.parameters() if p.grad is not None]  # none yet when resumed
        self.norms.append(float(torch.cat(gradients).norm()) if gradients else math.nan)
        with torch.no_grad():
            accuracy = float(((self.module(X) > 0) == (Y > 0)).float().mean())
        given = next(self.given) if self.given else accuracy
        return {"accuracy": accuracy, **(given if isinstance(given, dict) else {"score": given})}

    def run(self, progress=None, more=None, **plan) -> State:
        usual = {"batch_size": 6, "epochs": 6, "schedule": "constant", "patience": 0, "checkpoint_seconds": 0.0}
        full = Plan(**{**usual, **plan})
        self.workdir.mkdir(exist_ok=True)
        tokens = torch.arange(ROWS)
        return fit(
            self.module, [self.group], self.gradients, self.validate, tokens, full, self.workdir, progress or Silent(),
            **(more or {}),
        )  # fmt: skip

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.module.parameters()]


class Notes(Silent):
    """Progress that records its notes."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def note(self, message: str) -> None:
        self.notes.append(message)


def die() -> float:
    raise Killed


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock for the loop that stands still until a test advances it."""
    hands = SimpleNamespace(now=1000.0)
    hands.move = lambda seconds=1.0: setattr(hands, "now", hands.now + seconds) or 1.0
    for module in (loop, denn.clock):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: hands.now))
    return hands


def test_the_same_seed_takes_the_same_steps(tmp_path):
    runs = [Toy(tmp_path / name) for name in ("a", "b", "c")]
    torch.manual_seed(1)
    for toy, seed in zip(runs, (3, 3, 4), strict=True):
        torch.rand(7)  # earlier draws do not matter
        toy.run(seed=seed, epochs=2)
    assert runs[0].batches == runs[1].batches
    assert same(runs[0].weights(), runs[1].weights())
    assert runs[0].batches != runs[2].batches
    assert not same(runs[0].weights(), runs[2].weights())


def test_the_seed_decides_the_dropout_too(tmp_path):
    runs = [Toy(tmp_path / name) for name in ("a", "b")]
    for toy, seed in zip(runs, (0, 1), strict=True):
        toy.run(seed=seed, epochs=1, batch_size=ROWS)  # one batch of all rows: their order changes rounding at most
    first, second = (torch.cat([w.flatten() for w in toy.weights()]) for toy in runs)
    assert (first - second).abs().max() > 1e-3


def test_the_generators_of_the_caller_are_left_alone(tmp_path):
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    Toy(tmp_path).run(epochs=1)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("size", "batches"), [(5, [5, 5, 5, 5, 4]), (7, [7, 7, 5, 5]), (23, [12, 12]), (24, [24]), (6, [6] * 4)]
)
def test_an_epoch_visits_each_row_once_in_another_order_and_no_batch_is_tiny(tmp_path, size, batches):
    toy = Toy(tmp_path)
    steps = len(batches)
    assert toy.run(epochs=3, batch_size=size).step == 3 * steps
    epochs = [toy.batches[start : start + steps] for start in range(0, 3 * steps, steps)]
    assert all([len(batch) for batch in epoch] == batches for epoch in epochs)
    assert all(sorted(row for batch in epoch for row in batch) == list(range(ROWS)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_larger_than_the_corpus_takes_all_rows(tmp_path):
    toy = Toy(tmp_path)
    assert toy.run(batch_size=1000, epochs=3).step == 3
    assert [sorted(batch) for batch in toy.batches] == [list(range(ROWS))] * 3


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
@pytest.mark.parametrize("kills", [(0,), (6,), (13, 3), (21, 2, 0), (23,)])
def test_killed_and_resumed_ends_at_the_same_bits(tmp_path, optimiser, kills):
    settings = {"evaluate_every": 7, "optimiser": optimiser, "weight_decay": 0.01, "schedule": "linear", "clip": 1.0}
    whole = Toy(tmp_path / "whole")
    expected = whole.run(**settings)
    for calls in kills:  # after this many steps of its own
        with pytest.raises(Killed):
            Toy(tmp_path / "killed", at={calls: die}).run(**settings)
    resumed = Toy(tmp_path / "killed")
    found = resumed.run(**settings)
    assert same(resumed.weights(), whole.weights())
    assert (found.step, found.best_step, found.best_score) == (expected.step, expected.best_step, expected.best_score)
    assert without_seconds(found) == without_seconds(expected)
    for name in ("last", f"best-{found.best_step}"):
        (a, _), (b, _) = (checkpoint.read(toy.workdir / f"{name}.safetensors") for toy in (whole, resumed))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), name
    moments = checkpoint.read(resumed.workdir / "last.safetensors")[0]
    assert {"optimiser.0.exp_avg", "optimiser.0.exp_avg_sq", "optimiser.1.step"} <= moments.keys()


def without_seconds(state: State) -> list[dict[str, float]]:
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in state.history]


def test_a_finished_run_is_not_run_again(tmp_path):
    first, again = Toy(tmp_path), Toy(tmp_path)
    expected, found = first.run(), again.run()
    assert again.calls == 0
    assert same(again.weights(), first.weights())
    assert found.history == expected.history


def test_a_run_goes_on_when_it_is_given_more_epochs(tmp_path):
    Toy(tmp_path).run(epochs=2)
    more = Toy(tmp_path)
    assert more.run(epochs=3).step == 12
    assert more.calls == 4


def test_the_weights_of_the_best_validation_are_left_and_of_equal_ones_the_latest(tmp_path):
    seen = []
    toy = Toy(tmp_path, scores=[0.1, 0.9, 0.9, 0.8, 0.8, 0.8])
    validate = toy.validate
    toy.validate = lambda: seen.append(toy.weights()) or validate()
    state = toy.run(epochs=6)
    assert (state.best_step, state.best_score, state.failures) == (12, 0.9, 4)
    assert [entry["step"] for entry in state.history] == [4, 8, 12, 16, 20, 24]
    assert same(toy.weights(), seen[2])
    assert not same(toy.weights(), seen[-1])


def test_patience_counts_validations_without_improvement(tmp_path):
    toy = Toy(tmp_path, scores=[0.5, 0.4, 0.6, 0.5, 0.5, 0.9])
    state = toy.run(patience=2, epochs=6)
    assert (state.step, state.best_step, len(state.history)) == (20, 12, 5)
    assert Toy(tmp_path).run(patience=2, epochs=6).step == 20


def test_a_plateau_uses_the_patience_up_and_its_last_weights_are_kept(tmp_path):
    state = Toy(tmp_path, scores=[0.5] * 6).run(patience=3, epochs=6)
    assert (state.step, state.best_step, state.failures) == (16, 16, 3)


def test_patience_begins_with_the_first_score_above_nothing(tmp_path):
    state = Toy(tmp_path, scores=[0.0, 0.0, 0.0, 0.0, 0.2, 0.1]).run(patience=2, epochs=6)
    assert (state.step, state.best_step) == (24, 20)


def test_without_a_score_the_last_weights_are_kept_and_nothing_stops(tmp_path):
    state = Toy(tmp_path, scores=[{}] * 6).run(patience=1, epochs=6)
    assert (state.step, state.best_step, state.best_score) == (24, 24, None)


@pytest.mark.parametrize(("keep_last", "kept"), [(True, 20), (False, 8)])
def test_the_last_weights_are_kept_where_they_are_worse_by_noise_alone(tmp_path, keep_last, kept):
    given = [{"score": score, "noise": 0.05} for score in (0.5, 0.7, 0.6, 0.68, 0.66, 0.62)]
    toy, seen = Toy(tmp_path, scores=given), []
    validate = toy.validate
    toy.validate = lambda: seen.append(toy.weights()) or validate()
    state = toy.run(more={"keep_last": keep_last}, epochs=6)
    assert (state.best_step, state.best_score) == (kept, 0.7)
    assert same(toy.weights(), seen[kept // 4 - 1])


def test_validation_every_so_many_steps_and_at_the_end(tmp_path):
    state = Toy(tmp_path).run(evaluate_every=3, epochs=2)
    assert [entry["step"] for entry in state.history] == [3, 6, 8]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_leads_back_to_the_kept_weights_at_half_the_rate(tmp_path, value):
    notes, toy = [], Toy(tmp_path, at={13: lambda: value})
    state = toy.run(Notes(notes), epochs=30)
    (collapse,) = state.collapses
    assert (collapse["step"], collapse["back_to"]) == (16, 12)
    assert collapse["why"] == "the loss is not a finite number"
    assert [line for line in notes if "collapsed" in line] == [
        "step 16: training collapsed: the loss is not a finite number; rolling back to the weights of step 12 and "
        "continuing with half the learning rate"
    ]
    assert toy.rates[:16] == [0.05] * 16
    assert toy.rates[16:] == pytest.approx([0.025 * min(1, (n + 1) / RAMP) for n in range(120 - 16)])
    assert all(tensor.isfinite().all() for tensor in toy.weights())
    assert state.step == 120 and state.best_score > 0.8
    assert [entry["step"] for entry in state.history] == [step for step in range(4, 121, 4) if step != 16]


def test_the_collapse_before_the_first_validation_leads_back_to_the_start(tmp_path):
    toy = Toy(tmp_path, at={1: lambda: math.nan})
    start = toy.weights()
    seen, gradients = [], toy.gradients
    toy.gradients = lambda rows: seen.append(toy.weights()) or gradients(rows)
    assert toy.run(epochs=6).collapses[0]["back_to"] == 0
    assert same(seen[4], start) and not same(toy.weights(), start)


def test_the_third_collapse_ends_the_training_with_the_kept_weights(tmp_path):
    notes, toy = [], Toy(tmp_path, at={step: lambda: math.nan for step in (9, 13, 17)})
    state = toy.run(Notes(notes))
    assert len(state.collapses) == RECOVERIES + 1
    assert [collapse["step"] for collapse in state.collapses] == [10, 16, 20]
    assert (state.step, state.best_step) == (20, 12)
    assert "and ending training" in notes[-1]
    assert all(tensor.isfinite().all() for tensor in toy.weights())


def test_a_training_that_never_gets_to_a_validation_is_an_error(tmp_path):
    with pytest.raises(TrainingError, match=r"collapsed before its first sound validation, .* by step 10: .*Lower the"):
        Toy(tmp_path, at=dict.fromkeys(range(99), lambda: math.nan)).run()
    with pytest.raises(TrainingError, match=r"collapsed before its first sound validation, .* by step 4: .*Lower the"):
        Toy(tmp_path / "short", at={3: lambda: math.nan}).run(epochs=1)


def test_a_loss_that_is_no_number_is_seen_between_validations(tmp_path):
    state = Toy(tmp_path, at={7: lambda: math.nan}).run(evaluate_every=1000)
    assert state.collapses[0]["step"] == 10


def test_weights_that_are_no_numbers_are_never_the_best(tmp_path):
    toy = Toy(tmp_path, scores=[0.1, 0.9, 0.2, 0.3, 0.4, 0.5])
    validate = toy.validate

    def damage() -> dict[str, float]:
        if len(toy.norms) == 1:
            toy.module.bias.data[0] = math.nan
        return validate()

    toy.validate = damage
    state = toy.run()
    assert [collapse["why"] for collapse in state.collapses] == ["weights or scores are not finite numbers"]
    assert state.best_score == 0.5
    assert all(tensor.isfinite().all() for tensor in toy.weights())


def test_a_score_that_is_no_number_is_never_the_best(tmp_path):
    state = Toy(tmp_path, scores=[0.3, math.nan, 0.4, 0.4, 0.4, 0.4]).run()
    assert state.collapses[0]["step"] == 8 and state.best_score == 0.4


def test_a_loss_that_jumps_and_stays_calls_for_a_validation_at_once(tmp_path):
    toy = Toy(tmp_path, at=dict.fromkeys(range(100, 160), lambda: 5.0), scores=[0.8, 0.1, 0.8, 0.8])
    state = toy.run(epochs=50, evaluate_every=90)
    (collapse,) = state.collapses
    assert (collapse["step"], collapse["back_to"]) == (150, 90)  # five checks after the jump, thirty steps early
    assert collapse["why"] == "the validation score fell from 80.0 to 10.0"


def test_a_collapse_and_a_kill_end_at_the_same_bits(tmp_path):
    settings = {"epochs": 12, "schedule": "linear"}
    whole = Toy(tmp_path / "whole", at={14: lambda: math.nan})
    expected = whole.run(**settings)
    with pytest.raises(Killed):
        Toy(tmp_path / "killed", at={14: lambda: math.nan, 30: die}).run(**settings)
    resumed = Toy(tmp_path / "killed")
    found = resumed.run(**settings)
    assert found.collapses == expected.collapses != []
    assert same(resumed.weights(), whole.weights())


def test_the_time_budget_stops_with_a_validation_and_counts_earlier_tries(tmp_path, clock):
    with pytest.raises(Killed):
        Toy(tmp_path, at=dict.fromkeys(range(11), clock.move) | {11: die}).run(time_budget=14.0, evaluate_every=1000)
    clock.move(500.0)  # the time between two tries is free
    toy = Toy(tmp_path, at=dict.fromkeys(range(99), clock.move))
    state = toy.run(time_budget=14.0, evaluate_every=1000)
    assert (state.step, toy.calls) == (14, 4)
    assert [(entry["step"], entry["seconds"]) for entry in state.history] == [(14, 14.0)]


def test_no_time_at_all_leaves_the_weights_as_they_are(tmp_path):
    toy = Toy(tmp_path)
    before = toy.weights()
    state = toy.run(time_budget=0.0)
    assert (state.step, state.best_step, toy.calls) == (0, 0, 0)
    assert same(toy.weights(), before)


def test_the_state_is_saved_when_it_is_due_and_not_before(tmp_path, clock):
    toy = Toy(tmp_path, at=dict.fromkeys(range(39), clock.move) | {39: die})
    with pytest.raises(Killed):
        toy.run(epochs=20, evaluate_every=1000, checkpoint_seconds=25.0)
    assert checkpoint.read(tmp_path / "last.safetensors")[1]["step"] == 30


def test_the_linear_schedule_rises_and_falls_by_steps(tmp_path):
    toy = Toy(tmp_path, rate=0.1)
    toy.run(epochs=10, schedule="linear", warmup=0.22)
    assert len(toy.rates) == 40
    for step, rate in enumerate(toy.rates):
        share = (step + 1) / 41
        expected = share / 0.22 if share < 0.22 else (1 - share) / 0.78
        assert rate == pytest.approx(0.1 * expected)
    top = toy.rates.index(max(toy.rates))
    assert all(a < b for a, b in pairwise(toy.rates[: top + 1]))
    assert all(a > b for a, b in pairwise(toy.rates[top:]))


def test_the_linear_schedule_follows_the_time_where_that_is_shorter(tmp_path, clock):
    toy = Toy(tmp_path, rate=1e-3, at=dict.fromkeys(range(99), clock.move))
    toy.run(epochs=1000, schedule="linear", warmup=0.0, time_budget=20.0)
    assert toy.rates == pytest.approx([1e-3 * (1 - max(step / 20, (step + 1) / 4001)) for step in range(20)])


def test_the_constant_schedule_is_constant(tmp_path):
    toy = Toy(tmp_path, rate=0.02)
    toy.run(epochs=2)
    assert toy.rates == [0.02] * 8


def test_a_constant_schedule_warms_up_if_it_should(tmp_path):
    toy = Toy(tmp_path, rate=0.1)
    toy.run(epochs=10, warmup=0.5)
    assert toy.rates == pytest.approx([0.1 * min(1.0, (step + 1) / 41 / 0.5) for step in range(40)])


def test_the_cosine_schedule_falls_slowly_at_both_ends(tmp_path):
    toy = Toy(tmp_path, rate=0.1)
    toy.run(epochs=10, schedule="cosine", warmup=0.0)
    done = [(step + 1) / 41 for step in range(40)]
    assert toy.rates == pytest.approx([0.05 * (1 + math.cos(math.pi * share)) for share in done])


def test_the_recorded_warm_up_is_the_one_in_effect():
    assert [Plan(schedule=kind).warmup for kind in ("linear", "cosine", "constant")] == [0.05, 0.05, 0.0]
    assert Plan(schedule="constant", warmup=0.2).warmup == 0.2


def test_gradients_below_epsilon_hardly_move_a_weight(tmp_path):
    usual, large = Toy(tmp_path / "usual"), Toy(tmp_path / "large")
    before = usual.weights()
    usual.run(epochs=1)
    large.run(epochs=1, epsilon=1e4)
    moved = [
        max(float((new - old).abs().max()) for new, old in zip(toy.weights(), before, strict=True))
        for toy in (usual, large)
    ]
    assert moved[1] < 1e-3 * moved[0]


def test_a_run_knows_that_its_time_was_up(tmp_path, clock):
    toy = Toy(tmp_path / "short", at=dict.fromkeys(range(99), clock.move))
    assert toy.run(epochs=1000, time_budget=20.0).out_of_time
    assert not Toy(tmp_path / "whole").run(epochs=2).out_of_time


def test_clipping_bounds_the_gradients(tmp_path):
    free, clipped = Toy(tmp_path / "free"), Toy(tmp_path / "clipped")
    free.run(evaluate_every=1, epochs=1)
    clipped.run(evaluate_every=1, epochs=1, clip=0.05)
    assert min(free.norms) > 0.1
    assert clipped.norms == pytest.approx([0.05] * 4, rel=1e-3)


def test_progress_hears_of_steps_losses_and_validations(tmp_path):
    heard = []
    progress = SimpleNamespace(
        start=lambda stage: heard.append((stage.what, stage.total, stage.trains)),
        advance=lambda done, **values: heard.append((done, set(values))),
        note=lambda line: heard.append(line),
    )
    Toy(tmp_path).run(progress, epochs=1)
    Toy(tmp_path).run(progress, epochs=1)
    assert heard[0] == ("training", 24, True)
    assert heard[1:4] == [(done, {"loss", "seconds_left"}) for done in (6, 12, 18)]
    assert heard[4].startswith("step 4: loss 0.")
    assert heard[4].endswith("(best)")
    assert "accuracy" in heard[4]
    assert heard[6:] == ["resuming at step 4 of 4", ("training", 24, True)]


@pytest.mark.parametrize("content", [b"", b"no tensors at all", None])
def test_a_damaged_checkpoint_says_what_to_do(tmp_path, content):
    Toy(tmp_path).run(epochs=1)
    last = tmp_path / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-20] if content is None else content)
    with pytest.raises(TrainingError, match=r"last\.safetensors cannot be read .* --restart"):
        Toy(tmp_path).run(epochs=1)


def test_tensors_without_facts_are_no_checkpoint(tmp_path):
    checkpoint.save_file({"module.weight": torch.zeros(1)}, tmp_path / "bare.safetensors")
    with pytest.raises(TrainingError, match="facts"):
        checkpoint.read(tmp_path / "bare.safetensors")


def test_a_half_written_checkpoint_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "state.safetensors"
    checkpoint.write(path, {"a": torch.ones(2)}, {"step": 1})
    monkeypatch.setattr("denn.durable.os.fsync", lambda _: die())
    with pytest.raises(Killed):
        checkpoint.write(path, {"a": torch.zeros(2)}, {"step": 2})
    tensors, facts = checkpoint.read(path)
    assert facts == {"step": 1}
    assert tensors["a"].tolist() == [1.0, 1.0]


def test_an_interruption_saves_what_is_whole(tmp_path):
    def interrupt() -> float:
        raise KeyboardInterrupt

    straight = Toy(tmp_path / "straight")
    straight.run(checkpoint_seconds=1e9)
    cut = Toy(tmp_path / "cut", at={13: interrupt})
    with pytest.raises(KeyboardInterrupt):
        cut.run(checkpoint_seconds=1e9)
    assert checkpoint.read(tmp_path / "cut" / "last.safetensors")[1]["step"] == 13
    resumed = Toy(tmp_path / "cut")
    assert resumed.run(checkpoint_seconds=1e9).step == 24
    assert same(resumed.weights(), straight.weights())


@pytest.mark.parametrize("step", [1, 2, 4, 13])
def test_an_interruption_in_the_middle_of_a_step_waits_for_its_end(tmp_path, monkeypatch, step):
    straight = Toy(tmp_path / "straight")
    straight.run(checkpoint_seconds=1e9)
    update, updates = torch.optim.Adam.step, []

    def interrupted(optimiser, *rest):
        updates.append(None)
        if len(updates) == step:
            signal.raise_signal(signal.SIGINT)
        return update(optimiser, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(torch.optim.Adam, "step", interrupted)
        Toy(tmp_path / "cut").run(checkpoint_seconds=1e9)
    assert checkpoint.read(tmp_path / "cut" / "last.safetensors")[1]["step"] == step
    resumed = Toy(tmp_path / "cut")
    assert resumed.run(checkpoint_seconds=1e9).step == 24
    assert same(resumed.weights(), straight.weights()) and len(resumed.batches) == 24 - step
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_before_the_first_step_leaves_nothing(tmp_path):
    def interrupt() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Toy(tmp_path, at={0: interrupt}).run()
    assert list(tmp_path.iterdir()) == []


def test_training_outside_the_main_thread(tmp_path):
    with ThreadPoolExecutor(1) as elsewhere:
        assert elsewhere.submit(Toy(tmp_path).run, epochs=1).result().step == 4


def test_an_interruption_as_the_time_runs_out_leaves_the_validation_to_be_made(tmp_path, clock):
    def too_late() -> float:
        clock.move(100.0)
        raise KeyboardInterrupt

    settings = {"time_budget": 50.0, "checkpoint_seconds": 1e9, "evaluate_every": 1000}
    with pytest.raises(KeyboardInterrupt):
        Toy(tmp_path, at={7: too_late}).run(**settings)
    assert Toy(tmp_path).run(**settings).best_step == 7


def test_a_kill_between_the_two_files_leaves_a_pair_that_belongs_together(tmp_path, monkeypatch):
    write = checkpoint.write

    def dying(path, tensors, facts):
        if path.name == "last.safetensors" and facts["step"] == 8:
            raise Killed
        write(path, tensors, facts)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(checkpoint, "write", dying)
        Toy(tmp_path / "killed", scores=[0.1, 0.2]).run(epochs=6)
    early = Toy(tmp_path / "killed", scores=[0.2, 0.3, 0.4, 0.5, 0.6])
    assert early.run(time_budget=0.0).best_step == 4
    assert checkpoint.read(tmp_path / "killed" / "best-4.safetensors")[1] == {"step": 4}


def test_an_interrupted_validation_is_made_when_it_is_taken_up(tmp_path):
    class Impatient(Toy):
        def validate(self):
            if len(self.norms) == 2:
                raise KeyboardInterrupt
            return super().validate()

    straight = Toy(tmp_path / "straight")
    state = straight.run(checkpoint_seconds=1e9)
    with pytest.raises(KeyboardInterrupt):
        Impatient(tmp_path / "cut").run(checkpoint_seconds=1e9)
    facts = checkpoint.read(tmp_path / "cut" / "last.safetensors")[1]
    assert (facts["step"], len(facts["history"]), facts["owed"]) == (12, 2, True)
    resumed = Toy(tmp_path / "cut")
    again = resumed.run(checkpoint_seconds=1e9)
    assert [entry["step"] for entry in again.history] == [entry["step"] for entry in state.history]
    assert len(resumed.batches) == 12 and same(resumed.weights(), straight.weights())


def test_steps_whose_validation_was_lost_are_validated_when_the_time_is_up(tmp_path, clock):
    settings = {"evaluate_every": 1000, "epochs": 1000, "checkpoint_seconds": 0.0}
    with pytest.raises(Killed):
        Toy(tmp_path, at=dict.fromkeys(range(25), clock.move) | {25: die}).run(time_budget=30.0, **settings)
    toy = Toy(tmp_path)
    state = toy.run(time_budget=10.0, **settings)
    assert (state.step, state.best_step, toy.calls) == (20, 20, 0)
    assert len(Toy(tmp_path).run(time_budget=10.0, **settings).history) == 1  # not again


def test_a_recovery_forgets_what_loss_was_usual(tmp_path):
    toy = Toy(tmp_path, at={200: lambda: math.nan} | dict.fromkeys(range(201, 320), lambda: 4.0), scores=[{}] * 99)
    state = toy.run(epochs=100, evaluate_every=1000)
    assert len(state.collapses) == 1


def test_once_the_time_is_up_it_stays_so(tmp_path, clock):
    toy = Toy(tmp_path, at=dict.fromkeys(range(99), clock.move))
    needed = iter([0.0] * 30 + [1e9, 1e9])
    state = toy.run(more={"reserve": lambda: next(needed, 0.0)}, time_budget=1000.0, evaluate_every=1000, epochs=1000)
    assert len(state.history) == 1 and state.step < 40

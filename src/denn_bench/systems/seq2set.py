"""Seq2Set (Yang et al., 2019): a decoder rewarded for the label set it generates, in any order.

There are two forms. `simple`, the released one: a sequence decoder learns the labels in order by maximum likelihood,
then only by self-critical policy gradient. `full`: a sequence decoder drafts the labels, and a set decoder, which
attends to the words and the draft, is rewarded, while the first continues with maximum likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor, nn

from denn.clock import Clock
from denn.encoders.layout import Layout
from denn.errors import TrainingError
from denn.protocols import Progress
from denn.training import checkpoint
from denn.training.bounds import Layers
from denn.training.network import Batch
from denn.training.neural import Neural
from denn.training.plan import Schedule
from denn.training.session import Training
from denn.types import Corpus
from denn_bench.core.beam import Beams, State, Step, beam_search
from denn_bench.core.sets import live, members, sample_f1, self_critical_loss
from denn_bench.encoders.words import WordEncoder
from denn_bench.systems.rollout import write
from denn_bench.systems.sequences import (
    MARGIN,
    Beam,
    Cells,
    DotAttention,
    Memory,
    SequenceNetwork,
    SequenceParameters,
    Share,
    sequence_loss,
    target_sequences,
    taught,
)

TAUGHT = "taught.safetensors"  # weights and facts of the finished first stage
SUMMED = ("steps", "seconds", "training_seconds", "validation_seconds", "tokens")


@dataclass(frozen=True, kw_only=True)
class Seq2SetParameters(SequenceParameters):
    """Sizes of the released code; epochs and learning rate are those of the maximum-likelihood stage."""

    form: Literal["simple", "full"] = "simple"
    set_weight: Annotated[float, Field(ge=0, le=1)] = 0.8  # λ: the set decoder's share of the loss of the full form
    decoder_layers: Layers = 2
    head_dropout: Share | None = 0.0
    beam: Beam = 10
    clip: NonNegativeFloat = 8.0
    reinforced_epochs: NonNegativeInt = 10  # of the policy-gradient stage
    reinforced_learning_rate: PositiveFloat = 1e-5
    reinforced_schedule: Schedule = "cosine"


class SetNetwork(SequenceNetwork):
    """One decoder: first maximum likelihood of the labels in order, then a reward for its own sequences.

    The second loss is L = −(r(y) − r(ŷ)) Σ_t log p(y_t | y_<t), with y sampled from the decoder, ŷ its greedy choice,
    both with dropout, and r the F1 of the set against the document's.
    """

    reinforced = False

    def __init__(self, encoder: WordEncoder, labels: int, p: Seq2SetParameters) -> None:
        super().__init__(encoder, labels, p, "lstm", DotAttention(2 * p.hidden, 2 * p.hidden))

    @property
    def limit(self) -> int:
        """Return the maximum number of tokens of a text, including the end."""
        return min(self.p.max_labels or int(self.longest) + MARGIN, self.labels) + 1

    def decoder(self, memory: Memory, state: State) -> tuple[Step, State]:
        """Return the step function of the decoder that decides, and its initial state for these texts."""
        return lambda last, now: self.step(last, now, memory), state

    def write(self, step: Step, state: State, greedy: bool = False) -> tuple[Tensor, Tensor]:
        """Generate with a decoder: (n,S) tokens and (n,S,L+1) logits."""
        return write(step, state, limit=self.limit, start=self.start_token, end=self.end, greedy=greedy)

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of the decoder in the current stage."""
        baseline = self.baseline(batch) if self.reinforced else None
        return self.set_loss(batch, baseline, *self.decoder(*self.read(batch.ids, batch.layout)))

    def set_loss(self, batch: Batch, baseline: Tensor | None, step: Step, state: State) -> Tensor:
        """Return the policy-gradient loss against an (n,) baseline, or the cross-entropy without a baseline."""
        if baseline is None:
            targets = target_sequences(batch.labels, self.p.order)
            return sequence_loss(taught(step, state, targets, self.start_token), targets)
        tokens, logits = self.write(step, state)
        return self_critical_loss(logits, tokens, self.reward(tokens, batch.labels) - baseline)

    def reward(self, tokens: Tensor, gold: Tensor) -> Tensor:
        """Return the (n,) F1 of generated (n,S) tokens against (n,L) label sets."""
        return sample_f1(members(tokens, self.labels), gold)

    @torch.no_grad()
    def baseline(self, batch: Batch) -> Tensor:
        """Return the (n,) reward of the greedy choice, with dropout as in the released code."""
        step, state = self.decoder(*self.read(batch.ids, batch.layout))
        tokens, _ = self.write(step, state, greedy=True)
        torch.clear_autocast_cache()  # casts of weights without gradients, which older versions of torch would reuse
        return self.reward(tokens, batch.labels)

    def beams(self, ids: Tensor, layout: Layout) -> Beams:
        """Search for the most likely sequences of the decoder that decides."""
        memory, state = self.read(ids, layout)
        return beam_search(
            *self.decoder(memory, state), len(memory.states), width=self.p.beam, limit=self.limit,
            start=self.start_token, end=self.end, normalise=self.p.length_normalised,
        )  # fmt: skip


class SetDecoder(nn.Module):
    """The set decoder of the full form: attends to the words and to the states of the sequence decoder.

    s_t = cells([g(y_{t−1}); c_{t−1}; d_{t−1}], s_{t−1}),   z_t = head(tanh(W [s_t; c_t; d_t]))
    with c_t the words and d_t the draft's states that s_t attends to.
    """

    def __init__(self, width: int, labels: int, p: Seq2SetParameters) -> None:
        super().__init__()
        wide = 2 * p.hidden
        self.dropout = p.dropout if p.head_dropout is None else p.head_dropout
        self.cells = Cells("lstm", width + 2 * wide, wide, p.decoder_layers, p.dropout)
        self.words, self.draft = DotAttention(wide, wide), DotAttention(wide, wide)
        self.joined = nn.Linear(3 * wide, wide)
        self.head = nn.Linear(wide, labels + 1)

    def start(self, state: State, words: Memory, draft: Memory) -> State:
        """Return the initial state: the cells' state, then what they attend to."""
        kept = state[: self.cells.parts]
        return *kept, self.attend(kept[len(self.cells.cells) - 1], words, draft)

    def attend(self, output: Tensor, words: Memory, draft: Memory) -> Tensor:
        """Return (m,4h) contexts of (m,2h) outputs, of words and draft side by side."""
        return torch.cat([self.words(output, words), self.draft(output, draft)], 1)

    def step(self, vectors: Tensor, state: State, words: Memory, draft: Memory) -> tuple[Tensor, State]:
        """Take one step on the (m,w) vectors of the last tokens: (m,L+1) float32 logits and the new state."""
        inputs = torch.cat([vectors, state[-1].to(vectors.dtype)], 1)
        output, kept = self.cells(inputs, state[:-1])
        contexts = self.attend(output, words, draft)
        joined = torch.tanh(self.joined(torch.cat([output, contexts.to(output.dtype)], 1)))
        logits: Tensor = self.head(F.dropout(joined, self.dropout, self.training)).float()
        return logits, (*kept, contexts)


class FullSetNetwork(SetNetwork):
    """Two decoders: (1 − λ) of the sequence decoder's cross-entropy and λ of the set decoder's loss.

    The set decoder attends to the greedy output of the sequence decoder, in training too: with teacher forcing, the
    states would reveal the labels to the set decoder.
    """

    def __init__(self, encoder: WordEncoder, labels: int, p: Seq2SetParameters) -> None:
        super().__init__(encoder, labels, p)
        self.set_weight, self.second = p.set_weight, SetDecoder(self.label_vectors.embedding_dim, labels, p)

    def loss(self, batch: Batch) -> Tensor:
        """Return the weighted losses of both decoders."""
        baseline = self.baseline(batch) if self.reinforced else None
        memory, state = self.read(batch.ids, batch.layout)
        targets = target_sequences(batch.labels, self.p.order)
        first = sequence_loss(self.teach(targets, memory, state), targets)
        second = self.set_loss(batch, baseline, *self.decoder(memory, state))
        return (1 - self.set_weight) * first + self.set_weight * second

    def decoder(self, memory: Memory, state: State) -> tuple[Step, State]:
        """Return the set decoder, after the sequence decoder's draft."""
        draft = self.draft(memory, state)

        def step(last: Tensor, now: State) -> tuple[Tensor, State]:
            return self.second.step(self.label_vectors(last), now, memory, draft)

        return step, self.second.start(state, memory, draft)

    def draft(self, memory: Memory, state: State) -> Memory:
        """Decode greedily with the sequence decoder, and return the states of all steps up to its end."""
        outputs: list[Tensor] = []

        def step(last: Tensor, now: State) -> tuple[Tensor, State]:
            logits, now = self.step(last, now, memory)
            outputs.append(now[self.p.decoder_layers - 1])
            return logits, now

        tokens, _ = self.write(step, state, greedy=True)
        states = torch.stack(outputs, 1)  # (n,S,2h)
        return Memory(states, live(tokens, self.end), self.second.draft.keys(states))


class Stages(Training):
    """Maximum likelihood, then policy gradient from its best weights; the better of both is kept."""

    network: SetNetwork

    def run(self, workdir: Path, progress: Progress, clock: Clock) -> dict[str, object]:
        """Run the unfinished stages and return the facts of both.

        The first keeps its state in `workdir` and writes a file when it is finished, after which it never runs again,
        whatever its epochs; the second keeps its state in a folder of `workdir`.
        """
        whole: Any = self.parameters
        first: Any
        file = workdir / TAUGHT
        if file.exists():
            tensors, first = checkpoint.read(file)
            clock.earlier = first.pop("clock_seconds")
            checkpoint.load_module(self.network, tensors)
        else:
            budget = clock.budget
            clock.budget *= whole.epochs / max(1, whole.epochs + whole.reinforced_epochs)
            first = super().run(workdir, progress, clock)
            clock.budget = budget
            tensors = {name: tensor.clone() for name, tensor in checkpoint.module_tensors(self.network).items()}
            checkpoint.write(file, tensors, {**first, "clock_seconds": clock.elapsed()})
        if not whole.reinforced_epochs:
            self.parameters = whole
            return {**first, "taught_steps": first["steps"]}
        progress.note("learning from the reward of the decoder's own sequences")
        self.parameters, later = _second_stage(whole), workdir / "reinforced"
        later.mkdir(exist_ok=True)
        self.network.reinforced = True
        try:
            second = super().run(later, progress, clock)
        except TrainingError as error:
            progress.note(f"{error} The weights of the first stage are kept.")
            checkpoint.load_module(self.network, tensors)
            return {**first, "taught_steps": first["steps"]}
        better = _best(second) >= _best(first)
        if not better:
            checkpoint.load_module(self.network, tensors)
        return _joined(first, second, better)


class Seq2Set(Neural):
    """The row Seq2Set of the paper's tables."""

    Parameters = Seq2SetParameters

    def make(self, encoder: WordEncoder, labels: int) -> SetNetwork:
        """Add LSTM layers and one or two LSTM decoders to the words."""
        kinds = {"simple": SetNetwork, "full": FullSetNetwork}
        return kinds[self.parameters.form](encoder, labels, self.parameters)

    def training(self, corpus: Corpus) -> Training:
        """Prepare the two stages."""
        return Stages(self.network, corpus, self.parameters)


def _second_stage(p: Any) -> Any:
    return replace(
        p, epochs=p.reinforced_epochs, learning_rate=p.reinforced_learning_rate, schedule=p.reinforced_schedule,
        warmup=0.0,
    )  # fmt: skip


def _best(facts: Any) -> float:
    """Return the best validation score; without validation, later weights count as better, as within a stage."""
    return max((entry["score"] for entry in facts["history"] if "score" in entry), default=-1.0)


def _joined(first: Any, second: Any, better: bool) -> dict[str, object]:
    """Merge the facts of both stages into those of one run: steps and seconds of the second follow the first."""
    steps, seconds = first["steps"], first["seconds"]
    later = [
        {**entry, "step": entry["step"] + steps, "seconds": round(entry["seconds"] + seconds, 3)}
        for entry in second["history"]
    ]
    sums = {name: round(first[name] + second[name], 3) for name in SUMMED}
    sums["out_of_time"] = first["out_of_time"] or second["out_of_time"]
    best = steps + second["best_step"] if better else first["best_step"]
    collapses = [{**entry, "step": entry["step"] + steps} for entry in second["collapses"]]
    joined = {"collapses": first["collapses"] + collapses, "history": first["history"] + later}
    return {**first, **sums, "best_step": best, "taught_steps": steps, **joined}

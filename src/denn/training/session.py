"""Train one network on one corpus: batches, validations, and the plan for the time budget."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from denn.clock import Clock
from denn.core.metrics import micro_f1_error, multilabel_scores
from denn.core.thresholds import decide, tune_global
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.errors import ConfigError
from denn.protocols import Progress
from denn.training import processes
from denn.training.batches import as_in
from denn.training.budget import FEWEST_DOCUMENTS, Scope, Work, describe, head_alone, scope_of, to_fine_tune
from denn.training.gradients import Gradients
from denn.training.head import epoch_seconds
from denn.training.kept import KeptStates, embed, fits, keep, room_for
from denn.training.loop import CHECKPOINT, fit
from denn.training.network import Network, NeuralParameters
from denn.training.pace import TIMED, TIMED_SECONDS, seconds_a_token
from denn.training.plan import Plan, State
from denn.training.steps import Steps
from denn.types import Corpus, Stage

SAMPLED = 512  # training documents that set the scale of embeddings, fewer if time is short
PIECE_SECONDS = 0.25  # between checks of the clock while documents are embedded


class Training(Steps):
    """The training of one network on one corpus."""

    def __init__(self, network: Network, corpus: Corpus, parameters: NeuralParameters) -> None:
        self.parameters = parameters
        self.stores = False  # whether all training documents are finally embedded
        self.trains_encoder = True  # False if no witness depends on it
        self.effort: str | None = None  # quick: only the head; balanced and best: it is trained, now train the encoder
        self.load_seconds = 0.0  # for loading the encoder
        self.combining = 0.0  # seconds for what is finally learnt from the validation documents
        self.keeps_states = False  # whether the outputs of frozen layers are computed once
        self.kept: KeptStates | None = None  # passes the states of the training documents to the next try
        self.known: Tokens | None = None  # states from the previous try
        self.embeddings: Tensor | None = None  # embeddings of the training documents, if the encoder was not trained
        # Recorded steps need few shapes, so passes are padded to a multiple that one last document can fill.
        recorded = network.recordable and network.encoder.kernels
        multiple = 2 ** min(9, network.encoder.max_length.bit_length() - 1) if recorded else 1
        super().__init__(network, *self._read(corpus, network), multiple)

    def _read(self, corpus: Corpus, network: Network) -> tuple[Tokens, Tensor]:
        """Turn the documents of a corpus into tokens and labels; return those to train on, on the device."""
        self.corpus = corpus
        self.train_tokens = network.tokenize([document.text for document in corpus.train])
        self.valid_tokens = network.tokenize([document.text for document in corpus.valid])
        self.valid_labels = corpus.labels.matrix(corpus.valid)
        return self.train_tokens.to(network.device), corpus.labels.matrix(corpus.train).to(network.device)

    def run(self, workdir: Path, progress: Progress, clock: Clock) -> dict[str, object]:
        """Initialise the network, run the loop, and return facts for the bundle.

        If there is no time for steps of the encoder, train only its head on embeddings that are computed once, for as
        many documents as there is time for.
        """
        p, resumed, given = self.parameters, (workdir / CHECKPOINT).exists(), len(self.train_tokens)
        self.seconds_a_token = 0.0  # through the whole encoder
        self.known = self.kept.of(self.train_tokens) if self.kept is not None else None
        self.keeps_states = self.can_keep_states(workdir)
        if clock.budget < math.inf:
            least = max(TIMED_SECONDS, clock.left() / 100) if self.effort else TIMED_SECONDS
            self.seconds_a_token = seconds_a_token(self.network.score, self.train_tokens, least)
        scope = self._scope(resumed, clock, progress)
        if truncated := self.train_tokens.truncated:
            progress.note(
                f"cutting {truncated:,} of {len(self.train_tokens):,} documents to {self.network.encoder.max_length} "
                "tokens"
            )
        if scope.frozen:
            state = self._learn_head(scope.head_epochs, workdir, clock, progress)
        else:
            if self.keeps_states:
                self.keep_states(workdir, progress)
            if not resumed:
                chosen: Any = p
                if scope.head_epochs:
                    chosen = replace(chosen, head_start=scope.head_epochs)
                self.network.start(self.train_tokens, self.labels, chosen, progress, self._sampled(clock))
            state = self._loop(workdir, progress, clock)
        return {
            "documents_cut": self.train_tokens.truncated,
            "documents_given": given,
            "documents_used": len(self.train_tokens),
            "frozen": scope.frozen,
            "head_epochs": scope.head_epochs,
            "trained_share": 0.0 if scope.frozen else round(self._work().trained, 4),
            "max_length": self.network.encoder.max_length,
            "steps": state.step,
            "out_of_time": state.out_of_time,
            "best_step": state.best_step,
            "seconds": round(state.seconds, 1),
            "training_seconds": round(state.seconds - state.validation_seconds, 3),
            "validation_seconds": round(state.validation_seconds, 3),
            "tokens": state.tokens,
            "collapses": state.collapses,
            "history": state.history,
        }

    def can_keep_states(self, workdir: Path) -> bool:
        """Return whether there are frozen layers, and room for their outputs."""
        encoder = self.network.encoder
        if not isinstance(encoder, TransformerEncoder) or encoder.frozen_layers is None:
            return False
        tokens = len(self.train_tokens.flat) + len(self.valid_tokens.flat)
        # States are sent to other processes through memory.
        place = None if processes.team() else workdir
        room = fits(encoder, tokens - self._known_tokens() if place else tokens, place)
        return self.network.reads_states and encoder.device.type == "cpu" and room

    def keep_states(self, workdir: Path, progress: Progress) -> None:
        """Run all documents through the frozen layers once, and use the results from now on."""
        encoder: Any = self.network.encoder
        progress.note(f"{encoder.frozen_layers} of {encoder.layers} layers are frozen and read each document only once")

        def states_of(name: str, tokens: Tokens) -> Tokens:
            progress.start(Stage(f"running {name} documents through the frozen layers", len(tokens)))
            return keep(encoder, tokens, workdir, progress.advance)

        if self.known is None:
            self.known = states_of("training", self.train_tokens)
        self.train_tokens = self.on_device = self.known
        self.valid_tokens = states_of("validation", self.valid_tokens)

    def _known_tokens(self) -> int:
        """Count the tokens whose states come from the previous try."""
        return 0 if self.known is None else len(self.known.flat)

    def _loop(self, workdir: Path, progress: Progress, clock: Clock) -> State:
        """Train all weights."""
        p = self.parameters
        return fit(
            self.network,
            self.network.groups(p),
            self._gradients(progress),
            self._timed_validation,
            self.train_tokens.lengths * self.network.views,
            Plan(**{f.name: getattr(p, f.name) for f in fields(Plan)}),
            workdir,
            progress,
            weights=as_in(self.corpus.train, self.corpus.valid) if p.draw == "as_valid" else None,
            keep_last=getattr(p, "select", None) == "last",
            clock=clock,
            reserve=lambda: self._work().after_loop() if self.seconds_a_token else 0.0,
        )

    def _gradients(self, progress: Progress) -> Callable[[Tensor], Tensor]:
        """Return what computes loss and gradients of rows, in this process or in several."""
        team = processes.team()
        if team is None:
            return Gradients(self.network.parameters(), self.prepare, self.compute, self.multiple > 1)
        if not self.network.can_share:
            raise ConfigError(
                f"Got {team.size} processes, but this method trains in one. Run it without torchrun, or use the method "
                "denn."
            )
        progress.note(f"{team.size} processes share each batch of {self.parameters.batch_size} documents")
        return team.share(self)

    def _learn_head(self, epochs: int, workdir: Path, clock: Clock, progress: Progress) -> State:
        """Embed the documents once, keep the embeddings, and train only the head."""
        network: Any = self.network
        begun = time.monotonic()
        rows, self.embeddings = self._embed_in_time(epochs, workdir, clock, progress)
        if len(rows) < len(self.train_tokens):
            progress.note(f"there was time to read {len(rows):,} of {len(self.train_tokens):,} documents")
            self.on_device, self.labels = self._read(self._part(rows), network)
        if epochs:
            progress.start(Stage("training the head"))
        network.learn_head(self.embeddings, self.labels, self.parameters, epochs)
        return State(seconds=time.monotonic() - begun)

    def _embed_in_time(
        self, head_epochs: int, workdir: Path, clock: Clock, progress: Progress
    ) -> tuple[Tensor, Tensor]:
        """Embed training documents in random order until time runs out: (m,) rows, ascending, and (m,d).

        If the next try trains some of the layers, the states of the others are kept for it.
        """
        encoder: Any = self.network.encoder
        tokens, work, begun = self.train_tokens, self._work(), time.monotonic()
        order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(self.parameters.seed))
        progress.start(Stage("embedding training documents", len(tokens)))
        states = room_for(encoder, tokens, workdir) if self.kept is not None and self.keeps_states else None
        embeddings = torch.empty(len(tokens), encoder.width)
        done, size = 0, TIMED if clock.budget < math.inf else len(tokens)  # all at once, in the passes of `keep`
        while done < len(tokens):
            rows = order[done : done + size].sort().values
            now = time.monotonic()
            embeddings[rows] = embed(encoder, tokens, rows, states, progress.advance, done)
            took = time.monotonic() - now
            done += len(rows)
            self.seconds_a_token = (time.monotonic() - begun) / int(tokens.lengths[order[:done]].sum())
            share = done / len(tokens)
            part = replace(
                work, seconds_a_token=self.seconds_a_token, valid_tokens=int(work.valid_tokens * share), documents=done,
                head_epochs=head_epochs, head_epoch_seconds=work.head_epoch_seconds * share,
            )  # fmt: skip
            size = size * 2 if took < PIECE_SECONDS else size
            if clock.left() < part.after_embedding() + took * size / len(rows) and done >= FEWEST_DOCUMENTS:
                break
        if self.kept is not None and done == len(tokens):
            self.kept.tokens, self.kept.states = tokens, states
        rows = order[:done].sort().values
        return rows, embeddings[rows]

    def _work(self) -> Work:
        """Describe the work to do, at the most recently measured speed."""
        network: Any = self.network
        tokens, count = self.train_tokens, len(self.train_tokens)
        mean = len(tokens.flat) / count
        return Work(
            train_tokens=len(tokens.flat),
            valid_tokens=len(self.valid_tokens.flat),
            validation_tokens=self.validation_tokens(),
            documents=count,
            step_tokens=mean * min(self.parameters.batch_size, count) * self.network.views,
            stores=self.stores,
            head_epochs=getattr(self.parameters, "head_start", 0),
            head_epoch_seconds=epoch_seconds(network.head, count) if network.can_freeze else 0.0,
            seconds_a_token=self.seconds_a_token,
            load_seconds=self.load_seconds,
            combining=self.combining,
            trained=getattr(self.network.encoder, "trained_share", 1.0),
            keeps=self.keeps_states,
            kept_tokens=self._known_tokens(),
        )

    def _scope(self, resumed: bool, clock: Clock, progress: Progress) -> Scope:
        """Decide what to do in the available time, and report it before starting."""
        if not self.trains_encoder:
            progress.note("no witness trains the encoder: it stays unchanged, and only embeds the stored documents")
            return Scope(frozen=True)
        work = self._work()
        if self.effort == "quick":
            scope = head_alone(work, clock)
            if scope.share == 1:
                return scope
        elif resumed or clock.budget == math.inf:
            return Scope()
        elif self.effort:
            scope = to_fine_tune(work, clock)
        else:
            scope = scope_of(work, clock, self.network.can_freeze)
        progress.note(describe(scope, work, clock))
        return scope

    def _sampled(self, clock: Clock) -> int:
        """Return how many documents may set the scale, within a twentieth of the time."""
        if not self.seconds_a_token:
            return SAMPLED
        document = self.seconds_a_token * len(self.train_tokens.flat) / len(self.train_tokens)
        return max(TIMED, min(SAMPLED, int(clock.left() / 20 / document)))

    def _part(self, rows: Tensor) -> Corpus:
        """Return the corpus with these training documents and the same share of the validation documents."""
        train, valid = self.corpus.train, self.corpus.valid
        count = math.ceil(len(valid) * len(rows) / len(train))
        places = sorted(random.Random(self.parameters.seed).sample(range(len(valid)), count))
        return replace(
            self.corpus, train=[train[row] for row in rows.tolist()], valid=[valid[place] for place in places]
        )

    def _timed_validation(self) -> dict[str, float]:
        """Validate, and measure the current speed of the machine."""
        begun = time.monotonic()
        scores = self.validate()
        if len(self.valid_tokens):
            self.seconds_a_token = (time.monotonic() - begun) / self.validation_tokens() / self._work().reading()
        return scores

    def validation_tokens(self) -> int:
        """Count the tokens that a validation reads."""
        return len(self.valid_tokens.flat)

    def validate(self) -> dict[str, float]:
        """Score the validation split: micro-F1 at 0.5, which selects the weights, and at the tuned threshold."""
        if not len(self.valid_tokens):
            return {}
        parts = self.network.score(self.valid_tokens)
        scores = self.judge(parts[self.network.judged])
        return scores | {"score": scores["micro_f1"], "spread": spread(parts[self.network.watched])}

    def judge(self, scores: Tensor) -> dict[str, float]:
        """Compare (n,L) scores with the validation labels, and with each other."""
        gold = self.valid_labels
        return {
            "micro_f1": micro_f1(scores, gold, 0.5),
            "tuned_micro_f1": micro_f1(scores, gold),
            "noise": micro_f1_error(decide(scores, 0.5), gold),
            "spread": spread(scores),
        }


def spread(scores: Tensor) -> float:
    """Return how much the rows of (n,L) scores differ: the root of the share of their squares not due to the mean."""
    mean, squares = scores.mean(0), scores.square().sum(1).mean()
    return float(((scores - mean).square().sum(1).mean() / squares.clamp_min(1e-30)).sqrt())


def micro_f1(scores: Tensor, gold: Tensor, threshold: float | None = None) -> float:
    """Return the micro-F1 of (n,L) scores, by default at the best threshold."""
    if threshold is None:
        threshold = tune_global(scores, gold)
    return multilabel_scores(decide(scores, threshold), gold)["micro_f1"]

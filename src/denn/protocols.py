"""What can be plugged in: datastores, methods, witnesses, combiners, encoders, and what shows progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from datetime import timedelta

    import torch
    from torch import Tensor, nn

    from denn.clock import Clock
    from denn.encoders.tokens import Tokens
    from denn.types import (
        Calibrated,
        Change,
        Context,
        Corpus,
        Document,
        Fitted,
        Neighbours,
        Parts,
        Scores,
        Stage,
        Support,
        Where,
        Which,
    )
    from denn.witnesses.texts import Texts

Scored = TypeVar("Scored")
Finished = TypeVar("Finished")


@runtime_checkable
class Datastore(Protocol):
    """Documents with labels and embeddings that can be searched; changes are durable when a call returns.

    Every change is all or nothing and goes into the history, with its time and the `source` that it names; an unknown
    id in one is an error.
    """

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in column order; new names are appended, never reordered; only `vacuum` takes unused ones out."""

    @property
    def dimension(self) -> int:
        """The width of the embeddings."""

    def __len__(self) -> int: ...

    def ids(self) -> list[str]:
        """List the ids of all documents, oldest first."""

    def info(self) -> dict[str, object]:
        """Return what a person would ask first: documents, labels, dimension, bytes, and the kind of search."""

    def add(self, documents: Sequence[Document], embeddings: Tensor, *, source: str = "") -> list[str]:
        """Store documents with their (n,d) embeddings; an id that exists is replaced. Return the ids.

        A document without an id gets one that was never given before; a forgotten id is an error.
        """

    def remove(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents; without a condition only if `everything` says so. Return how many went."""

    def relabel(
        self,
        which: Which,
        labels: Sequence[str] | None = None,
        *,
        add: Sequence[str] = (),
        drop: Sequence[str] = (),
        reject: Sequence[str] = (),
        source: str = "",
        everything: bool = False,
    ) -> int:
        """Give documents these labels, or those they have, without `drop` and with `add`. Return how many changed.

        `reject` takes labels away and stores that they were rejected, until they are given again or dropped.
        """

    def forget(self, which: Which, *, source: str = "", everything: bool = False) -> int:
        """Remove documents and all that the history knows of them but their ids, which cannot come back.

        After `vacuum` nothing of them is left in any file. Return how many went.
        """

    def undo(self, number: int, *, source: str = "") -> int:
        """Bring the documents that a change touched to where they were before it. Return how many were.

        An error where a later change touched one of them too: that is to be undone first. Forgotten ones stay away.
        """

    def history(self, limit: int | None = None, id: str | None = None) -> list[Change]:
        """List the changes, newest first; with an id those that touched this document and can be told."""

    def vacuum(self, keep: timedelta | None = None) -> None:
        """Give back the space of what was removed, drop labels that nothing carries or rejects and that came later.

        With `keep` the history before that age becomes unable to be undone, and what it kept for that goes too.
        """

    def select(self, where: Where) -> list[str]:
        """List the ids of the documents that are meant, oldest first."""

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return stored documents in the order of the ids; an unknown id is an error, or left out if `missing_ok`."""

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the texts of stored documents by id; unknown ids are left out."""

    def vectors(self, ids: Sequence[str]) -> Tensor:
        """Return the (n,d) unit vectors of stored documents in the order of the ids; an unknown id is an error."""

    def export(self, size: int = 1024) -> Iterator[tuple[list[Document], Tensor]]:
        """Go through all documents of one moment, oldest first, with their (n,d) unit vectors, in parts of `size`."""

    def label_counts(self) -> dict[str, int]:
        """Count the stored documents of each label, in column order."""

    def search(self, queries: Tensor, k: int, exclude: Collection[str] = ()) -> Neighbours:
        """Find the k nearest documents by cosine for each of the (n,d) queries, leaving out excluded ids."""

    def refresh(self) -> bool:
        """Take in what other processes changed; return whether anything did."""

    def close(self) -> None:
        """Release files and connections."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Progress(Protocol):
    """What a shell shows of long work; every call may be ignored."""

    def start(self, stage: Stage) -> None:
        """Begin a stage."""
        return None

    def advance(self, done: int, **values: object) -> None:
        """Say how many units are done in all, and values worth showing."""
        return None

    def note(self, message: str) -> None:
        """Say one line that should stay on the screen."""
        return None


class Method(Protocol):
    """A multi-label system: learns a corpus, scores texts, survives disk.

    A class whose attribute `is_baseline` is true need not beat the most frequent labels to be written.
    """

    can_continue: ClassVar[bool] = False  # whether a training can begin with another model's weights
    can_refit: ClassVar[bool] = False  # whether all but the encoder can be learnt again from the datastore
    parameters: Any  # a frozen dataclass, the class's `Parameters`
    store: Datastore | None = None  # None where the method keeps no documents, and before `load`
    start: Path | None = None  # the folder of a model whose weights `fit` begins with, if the method can
    kept: Any = None  # where a first try leaves what a second one would compute again; None: there is no second

    @classmethod
    def plan(
        cls, parameters: Any, corpus: Corpus, clock: Clock, progress: Progress, start: Path | None, resumed: bool
    ) -> Any:
        """Return the parameters with what they leave open to corpus, machine and time, and say what will be done.

        `start` is the folder of a model that is continued; `resumed` says that an interrupted training is taken up.
        """
        return parameters

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Learn the corpus, keeping resumable state in `workdir`, within the time that the clock leaves."""

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts in order; a text is no evidence for itself where `own_ids` names its stored document."""

    def embed_ahead(self, batches: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str], Tensor | None]]:
        """Yield batches of texts with what can be prepared for `scores` while others are scored: here nothing."""
        return ((batch, None) for batch in batches)

    def first(self) -> AbstractContextManager[None]:
        """Give what is done inside priority over what `embed_ahead` prepares."""
        return nullcontext()

    def finish_behind(self, batches: Iterable[Scored], finish: Callable[[Scored], Finished]) -> Iterator[Finished]:
        """Finish scored batches in order; a method may score the next one meanwhile: here it does not."""
        return map(finish, batches)

    def save(self, folder: Path) -> None:
        """Write weights and whatever else scoring needs into an empty folder; no pickle."""

    def calibrate(self, documents: Sequence[Document], folder: Path, progress: Progress) -> Calibrated | None:
        """Learn from validation documents what is left to learn, and add it to the folder that this was loaded from.

        None where there is nothing left to learn.
        """
        return None

    def measure_familiarity(self, folder: Path) -> None:
        """Measure how near stored documents are to each other, and add it to the folder that this was loaded from."""
        return None

    def alternatives(self, scores: Scores) -> Mapping[str, Tensor]:
        """Return (n,L) scores that other ways to combine the same parts would give, by name."""
        return {}

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
        """Return the words that speak for each of some labels of each text, the strongest first, with their weight."""
        return [[[] for _ in some] for some in columns]


class Retriever(Method, Protocol):
    """A method that keeps documents in a datastore and lets the nearest of them vote."""

    network: Any  # a Classifier
    names: tuple[str, ...]  # the labels that it was trained on
    store: Datastore
    witnesses: dict[str, Witness]

    def scores(
        self,
        texts: Sequence[str],
        own_ids: Sequence[str | None] | None = None,
        embeddings: Tensor | None = None,
    ) -> Scores:
        """Score texts in order, with their embeddings where `embed_ahead` gave them."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed texts as the datastore keeps them: (n,d)."""

    def search(
        self,
        embeddings: Tensor,
        k: int,
        own_ids: Sequence[str | None] | None = None,
        exclude: Collection[str] = (),
    ) -> Neighbours:
        """Find the k nearest documents of embedded texts; `own_ids` names the stored document that each itself is."""

    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Let neighbours vote: (n,L)."""

    def recall(self, scores: Scores, texts: Sequence[str]) -> Scores:
        """Let what is stored about these very texts decide on their scores."""
        return scores

    def hear(self, texts: Texts, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return what each witness says of texts: (n,L), NaN for labels that it cannot know; on the CPU if not told."""

    def combine(self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None) -> Scores:
        """Weigh what witnesses say of texts with these neighbours; by another γ where one is given."""


class Witness(Protocol):
    """One way to score the labels of texts; a combiner learns how far to trust it."""

    name: ClassVar[str]

    @classmethod
    def fit(cls, corpus: Corpus, method: Retriever, progress: Progress, seconds: float) -> Self | None:
        """Learn the training documents before the encoder does; None, with a note, if the seconds do not suffice."""
        return cls.load(Path(), method)

    @property
    def is_complete(self) -> bool:
        """Whether the time sufficed for every label; if not, a resumed training learns again."""
        return True

    def scores(self, texts: Texts) -> Tensor:
        """Score texts: (n,L) in [0,1], in the order of the labels; NaN for any that it cannot know.

        Those at the end, which came after the training, may also be missing.
        """

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
        """Return the words that speak for each of some labels of each text, the strongest first, with their weight."""
        return [[[] for _ in some] for some in columns]

    def knows_word(self, word: str) -> bool:
        """Tell whether it has met a word, in lower case, in several training documents."""
        return False

    def save(self, folder: Path) -> None:
        """Write what scoring needs, if anything, into a new folder that it makes; no pickle."""
        return None

    @classmethod
    def load(cls, folder: Path, method: Retriever) -> Self:
        """Read what `save` wrote."""


class Combiner(Protocol):
    """Turns the scores of witnesses into one for each text and label."""

    @property
    def hears(self) -> Collection[str]:
        """The witnesses that it cannot do without."""

    held_out: Tensor | None  # after `fit`: (n,L) scores of validation texts by a combiner that never saw their labels

    def fit(self, parts: Parts, gold: Tensor, context: Context) -> Mapping[str, object]:
        """Learn from the (n,L) bool gold labels of validation texts; return facts for the bundle, fit for JSON."""

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return the (n,L) final scores in [0,1]; labels that some witness does not know get the mean of the others."""

    def save(self, folder: Path) -> None:
        """Write what `load` needs, without pickle."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; a damaged file is a BundleError."""


class Encoder(Protocol):
    """A torch module that reads texts for a network, and whose weights train with it."""

    @property
    def max_length(self) -> int:
        """The most tokens that it reads of a text."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def pass_tokens(self) -> int:
        """Tokens that a pass of inference takes."""

    @property
    def kernels(self) -> object | None:
        """CUDA kernels of its own, with which training steps can be recorded; None without."""

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Turn texts into tokens on the CPU."""

    def autocast(self) -> AbstractContextManager[object]:
        """Choose the precision of the matrix products in a `with` block."""

    def save(self, folder: Path) -> None:
        """Write what loading needs into a folder that does not exist yet."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Go through the weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Go through the weights with their names."""

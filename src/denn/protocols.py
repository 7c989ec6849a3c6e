"""Interfaces for plug-ins: methods, witnesses, combiners, encoders, and progress displays; see also `Datastore`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch import Tensor, nn

    from denn.clock import Clock
    from denn.datastore import Datastore
    from denn.encoders.tokens import Tokens
    from denn.prediction_types import Calibrated, Context, Neighbours, Parts, Scores, Support
    from denn.types import Corpus, Document, Fitted, Stage
    from denn.witnesses.texts import Texts

Scored = TypeVar("Scored")
Finished = TypeVar("Finished")


class Progress(Protocol):
    """Shows the progress of long work; an implementation may ignore any call."""

    def start(self, stage: Stage) -> None:
        """Start a stage."""
        return None

    def advance(self, done: int, **values: object) -> None:
        """Report how many units are done in total, and values worth showing."""
        return None

    def note(self, message: str) -> None:
        """Show one line that stays on the screen."""
        return None


class Method(Protocol):
    """A multi-label system that learns a corpus, scores texts, and can be saved and loaded.

    If the class attribute `is_baseline` is true, a model need not beat the most frequent labels to be written.
    """

    can_continue: ClassVar[bool] = False  # whether training can start with another model's weights
    can_refit: ClassVar[bool] = False  # whether everything but the encoder can be learnt again from the datastore
    parameters: Any  # a frozen dataclass, the class's `Parameters`
    store: Datastore | None = None  # None if the method keeps no documents, and before `load`
    start: Path | None = None  # folder of a model whose weights `fit` starts with, if the method supports that
    kept: Any = None  # where a first try leaves results for a second one; None: there is no second

    @classmethod
    def plan(
        cls, parameters: Any, corpus: Corpus, clock: Clock, progress: Progress, start: Path | None, resumed: bool
    ) -> Any:
        """Return the parameters with open choices settled for the corpus, machine and time, and report the plan.

        `start` is the folder of the model to continue from; `resumed` means that an interrupted run is resumed.
        """
        return parameters

    def fit(self, corpus: Corpus, workdir: Path, progress: Progress, clock: Clock | None = None) -> Fitted:
        """Learn the corpus within the time that the clock leaves, keeping resumable state in `workdir`."""

    def scores(self, texts: Sequence[str], own_ids: Sequence[str | None] | None = None) -> Scores:
        """Score texts in order, excluding the stored document named in `own_ids` from each text's evidence."""

    def embed_ahead(self, batches: Iterable[Sequence[str]]) -> Iterator[tuple[Sequence[str], Tensor | None]]:
        """Yield batches of texts with what can be prepared for `scores` while others are scored: nothing by default."""
        return ((batch, None) for batch in batches)

    def first(self) -> AbstractContextManager[None]:
        """Give the work inside the `with` block priority over what `embed_ahead` prepares."""
        return nullcontext()

    def finish_behind(self, batches: Iterable[Scored], finish: Callable[[Scored], Finished]) -> Iterator[Finished]:
        """Finish scored batches in order; a method may score the next one meanwhile, but this default does not."""
        return map(finish, batches)

    def save(self, folder: Path) -> None:
        """Write weights and everything else that scoring needs into an empty folder, without pickle."""

    def calibrate(self, documents: Sequence[Document], folder: Path, progress: Progress) -> Calibrated | None:
        """Learn the rest from validation documents, and add it to the folder that this method was loaded from.

        Return None if there is nothing left to learn.
        """
        return None

    def calibrate_on_all(
        self, documents: Sequence[Document], folder: Path, progress: Progress, head_epochs: int, clock: Clock
    ) -> Calibrated | None:
        """Do what `calibrate` does with few validation documents and the training documents; None if that is not due.

        Only a new head was trained, for some epochs.
        """
        return None

    def measure_familiarity(self, folder: Path) -> None:
        """Measure how close stored documents are to each other, and add it to the folder this was loaded from."""
        return None

    def alternatives(self, scores: Scores) -> Mapping[str, Tensor]:
        """Return the (n,L) scores of other combinations of the same parts, by name."""
        return {}

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
        """Return the words that support each of some labels of each text, strongest first, with their weights."""
        return [[[] for _ in some] for some in columns]


class Retriever(Method, Protocol):
    """A method that keeps documents in a datastore and lets the nearest ones vote."""

    network: Any  # a Classifier
    names: tuple[str, ...]  # labels that it was trained on
    store: Datastore
    witnesses: dict[str, Witness]

    def scores(
        self,
        texts: Sequence[str],
        own_ids: Sequence[str | None] | None = None,
        embeddings: Tensor | None = None,
    ) -> Scores:
        """Score texts in order, with their embeddings if `embed_ahead` computed them."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Embed texts for the datastore: (n,d)."""

    def search(
        self,
        embeddings: Tensor,
        k: int,
        own_ids: Sequence[str | None] | None = None,
        exclude: Collection[str] = (),
    ) -> Neighbours:
        """Find the k nearest documents of embedded texts; `own_ids` names the stored document of each text itself."""

    def votes(self, found: Neighbours, labels: int) -> Tensor:
        """Let neighbours vote: (n,L)."""

    def recall(self, scores: Scores, texts: Sequence[str]) -> Scores:
        """Let stored documents with the same text decide the scores."""
        return scores

    def hear(self, texts: Texts, device: torch.device | None = None) -> dict[str, Tensor]:
        """Return each witness's scores: (n,L), NaN for labels that it does not know; on the CPU by default."""

    def combine(self, parts: Mapping[str, Tensor], found: Neighbours, gamma: float | None = None) -> Scores:
        """Combine the witnesses' scores of texts with these neighbours; `gamma` replaces the method's own γ."""


class Witness(Protocol):
    """One way to score the labels of texts; a combiner learns how much to trust it."""

    name: ClassVar[str]

    @classmethod
    def fit(cls, corpus: Corpus, method: Retriever, progress: Progress, seconds: float) -> Self | None:
        """Learn the training documents before the encoder does; return None, with a note, if time is too short."""
        return cls.load(Path(), method)

    @property
    def is_complete(self) -> bool:
        """Whether there was enough time for every label; if not, a resumed run learns again."""
        return True

    def scores(self, texts: Texts) -> Tensor:
        """Score texts: (n,L) in [0,1], in the order of the labels; NaN for labels that it does not know.

        The last columns, for labels added after training, may be missing.
        """

    def support(self, texts: Sequence[str], columns: Sequence[Sequence[int]]) -> Support:
        """Return the words that support each of some labels of each text, strongest first, with their weights."""
        return [[[] for _ in some] for some in columns]

    def knows_word(self, word: str) -> bool:
        """Return whether a word, in lower case, occurs in several training documents."""
        return False

    def save(self, folder: Path) -> None:
        """Write what scoring needs, if anything, into a new folder that it creates, without pickle."""
        return None

    @classmethod
    def load(cls, folder: Path, method: Retriever) -> Self:
        """Read what `save` wrote."""


class Combiner(Protocol):
    """Turns the scores of witnesses into one score for each text and label."""

    @property
    def hears(self) -> Collection[str]:
        """The witnesses that it requires."""

    held_out: Tensor | None  # after `fit`: (n,L) scores of validation texts by a combiner fitted without their labels

    def fit(self, parts: Parts, gold: Tensor, context: Context) -> Mapping[str, object]:
        """Learn from the (n,L) bool gold labels of validation texts; return facts for the bundle, as JSON values."""

    def combine(self, parts: Parts, context: Context) -> Tensor:
        """Return the (n,L) final scores in [0,1]; a label unknown to some witness gets the mean of the others."""

    def save(self, folder: Path) -> None:
        """Write what `load` needs, without pickle."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what `save` wrote; a damaged file is a BundleError."""


class Encoder(Protocol):
    """A torch module that encodes texts for a network, and whose weights train with it."""

    @property
    def max_length(self) -> int:
        """The maximum number of tokens per text."""

    @property
    def device(self) -> torch.device:
        """The device of the weights."""

    @property
    def pass_tokens(self) -> int:
        """The number of tokens per inference pass."""

    @property
    def kernels(self) -> object | None:
        """The encoder's own CUDA kernels, which allow recording training steps; None if it has none."""

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenize texts on the CPU."""

    def autocast(self) -> AbstractContextManager[object]:
        """Set the precision of matrix products in a `with` block."""

    def save(self, folder: Path) -> None:
        """Write what loading needs into a folder that does not exist yet."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Iterate over the weights."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Iterate over the weights with their names."""

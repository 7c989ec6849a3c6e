"""`denn train`: from a corpus to a model."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from denn.cli.options import (
    Combination,
    DataDir,
    Effort,
    Method,
    Optimise,
    Quiet,
    Replace,
    Seed,
    Verbose,
    Vocabulary,
    VocabularyLanguage,
    duration,
    finite,
    model_folder,
)
from denn.cli.sources import Reading, open_corpus, with_reading

if TYPE_CHECKING:
    from denn.bundle import Card
    from denn.clock import Clock
    from denn.model import Model
    from denn.refusals import Existing

log = logging.getLogger(__name__)


@with_reading
def train(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="A file, or a name from `denn data list`.")],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    valid: Annotated[Path | None, typer.Option(help="File to validate on; default: a share of CORPUS.")] = None,
    valid_share: Annotated[float, typer.Option(callback=finite, help="Share of CORPUS to validate on.")] = 0.1,
    vocabulary: Vocabulary = None,
    vocabulary_language: VocabularyLanguage = None,
    effort: Effort = None,
    from_model: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Continue from this model: its weights, labels and settings.",
            parser=model_folder,
        ),
    ] = None,
    with_store: Annotated[
        bool, typer.Option("--with-store", help="With --from: also learn from the documents that the model stores.")
    ] = False,
    method: Method = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder: minilm, mpnet, a folder or a hub name.")] = None,
    combination: Combination = None,
    optimise: Optimise = None,
    recipe: Annotated[Path | None, typer.Option(help="TOML file with a method and parameters.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any parameter; repeatable.")
    ] = None,
    time_budget: Annotated[
        float | None, typer.Option(parser=duration, metavar="TIME", help="Finish within this time: 90s, 5m or 1h30m.")
    ] = None,
    seed: Seed = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an unfinished training run.")] = False,
    replace: Replace = False,
    allow_poor: Annotated[
        bool,
        typer.Option("--allow-poor", help="Write the model even if always giving the most frequent labels is as good."),
    ] = False,
    data_dir: DataDir = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a model on a corpus.

    Parameters come from the recipe, then from the options, then from --set; the last value wins. A recipe, or epochs,
    without --effort means one fine-tuning. If training is interrupted, run the same command again to resume.
    """
    from denn import bundle
    from denn.build import train as build
    from denn.cli.progress import watching
    from denn.cli.show import interruptible
    from denn.data.vocabularies import read_vocabulary

    given = {
        "encoder": encoder,
        "combination": combination,
        "optimise": optimise,
        "effort": effort,
        "time_budget": time_budget,
        "seed": seed,
    }
    chosen, parameters = _settings(recipe, method, given, settings or [])
    if from_model is not None:
        bundle.read(from_model)  # what is wrong with it is said before a corpus is read
    replace, clock = _agreed(out, replace, parameters.get("time_budget"))
    with interruptible("interrupted; run the same command again to resume"):
        names = None if vocabulary is None else read_vocabulary(vocabulary, language=vocabulary_language)
        documents = open_corpus(corpus, data_dir, reading, valid, valid_share, names)
        with watching() as progress:
            model = build(
                documents, out=out, method=chosen, progress=progress, restart=restart, replace=replace,
                allow_poor=allow_poor, clock=clock, continue_from=from_model, with_store=with_store, **parameters,
            )  # fmt: skip
    with model:
        for line in summary(out, model):
            log.info(line)


def _settings(
    recipe: Path | None, method: str | None, given: dict[str, Any], settings: list[str]
) -> tuple[str, dict[str, Any]]:
    """Return the method and its parameters: the recipe's, then the options', then those of --set."""
    from denn.build import Silent
    from denn.config import accepts, make_recipe, parse_settings, read_recipe
    from denn.methods.effort import with_effort

    written, parameters = (None, {}) if recipe is None else read_recipe(recipe)
    chosen = method or written or "denn"
    parameters = parameters | {name: value for name, value in given.items() if value is not None}
    parameters |= parse_settings(settings)
    make_recipe(chosen, parameters)  # a misspelt name is said before a corpus is read
    if recipe is not None and accepts(chosen, "effort"):
        parameters.setdefault("effort", None)
    with_effort(chosen, parameters, Silent())  # and so is what does not go together
    return chosen, parameters


def _agreed(out: Path, replace: bool, time_budget: float | None) -> tuple[bool, Clock]:
    """Ask whether to replace an existing model before reading a corpus; the clock does not count the wait."""
    from denn import cli
    from denn.clock import Clock
    from denn.refusals import existing_model

    asked = time.monotonic()
    replace = may_replace(existing_model(out), replace)
    return replace, Clock(time_budget, cli.begun + time.monotonic() - asked)


def may_replace(existing: Existing | None, replace: bool) -> bool:
    """Return whether a model that is there may be replaced: a terminal is asked, elsewhere --replace is required."""
    from denn.errors import TrainingError

    if existing is None or replace:
        return replace
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise TrainingError(existing.refusal)
    if not typer.confirm(f"{existing.description} Replace it?", err=True):
        raise TrainingError("Nothing was changed.")
    return True


def summary(out: Path, model: Model) -> list[str]:
    """Say where the model is, how good it is, how it decides, and what to do with it."""
    from denn.report.combination import combination_of

    card = model.card
    cut, metrics = card.training.get("documents_cut"), card.metrics
    lines = [f"The model is in {out}: {card.method}, {len(card.corpus['label_counts'])} labels."]
    if metrics:
        lines.append(
            f"On {card.corpus['valid']} validation documents: micro F1 {100 * metrics['micro_f1']:.1f}, macro F1 "
            f"{100 * metrics['macro_f1']:.1f}, at the threshold {card.thresholds['final'].overall:.2f} tuned on them."
        )
    if heard := combination_of(card):
        lines.append(heard.sentence)
    if card.training.get("frozen") and (heard is None or heard.needs_encoder):
        lines.append(_why_frozen(card))
    if collapses := card.training.get("collapses"):
        times = "once" if len(collapses) == 1 else f"{len(collapses)} times"
        lines.append(
            f"The training collapsed {times}, the last time by step {collapses[-1]['step']} ({collapses[-1]['why']}), "
            "and these are the best weights from before; a lower learning rate may give a better model."
        )
    if cut is not None:
        lines.append(
            f"{cut} of {card.corpus['train']} documents were cut at {card.training['max_length']} tokens, the longest "
            "this model reads."
        )
    if card.training.get("documents_used") != card.training.get("documents_given"):
        lines.append(
            f"There was time to learn from {card.training['documents_used']:,} of "
            f"{card.training['documents_given']:,} documents."
        )
    evidence = " --evidence" if model.method.store is not None else ""
    return [*lines, f"Next: denn predict {shlex.quote(str(out))} texts.txt{evidence}"]


def _why_frozen(card: Card) -> str:
    """Say why the encoder of a model is as it was, and what could be done."""
    compared = card.training.get("effort")
    if card.parameters.get("effort") == "quick":
        return "The encoder was kept as it is; --effort balanced also fine-tunes it."
    if compared and compared["fine_tuned"] is not None:
        return "Fine-tuning made the model no better on validation documents, so the encoder was kept as it is."
    return "The time budget was too short to train the encoder; with more time the model gets better."

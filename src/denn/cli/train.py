"""`denn train`: train a model on a corpus."""

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
from denn.wording import counted

if TYPE_CHECKING:
    from denn.bundle_card import Card
    from denn.clock import Clock
    from denn.model import Model
    from denn.refusals import Existing

log = logging.getLogger(__name__)

VALID_SHARE = 0.1  # of the corpus, unless there is a validation file


@with_reading
def train(
    corpus: Annotated[
        str,
        typer.Argument(
            metavar="CORPUS", help="File or folder of labelled documents, or corpus name from `denn data list`."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the model to.")],
    valid: Annotated[Path | None, typer.Option(help="Validation file; default: a share of CORPUS.")] = None,
    valid_share: Annotated[
        float | None, typer.Option(callback=finite, help="Share of CORPUS to use for validation.  [default: 0.1]")
    ] = None,
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
        bool, typer.Option("--with-store", help="With --from, also train on the documents in the model's datastore.")
    ] = False,
    method: Method = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Encoder: minilm, mpnet, a folder or a hub name; default: minilm, or mpnet with --effort best."
        ),
    ] = None,
    combination: Combination = None,
    optimise: Optimise = None,
    recipe: Annotated[Path | None, typer.Option(help="TOML file with the method and its parameters.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any parameter; repeatable.")
    ] = None,
    time_budget: Annotated[
        float | None,
        typer.Option(parser=duration, metavar="TIME", help="Time limit, such as 90s, 5m or 1h30m; default: none."),
    ] = None,
    seed: Seed = None,
    restart: Annotated[bool, typer.Option("--restart", help="Discard an unfinished training run.")] = False,
    replace: Replace = False,
    allow_poor: Annotated[
        bool,
        typer.Option(
            "--allow-poor",
            help="Keep the model even if it is no better than always predicting the most frequent labels.",
        ),
    ] = False,
    data_dir: DataDir = None,
    *,
    reading: Reading,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train a model on a corpus.

    Options override the recipe, and --set overrides both. A recipe or a number of epochs without --effort fine-tunes
    once. If training is interrupted, run the same command again to resume.
    """
    from denn import bundle
    from denn.build import train as build
    from denn.cli.progress import watching
    from denn.cli.show import interruptible
    from denn.data.vocabularies import read_vocabulary
    from denn.training.processes import joined

    if valid is not None and valid_share is not None:
        raise typer.BadParameter("give --valid or --valid-share, not both")
    if vocabulary_language is not None and vocabulary is None:
        raise typer.BadParameter("--vocabulary-language needs --vocabulary. Add it, or omit --vocabulary-language")
    with joined() as team:
        if team and team.rank:
            team.follow()
            return
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
            bundle.read(from_model)  # report a bad model before reading the corpus
        replace, clock = _agreed(out, replace, parameters.get("time_budget"))
        with interruptible("interrupted; run the same command again to resume"):
            names = None if vocabulary is None else read_vocabulary(vocabulary, language=vocabulary_language)
            documents = open_corpus(
                corpus, data_dir, reading, valid, VALID_SHARE if valid_share is None else valid_share, names
            )
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
    """Return the method and its parameters; options override the recipe, and --set overrides both."""
    from denn.config import accepts, make_recipe, parse_settings, read_recipe
    from denn.methods.effort import with_effort
    from denn.progress import Plain

    written, parameters = (None, {}) if recipe is None else read_recipe(recipe)
    chosen = method or written or "denn"
    parameters = parameters | {name: value for name, value in given.items() if value is not None}
    parameters |= parse_settings(settings)
    make_recipe(chosen, parameters)  # report a misspelt name before reading the corpus
    if recipe is not None and accepts(chosen, "effort"):
        parameters.setdefault("effort", None)
    with_effort(chosen, parameters, Plain(lambda _: None))  # likewise for incompatible settings; training shows notes
    return chosen, parameters


def _agreed(out: Path, replace: bool, time_budget: float | str | None) -> tuple[bool, Clock]:
    """Ask whether to replace an existing model before reading the corpus; exclude the wait from the time budget."""
    from denn import cli
    from denn.clock import Clock, read_budget
    from denn.refusals import existing_model

    asked = time.monotonic()
    replace = may_replace(existing_model(out), replace)
    return replace, Clock(read_budget(time_budget), cli.begun + time.monotonic() - asked)


def may_replace(existing: Existing | None, replace: bool) -> bool:
    """Return whether to replace an existing model: ask on a terminal, require --replace elsewhere."""
    from denn.errors import TrainingError

    if existing is None or replace:
        return replace
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise TrainingError(existing.refusal)
    if not typer.confirm(f"{existing.description} Replace it?", err=True):
        raise TrainingError("Nothing was changed.")
    return True


def summary(out: Path, model: Model) -> list[str]:
    """Return sentences on where the model is, how good it is, how it decides, and what to do next."""
    from denn.report.combination import combination_of

    card = model.card
    cut, metrics = card.training.get("documents_cut"), card.metrics
    lines = [f"The model is in {out}: {card.method}, {counted(len(card.corpus['label_counts']), 'label')}."]
    if metrics:
        lines.append(
            f"On {card.judged_on}: micro-F1 {100 * metrics['micro_f1']:.1f}, "
            f"macro-F1 {100 * metrics['macro_f1']:.1f}, {card.thresholds['final'].sentence}."
        )
    if combination := combination_of(card):
        lines.append(combination.sentence)
    if card.training.get("frozen") and (combination is None or combination.needs_encoder):
        lines.append(_why_frozen(card))
    if collapses := card.training.get("collapses"):
        times = "once" if len(collapses) == 1 else f"{len(collapses)} times"
        lines.append(
            f"Training collapsed {times}, most recently at step {collapses[-1]['step']} ({collapses[-1]['why']}). The "
            "model uses the best weights from before; a lower learning rate may give a better model."
        )
    if cut is not None:
        lines.append(
            f"Documents truncated to the maximum length of {card.training['max_length']} tokens: {cut:,} of "
            f"{card.corpus['train']:,}."
        )
    if card.training.get("documents_used") != card.training.get("documents_given"):
        lines.append(
            f"The time budget allowed training on {card.training['documents_used']:,} of "
            f"{counted(card.training['documents_given'], 'document')}."
        )
    evidence = " --evidence" if model.method.store is not None else ""
    return [*lines, f"Next: denn predict {shlex.quote(str(out))} texts.txt{evidence}"]


def _why_frozen(card: Card) -> str:
    """Return a sentence on why the encoder was not fine-tuned, and what to do about it."""
    compared = card.training.get("effort")
    if card.parameters.get("effort") == "quick":
        few = ", because so few documents cannot show whether that helps" if card.training.get("cross_fitted") else ""
        return f"The encoder was not fine-tuned{few}; --effort balanced fine-tunes it."
    if compared and compared["fine_tuned"] is not None:
        return "Fine-tuning did not improve the model on the validation documents, so the original encoder was kept."
    return "The time budget was too short to fine-tune the encoder; a longer one may give a better model."

"""`denn demo`: train on Debian's tagged packages, compare with a baseline, suggest tags for untagged packages."""

from __future__ import annotations

import os
import platform
import random
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from denn.cli import show
from denn.cli.output import check_folder, writing
from denn.data.rows import as_line
from denn.prediction_types import Prediction
from denn.report.combination import combination_of, system_names
from denn.strict_json import dumps
from denn.types import Corpus, Document
from denn.wording import counted, span

if TYPE_CHECKING:
    from denn.model import Model

Packages = Callable[[], tuple[list[Document], list[Document]]]  # returns tagged and untagged documents

NAME = "debian"  # the corpus
VALID, TEST = 500, 1500  # maximum number of packages
SETTINGS: Mapping[str, Any] = {
    "encoder": "minilm",
    "max_length": 64,  # name, summary and first sentences are as informative as the whole text
    "embedding_norm": 6.0,
    "head_start": 10,
    "batch_size": 8,  # in a short run, many small steps learn more than few large ones
    "epochs": 4,
    "schedule": "linear",
    "trained_layers": "auto",
    "learning_rate": 2e-4,
    "head_learning_rate": 2e-3,
    "alpha": 0.01,
    "vote_temperature": 0.1,
}
SUGGESTED, EVIDENCE = 5, 3  # number of untagged packages to show, and of neighbours for each
SUPPORTING = 3  # number of words to show for each tag
WORDS = range(30, 151)  # length of a description worth showing
HELPERS = re.compile(r"^lib|-(data|dbg|dbgsym|dev|doc|docs|l10n)$")  # packages that only support other packages
SVMS = {"SVM at 0": "TF-IDF + SVM, at 0", "SVM tuned": "TF-IDF + SVM, tuned"}
METRICS = {
    "P": "micro_precision",
    "R": "micro_recall",
    "micro\nF1": "micro_f1",
    "macro\nF1": "macro_f1",
    "supp.\nF1": "supported_macro_f1",
    "doc.\nF1": "example_f1",
    "empty": "empty_predictions",
}
LEGEND = (
    "All values in percent, at thresholds tuned on the validation packages. P, R: micro precision and recall; macro "
    "F1: mean over all tags; supp. F1: mean over the tags that occur in the test; doc. F1: mean over packages; empty: "
    "packages without a suggestion."
)


@dataclass(frozen=True)
class Comparison:
    """Scores of each system on the test packages."""

    systems: Mapping[str, Mapping[str, float]]  # system → metric → value
    bands: Mapping[str, Sequence[Mapping[str, Any]]]  # tags grouped by training frequency, for "SVM tuned" and "final"


@dataclass(frozen=True)
class Suggestion:
    """Suggested tags for an untagged package."""

    package: str
    description: str  # its first line
    prediction: Prediction


def run(
    out: Path,
    *,
    budget: float,
    documents: int,
    seed: int,
    quiet: bool,
    replace: bool = False,
    packages: Packages | None = None,
    settings: Mapping[str, Any] = SETTINGS,
) -> None:
    """Train on at most `documents` packages for `budget` seconds, evaluate the model, and suggest tags.

    Writes the model, the test packages (`test.jsonl`) and all numbers shown (`report.json`) to `out`. Replaces the
    model of an earlier demo without asking, unless its datastore was changed. `packages` and `settings` override
    Debian's packages and the settings tuned for them.
    """
    from denn.build import train
    from denn.cli.progress import watching
    from denn.cli.train import may_replace
    from denn.progress import Silent
    from denn.refusals import existing_model

    check_folder(out, "--out")
    existing = existing_model(out / "model")
    ours = existing is not None and existing.corpus == NAME and not existing.loss
    replace = may_replace(existing, replace or ours)
    begun = time.monotonic()
    stages: dict[str, float] = {}

    def reached(stage: str) -> None:
        stages[stage] = round(time.monotonic() - begun - sum(stages.values()), 1)

    tagged, untagged = (packages or _debian)()
    corpus = parts(tagged, documents, seed)
    reached("corpus")
    _show_corpus(corpus, len(tagged), len(untagged))
    out.mkdir(parents=True, exist_ok=True)
    with nullcontext(Silent()) if quiet else watching() as progress:
        chosen = {
            **settings,
            "time_budget": budget,
            "seed": seed,
            "allow_poor": True,
        }  # the comparison shows how good it is
        model = train(corpus, out=out / "model", progress=progress, restart=True, replace=replace, **chosen)
    _write_test(out / "test.jsonl", corpus.test)
    reached("training")
    with model:
        comparison = compare(model, corpus)
        reached("comparison")
        _show_comparison(comparison, system_names(comparison.systems, model.card) | SVMS, len(corpus.test))
        if combination := combination_of(model.card):
            show.console().print(combination.sentence)
        suggestions = suggest(model, untagged, seed)
        reached("suggestions")
        _show_suggestions(suggestions, model.card.thresholds["final"].overall)
        report = _report(model, corpus, len(untagged), comparison, suggestions) | {"seed": seed, "seconds": stages}
    with writing(out / "report.json") as file:
        file.write(dumps(report, f"The report {out / 'report.json'}", indent=1, ensure_ascii=False).encode() + b"\n")
    _show_end(out, sum(stages.values()))


def _debian() -> tuple[list[Document], list[Document]]:
    from denn.data.debian import load_debian
    from denn.encoders.weights import cache_folder

    return load_debian(cache_folder() / "debian")


def parts(tagged: Sequence[Document], documents: int, seed: int) -> Corpus:
    """Draw test, validation and training packages; a small corpus gives a fifth to the test, a tenth to validation."""
    drawn = random.Random(seed).sample(list(tagged), len(tagged))
    test = min(TEST, len(drawn) // 5)
    train = test + min(VALID, len(drawn) // 10)
    return Corpus(drawn[train : train + documents], drawn[test:train], drawn[:test], name=NAME)


def _write_test(path: Path, documents: Sequence[Document]) -> None:
    """Write the test packages as JSON lines."""
    with writing(path) as file:
        file.writelines(map(as_line, documents))


def compare(model: Model, corpus: Corpus) -> Comparison:
    """Evaluate the model, its parts and an SVM, trained on the same packages, on the test packages."""
    from denn.core.metrics import all_scores, frequency_bands
    from denn.evaluation import BAND_EDGES
    from denn.registry import METHODS, lookup

    found = model.evaluate(corpus.test)
    svm = lookup(METHODS, "br", "method")
    decisions = svm.decision_scores(
        corpus.train, [document.text for document in (*corpus.valid, *corpus.test)], corpus.labels
    )
    valid, test = decisions[: len(corpus.valid)], decisions[len(corpus.valid) :]
    cutoffs = {"SVM at 0": 0.0, "SVM tuned": svm.tune_decision(valid, corpus.labels.matrix(corpus.valid))}
    gold = corpus.labels.matrix(corpus.test)
    systems = {name: all_scores(test > cutoff, gold, test) | {"threshold": cutoff} for name, cutoff in cutoffs.items()}
    counts = corpus.labels.matrix(corpus.train).sum(0)
    bands = frequency_bands(counts, test > cutoffs["SVM tuned"], gold, BAND_EDGES)
    return Comparison(
        systems | {name: thresholds["tuned"] for name, thresholds in found.systems.items()},
        {"SVM tuned": [asdict(band) for band in bands], "final": list(found.bands)},
    )


def suggest(model: Model, untagged: Sequence[Document], seed: int) -> list[Suggestion]:
    """Suggest tags for random packages that have a description of some length and do not only support others."""
    worth = [d for d in untagged if len(d.text.split()) in WORDS and not HELPERS.search(str(d.id))]
    drawn = random.Random(seed).sample(worth, min(SUGGESTED, len(worth)))
    predictions = model.predict([document.text for document in drawn], min_labels=1, evidence=EVIDENCE)
    return [
        Suggestion(str(document.id), document.text.split("\n", 1)[0], prediction)
        for document, prediction in zip(drawn, predictions, strict=True)
    ]


def _show_corpus(corpus: Corpus, tagged: int, untagged: int) -> None:
    """Print the sizes of the corpus and its parts."""
    show.console().print(
        f"Debian packages from apt's package lists: {tagged:,} tagged, {untagged:,} untagged. Sample of the tagged "
        f"packages: {len(corpus.train):,} for training, {len(corpus.valid):,} for validation, {len(corpus.test):,} "
        f"for testing, with {len(corpus.labels):,} different tags."
    )


def _show_comparison(comparison: Comparison, names: Mapping[str, str], documents: int) -> None:
    """Print the scores of each system, then F1 by tag frequency."""
    say = show.console().print
    say(f"\nScores on {counted(documents, 'test package')}:")
    rows = [
        [names[system], *(f"{100 * metrics[metric]:.1f}" for metric in METRICS.values())]
        for system, metrics in comparison.systems.items()
    ]
    show.table(["", *METRICS], rows)
    say(LEGEND)
    lead = {metric: 100 * lead_over_svm(comparison, metric) for metric in ("micro_f1", "macro_f1")}
    say(
        f"denn compared with the better of the two SVMs: micro-F1 {lead['micro_f1']:+.1f}, macro-F1 "
        f"{lead['macro_f1']:+.1f} points.\n\nTags by number of training packages:"
    )
    rows = [
        [svm["name"], str(svm["labels"]), str(svm["supported"])]
        + [f"{100 * band[metric]:.1f}" for metric in ("micro_f1", "macro_f1") for band in (svm, denn)]
        for svm, denn in zip(comparison.bands["SVM tuned"], comparison.bands["final"], strict=True)
        if svm["labels"]
    ]
    columns = [f"{metric} F1\n{system}" for metric in ("micro", "macro") for system in ("SVM", "denn")]
    show.table(["training\npackages", "tags", "in the\ntest", *columns], rows)


def lead_over_svm(comparison: Comparison, metric: str) -> float:
    """Return the lead of the model over the better of the two support vector machines."""
    systems = comparison.systems
    return systems["final"][metric] - max(systems["SVM at 0"][metric], systems["SVM tuned"][metric])


def _show_suggestions(suggestions: Sequence[Suggestion], threshold: float) -> None:
    """Print the suggested tags of each package, their evidence, and the nearest tagged packages."""
    say = show.console().print
    words = (
        " The last column shows words that support the tag." if any(one.prediction.words for one in suggestions) else ""
    )
    say(
        f"\nSuggestions for {counted(len(suggestions), 'random untagged package')} with descriptions of {WORDS[0]} to "
        f"{WORDS[-1]} words, excluding libraries, documentation and data. Each package gets the tags that score above "
        f"{threshold:.2f}, but at least one. The columns show the score of each witness; ● means that the neighbour "
        f"with this number has the tag.{words}"
    )
    for suggestion in suggestions:
        say(f"\n{suggestion.description}")
        _show_tags(suggestion.prediction)
        for number, one in enumerate(suggestion.prediction.neighbours, 1):
            line = f" {number}  {one.similarity:.2f}  {one.text.splitlines()[0]}"
            say(line, no_wrap=True, overflow="ellipsis")


def _show_tags(prediction: Prediction) -> None:
    """Print a line for each tag: scores, neighbours and any supporting words."""
    parts, words = prediction.parts, prediction.words
    witnesses = list(dict.fromkeys(name for tag in prediction.labels for name in parts.get(tag, {})))
    rows = []
    for tag in prediction.labels:
        scores = parts.get(tag, {})
        row = [tag, f"{prediction.scores[tag]:.2f}"]
        row += [f"{scores[name]:.2f}" if name in scores else "" for name in witnesses]
        row += ["●" if tag in one.labels else "" for one in prediction.neighbours]
        rows.append(row + [", ".join(word for word, _ in words.get(tag, ())[:SUPPORTING])] * bool(words))
    numbers = [str(number) for number, _ in enumerate(prediction.neighbours, 1)]
    headers = ["suggested tag", "score", *witnesses, *numbers, *["supporting words"] * bool(words)]
    show.table(headers, rows, words=(0, len(headers) - 1) if words else (0,))


def _show_end(out: Path, seconds: float) -> None:
    """Print where the results are and what to do next."""
    model, test, report = shlex.quote(str(out / "model")), shlex.quote(str(out / "test.jsonl")), out / "report.json"
    say = show.console().print
    say(f"\nDone in {span(seconds)}. The model is in {model}, and all numbers are in {report}. Next:")
    say(f"  echo 'a text editor for the terminal' | denn predict {model} --evidence", soft_wrap=True)
    say(f"  denn report {model} {test}   # a report as a web page", soft_wrap=True)
    say(f"  denn store add {model} yours.jsonl   # add packages and tags", soft_wrap=True)
    say(f"  denn serve {model} --teach   # tag, teach and browse", soft_wrap=True)


def _report(
    model: Model, corpus: Corpus, untagged: int, comparison: Comparison, suggestions: Sequence[Suggestion]
) -> dict[str, Any]:
    """Return all numbers shown, with versions and settings, for report.json."""
    sizes = {name: len(getattr(corpus, name)) for name in ("train", "valid", "test", "labels")}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        "versions": {**model.card.versions, "scikit-learn": metadata.version("scikit-learn")},
        "corpus": {"name": corpus.name, "untagged": untagged, **sizes},
        "settings": model.card.parameters,
        "training": model.card.training,
        "systems": comparison.systems,
        "bands": comparison.bands,
        "suggestions": [asdict(suggestion) for suggestion in suggestions],
    }

"""The report page: facts about the model and all sections that apply, in one self-contained file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path

from denn.bundle_card import Card
from denn.errors import ConfigError
from denn.evaluation import copies_sentence
from denn.model import Model
from denn.protocols import Progress
from denn.report import evidence, sections
from denn.report.combination import combination_of, listed, system_names, title
from denn.report.gather import Findings, gather
from denn.report.names import with_names
from denn.types import Document, Stage
from denn.wording import counted


def write(
    path: Path, model: Model, name: str, documents: Sequence[Document], valid: Sequence[Document], progress: Progress
) -> Findings:
    """Evaluate a model on documents and write the page; `name` is the title of the documents."""
    found = gather(model, documents, valid, progress)
    progress.start(Stage("writing the report"))
    page = render(with_names(found, model.vocabulary), model.card, name)
    partial = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(page, encoding="utf-8", errors="replace")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise ConfigError(f"Cannot write {path}: {error.strerror}.") from error
    return found


def warnings(found: Findings) -> list[str]:
    """Return sentences on what makes the scores misleading."""
    evaluation, near, sentences = found.evaluation, found.neighbourhood, []
    texts, known = counted(evaluation.documents, "text"), len(evaluation.names) - evaluation.unknown_labels
    if not evaluation.table.support[:known].any():
        sentences.append(
            "The model knows none of the labels of these texts, so every score is 0. Use texts with the model's "
            "labels, and check --labels-column and --separator."
        )
    if near is not None and near.copies:
        sentences.append(f"{copies_sentence(near.copies, evaluation.documents)}.")
    if near is not None and near.shared:
        sentences.append(
            f"The validation texts include {near.shared:,} of {texts}, so the scores for other k, γ and datastore "
            "sizes are too high: their thresholds are tuned on the same texts. Give other texts with --valid."
        )
    return sentences


def render(found: Findings, card: Card, name: str) -> str:
    """Return the page."""
    heading = f"{card.method} on {name}"
    parts = _sections(found, card)
    contents = "".join(f'<li><a href="#{key}">{escape(part)}</a>' for key, (part, _) in parts.items())
    body = "".join(
        f'<section id="{key}"><h2>{escape(part)}</h2>{html}</section>' for key, (part, html) in parts.items()
    )
    style, script = (
        resources.files("denn.report").joinpath(file).read_text("utf-8") for file in ("page.css", "page.js")
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{style}</style></head><body>"
        f"<header><h1>{escape(heading)}</h1>{_summary(found)}{_facts(found, card)}</header>"
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav><main>{body}</main>'
        f"<script>{script}</script></body></html>\n"
    )


def _sections(found: Findings, card: Card) -> dict[str, tuple[str, str]]:
    """Return the sections in order: key → heading and content."""
    names = system_names(("final", *(name for name in found.evaluation.systems if name != "final")), card)
    parts = {"scores": ("Scores", sections.scores(found, names))}
    if combination := combination_of(card):
        parts["combination"] = ("Witnesses and combination", sections.combination(combination))
    parts |= {
        "thresholds": ("Thresholds", sections.thresholds(found, names)),
        "calibration": ("Calibration", sections.calibration(found, names)),
        "frequency": ("Frequent and rare labels", sections.bands(found)),
        "labels": ("Labels", sections.labels(found)),
        "confusions": ("Confused labels", sections.confusions(found)),
    }
    if found.confidence is not None:
        parts["confidence"] = ("Confidence", evidence.confidence(found, found.confidence, card.parameters["gamma"]))
    if (around := found.neighbourhood) is not None:
        if around.sweep:
            tried = "Other values of k and γ" if around.sweep["gamma"] else "Other values of k"
            parts["settings"] = (tried, evidence.settings(found, around, card.parameters))
            parts["sizes"] = ("Datastore size", evidence.sizes(found, around))
        parts["map"] = ("Map", evidence.map_(around.map))
    parts["errors"] = ("Worst errors", evidence.errors(found))
    if around is None:
        reason = (
            "the datastore is empty" if found.keeps_documents else f"the method {escape(card.method)} has no datastore"
        )
        parts["missing"] = ("Omitted", f"<p>Other values of k, datastore size, map and neighbours: {reason}.</p>")
    return parts


def _summary(found: Findings) -> str:
    """Return the headline, and warnings about what makes it misleading."""
    headline = found.evaluation.headline
    lead = (
        f'<p class="lead">Micro-F1 {100 * headline["micro_f1"]:.1f} %, macro-F1 {100 * headline["macro_f1"]:.1f} % on '
        f"{counted(found.evaluation.documents, 'text')}, {found.evaluation.thresholds.sentence}.</p>"
    )
    return lead + "".join(f'<p class="warning">{escape(sentence)}</p>' for sentence in warnings(found))


def _facts(found: Findings, card: Card) -> str:
    """List facts about the model, its training and this evaluation."""
    encoder, trained, around = card.parameters.get("encoder"), card.corpus, found.neighbourhood
    combination, size = combination_of(card), counted(trained["train"], "document")
    facts: Mapping[str, str | None] = {
        "Method": card.method,
        "Witnesses": None if combination is None else listed(combination.witnesses),
        "Combination": None if combination is None else title(combination.chosen),
        "Encoder": None if encoder is None else Path(encoder).name,
        "Trained on": f"{trained['name']}: {size}, {trained['valid']:,} for validation",
        "Labels": f"{len(trained['label_counts']):,}",
        "Datastore": None if around is None else counted(around.stored, "document"),
        "Evaluated on": f"{counted(found.evaluation.documents, 'text')}, {found.labels_per_text:.1f} labels per text",
        "Model created": _day(card.created),
        "Report created": _day(datetime.now(UTC).isoformat()),
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items() if fact)
    settings = {name: Path(str(value)).name if name == "encoder" else value for name, value in card.parameters.items()}
    chosen = ", ".join(f"{name} = {value}" for name, value in settings.items() if value is not None)
    versions = ", ".join(f"{package} {version}" for package, version in card.versions.items())
    notes = {"Settings": chosen or "none", "Versions": versions}
    remarks = "".join(f'<p class="note">{name}: {escape(note)}.</p>' for name, note in notes.items())
    return f'<dl class="facts">{rows}</dl>{remarks}'


def _day(moment: str) -> str:
    return moment[:16].replace("T", " ") + " UTC"

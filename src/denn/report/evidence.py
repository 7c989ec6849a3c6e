"""Report sections on neighbours and errors: confidence, k and γ, datastore size, map, worst texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from denn.report.charts import Axis, Series, around, counts, fixed, histogram, line, per_cent, scatter
from denn.report.gather import BINS, Error, Findings, Map, Neighbourhood
from denn.report.html import curve, figures, paragraphs, shortened
from denn.wording import counted

TEXT, EVIDENCE_TEXT = 600, 200  # maximum number of characters of a text and of a neighbour
ALONE = 0.99  # mean λ above which the neighbours practically decide alone


def confidence(found: Findings, heights: Sequence[int], gamma: float) -> str:
    """Show the distribution of λ."""
    chart = histogram(
        "Confidence λ",
        "Texts by λ, the weight of the neighbours relative to the classifier: at 0 the classifier decides, at 1 the "
        "neighbours do.",
        [place / BINS for place in range(BINS + 1)],
        heights,
        "λ",
        counts("texts", heights),
    )
    return paragraphs(_alone(found, gamma)) + figures([chart])


def _alone(found: Findings, gamma: float) -> list[str]:
    """Explain why λ is almost always 1, if it is."""
    mean, near, texts = found.evaluation.confidence, found.neighbourhood, found.evaluation.documents
    if mean is None or near is None or mean <= ALONE:
        return []
    unsure, sure = (
        f"the classifier scores no label at γ = {gamma:g} or above",
        "the neighbours agree with its confident labels",
    )
    if not near.reached:
        return [f"Mean λ is {mean:.2f}: {unsure} in any text, so the neighbours decide alone."]
    if near.reached == texts:
        return [
            f"Mean λ is {mean:.2f}: the classifier scores labels at γ = {gamma:g} or above in every text, and {sure}."
        ]
    return [
        f"Mean λ is {mean:.2f}: in {texts - near.reached:,} of {texts:,} texts {unsure}, so the neighbours decide "
        f"alone, and in the others {sure}."
    ]


def settings(found: Findings, around_it: Neighbourhood, parameters: Mapping[str, Any]) -> str:
    """Show F1 for other values of k, and of γ if λ is used, without training again."""
    charts = []
    for name, symbol in (("k", "k"), ("gamma", "γ")):
        rows = around_it.sweep[name]
        if not rows:
            continue
        own = float(parameters[name])
        across = [row[name] for row in rows]
        x = fixed("γ", 0, 1) if name == "gamma" else fixed("neighbours k", 0, max(across))
        for metric in ("micro", "macro"):
            series = [
                Series(
                    "tuned threshold" if found.validated else "the model's threshold",
                    curve(rows, name, f"{metric}_f1"),
                ),
                Series("threshold 0.5", curve(rows, name, f"{metric}_f1_at_0.5")),
            ]
            title, description = (
                f"{metric.capitalize()} F1 by {symbol}",
                f"The dashed line marks the model's {symbol}, {own:g}.",
            )
            charts.append(line(title, description, series, x, _f1_axis(metric, series), mark=own))
    return paragraphs([_tuning(found)]) + figures(charts)


def sizes(found: Findings, around_it: Neighbourhood) -> str:
    """Show F1 for smaller datastores."""
    rows = around_it.sizes
    charts = []
    for metric in ("micro", "macro"):
        errors = [100 * row[f"{metric}_f1_sd"] for row in rows]
        series = [Series(metric, curve(rows, "documents", f"{metric}_f1"), errors)]
        x = fixed("stored documents", 0, max(row["documents"] for row in rows))
        charts.append(
            line(
                f"{metric.capitalize()} F1 by datastore size",
                f"Random samples of the datastore; bars show one standard deviation of {rows[0]['draws']:.0f} samples.",
                series,
                x,
                _f1_axis(metric, series, errors),
            )
        )
    return paragraphs([_tuning(found)]) + figures(charts)


def map_(drawn: Map) -> str:
    """Show the datastore in two dimensions, with the texts of the report."""

    def series(points: Sequence[tuple[float, float, int]]) -> list[Series]:
        named = [*enumerate(drawn.labels), (-1, "none of these")]
        return [
            Series(name, [(across, up) for across, up, label in points if label == number], colour=number % 8)
            for number, name in named
        ]

    places = [*drawn.stored, *drawn.texts]
    axes = [
        around(f"{which} principal component, {100 * share:.0f} % of variance", [p[place] for p in places], 0.1)
        for place, (which, share) in enumerate(zip(("first", "second"), drawn.variance, strict=True))
    ]
    chart = scatter(
        "Map of the datastore",
        f"Dots are {len(drawn.stored):,} stored documents, crosses are {len(drawn.texts):,} texts of this report. The "
        f"colours show the {len(drawn.labels)} most frequent labels; a document with several of these has the colour "
        "of its rarest.",
        series(drawn.stored),
        axes[0],
        axes[1],
        series(drawn.texts),
    )
    return figures([chart])


def errors(found: Findings) -> str:
    """Show the texts with the largest errors, with supporting words and neighbours."""
    if not found.errors:
        return "<p>All texts were tagged correctly.</p>"
    sentences = [
        "The error of a text is the mean squared difference between score and truth over its true and its predicted "
        "labels; 1 is the worst. Missed and wrong labels are shown with their scores."
    ]
    if found.neighbourhood is not None:
        sentences.append("Missed and wrong labels have the same colours in the lists of neighbours.")
    return paragraphs(sentences) + "".join(_error(place, error) for place, error in enumerate(found.errors, 1))


def _error(place: int, error: Error) -> str:
    kinds = {name: "missed" for name, _ in error.missed} | {name: "wrong" for name, _ in error.wrong}
    own = [f'<li class="right">✓ {escape(name)}' for name in error.right]
    own += [f'<li class="missed">− missed: {escape(name)} ({score:.2f})' for name, score in error.missed]
    own += [f'<li class="wrong">+ wrong: {escape(name)} ({score:.2f})' for name, score in error.wrong]
    weight = "" if error.confidence is None else f" · λ {error.confidence:.2f}"
    near = "".join(
        f"<li><strong>{neighbour.similarity:.2f}</strong> {escape(neighbour.id)}"
        + _list(f'<li class="{kinds.get(name, "other")}">{escape(name)}' for name in neighbour.labels)
        + f'<p dir="auto">{escape(shortened(neighbour.text, EVIDENCE_TEXT))}</p>'
        for neighbour in error.neighbours
    )
    evidence = f'<p class="note">Nearest stored documents, with similarity</p><ol class="near">{near}</ol>'
    words = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(', '.join(some))}</dd></div>" for label, some in error.words.items()
    )
    support = f'<p class="note">Supporting words</p><dl class="words">{words}</dl>'
    return (
        f'<article class="error-text"><h3>{place}. {escape(error.document.id or "text without id")}</h3>'
        f'<p class="note">Error {error.loss:.2f}{weight}</p>'
        f'<p class="text" dir="auto">{escape(shortened(error.document.text, TEXT))}</p>'
        f"{_list(own)}{support if words else ''}{evidence if near else ''}</article>"
    )


def _list(labels: Iterable[str]) -> str:
    return f'<ul class="labels">{"".join(labels)}</ul>'


def _f1_axis(metric: str, series: Sequence[Series], errors: Sequence[float] = ()) -> Axis:
    values = [up for one in series for _, up in one.points]
    ends = [value + sign * error for value, error in zip(values, errors, strict=False) for sign in (-1, 1)]
    return per_cent(f"{metric} F1, percent", values + ends, least=4)


def _tuning(found: Findings) -> str:
    if found.validated:
        return (
            "The model is not trained again; the threshold of each point is tuned on "
            f"{counted(found.validated, 'validation text')}."
        )
    why = "The combination was fitted to the validation texts" if found.fitted else "There are no validation texts"
    threshold = found.evaluation.thresholds.overall
    return f"The model is not trained again. {why}, so every point uses the threshold {threshold:.2f} for all labels."

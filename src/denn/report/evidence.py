"""The sections about neighbours and errors: confidence, k and γ, datastore, map, worst texts; findings in, HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from denn.report.charts import Axis, Series, around, counts, fixed, histogram, line, per_cent, scatter
from denn.report.gather import BINS, Error, Findings, Map, Neighbourhood
from denn.report.html import curve, figures, paragraphs, shortened

TEXT, EVIDENCE_TEXT = 600, 200  # characters shown of a text and of a neighbour
ALONE = 0.99  # mean λ above which the neighbours as good as decide alone


def confidence(found: Findings, heights: Sequence[int], gamma: float) -> str:
    """Show how much the neighbours have to say."""
    chart = histogram(
        "Confidence λ",
        "Texts by the weight λ of their neighbours beside the classifier: at 0 the classifier decides, at 1 the "
        "neighbours do.",
        [place / BINS for place in range(BINS + 1)],
        heights,
        "λ",
        counts("texts", heights),
    )
    return paragraphs(_alone(found, gamma)) + figures([chart])


def _alone(found: Findings, gamma: float) -> list[str]:
    """Say why λ is 1 nearly everywhere, if it is."""
    mean, near, texts = found.evaluation.confidence, found.neighbourhood, found.evaluation.documents
    if mean is None or near is None or mean <= ALONE:
        return []
    unsure, sure = (
        f"the classifier gives no label γ = {gamma:g} or more",
        "the neighbours agree with what it is sure of",
    )
    if not near.reached:
        return [f"Mean λ is {mean:.2f}: {unsure} in any text, so that the neighbours decide alone."]
    if near.reached == texts:
        return [f"Mean λ is {mean:.2f}: the classifier gives labels γ = {gamma:g} or more in every text, and {sure}."]
    return [
        f"Mean λ is {mean:.2f}: in {texts - near.reached:,} of {texts:,} texts {unsure}, so that the neighbours decide "
        f"alone, and in the others {sure}."
    ]


def settings(found: Findings, around_it: Neighbourhood, parameters: Mapping[str, Any]) -> str:
    """Show what other k would give, and other γ where λ decides, without training again."""
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
                    "threshold tuned" if found.validated else "the model's threshold",
                    curve(rows, name, f"{metric}_f1"),
                ),
                Series("threshold 0.5", curve(rows, name, f"{metric}_f1_at_0.5")),
            ]
            title, said = (
                f"{metric.capitalize()} F1 by {symbol}",
                f"The dashed upright is the model's {symbol}, {own:g}.",
            )
            charts.append(line(title, said, series, x, _f1_axis(metric, series), mark=own))
    return paragraphs([_tuning(found)]) + figures(charts)


def sizes(found: Findings, around_it: Neighbourhood) -> str:
    """Show what a smaller datastore would give."""
    rows = around_it.sizes
    charts = []
    for metric in ("micro", "macro"):
        errors = [100 * row[f"{metric}_f1_sd"] for row in rows]
        series = [Series(metric, curve(rows, "documents", f"{metric}_f1"), errors)]
        x = fixed("stored documents", 0, max(row["documents"] for row in rows))
        charts.append(
            line(
                f"{metric.capitalize()} F1 by datastore size",
                f"Random parts of the datastore; bars are one standard deviation over {rows[0]['draws']:.0f} draws.",
                series,
                x,
                _f1_axis(metric, series, errors),
            )
        )
    return paragraphs([_tuning(found)]) + figures(charts)


def map_(drawn: Map) -> str:
    """Show the datastore in two dimensions."""

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
        f"Dots are {len(drawn.stored):,} stored documents, crosses {len(drawn.texts):,} texts of this report. The "
        f"colours are the {len(drawn.labels)} most frequent labels; a document with several of them has the colour of "
        "the rarest.",
        series(drawn.stored),
        axes[0],
        axes[1],
        series(drawn.texts),
    )
    return figures([chart])


def errors(found: Findings) -> str:
    """Show the texts that were tagged worst, with the words and the stored documents that support their labels."""
    if not found.errors:
        return "<p>Every text has exactly its labels.</p>"
    said = [
        "The error of a text is the mean squared distance between score and truth over the labels that it has or was "
        "given: 1 is wrong for certain. Missed and wrong labels are followed by their scores."
    ]
    if found.neighbourhood is not None:
        said.append("Among the labels of the neighbours, missed and wrong ones have the same colours.")
    return paragraphs(said) + "".join(_error(place, error) for place, error in enumerate(found.errors, 1))


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
    evidence = f'<p class="note">Nearest stored documents, with their similarity</p><ol class="near">{near}</ol>'
    words = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(', '.join(some))}</dd></div>" for label, some in error.words.items()
    )
    support = f'<p class="note">Words that support a label</p><dl class="words">{words}</dl>'
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
    return per_cent(f"{metric} F1, per cent", values + ends, least=4)


def _tuning(found: Findings) -> str:
    if found.validated:
        return (
            f"Nothing is trained again; the threshold is tuned for each point on {found.validated:,} validation texts."
        )
    why = "The combination learnt from the validation texts" if found.fitted else "There are no validation texts"
    return f"Nothing is trained again. {why}, so every point uses the model's own threshold."

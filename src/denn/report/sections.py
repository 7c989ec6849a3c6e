"""Report sections of every method: scores, thresholds, calibration and labels."""

from __future__ import annotations

from collections.abc import Mapping

from denn.report.charts import Series, bar, counts, fixed, histogram, line
from denn.report.combination import Combination, title
from denn.report.gather import Findings
from denn.report.html import curve, figures, paragraphs, percent, table
from denn.wording import counted

METRICS = {
    "micro P": "micro_precision",
    "micro R": "micro_recall",
    "micro-F1": "micro_f1",
    "macro-F1": "macro_f1",
    "macro-F1, labels here": "supported_macro_f1",
    "F1 per text": "example_f1",
    "P@1": "p_at_1",
    "P@3": "p_at_3",
    "P@5": "p_at_5",
    "texts without a label": "empty_predictions",
}
METRIC_NAMES = {"micro_f1": "micro-F1", "macro_f1": "macro-F1", "precision_at_k": "precision at 5"}
KINDS = {"0.5": "0.5", "tuned": "tuned", "per_label": "one per label"}


def scores(found: Findings, names: Mapping[str, str]) -> str:
    """Show the scores of every system at every threshold."""
    rows = []
    for system in names:
        for kind, metrics in found.evaluation.systems[system].items():
            cut = f"tuned, {metrics['threshold']:.2f}" if kind == "tuned" else KINDS[kind]
            rows.append([names[system], cut, *(percent(metrics[metric]) for metric in METRICS.values())])
    evaluation = found.evaluation
    sentences = [
        "P is precision, R is recall. Micro averages weight all decisions equally; macro is the mean over all labels. "
        "A label is predicted if its score exceeds the threshold: 0.5, tuned on validation texts, or tuned per label."
    ]
    if evaluation.familiarity_sentence:
        sentences.append(evaluation.familiarity_sentence)
    if evaluation.unknown_labels:
        sentences.append(
            f"The model does not know {counted(evaluation.unknown_labels, 'label')} used here, which count as missed."
        )
    caption = f"Scores on {counted(evaluation.documents, 'text')}, in percent"
    return paragraphs(sentences) + table(caption, ["System", "Threshold", *METRICS], rows, words=(1,))


def combination(found: Combination) -> str:
    """Show the witnesses, their combination, and the validation scores of the alternatives."""
    facts, sentences = found.facts, [found.sentence]
    if not facts.scores:
        return paragraphs(sentences)
    sentences.append(
        "Each row is a way of combining the witnesses, or a single witness, evaluated on documents that it was not "
        "fitted or tuned on. The calibration error is the mean difference between a score of 0.1 or more and the share "
        "of such scores that are correct: at 0, scores are probabilities."
    )
    metric = METRIC_NAMES.get(facts.optimise, facts.optimise)
    rows = [
        [
            f"{title(name)} alone" if name in found.witnesses else title(name),
            "yes" if name == found.chosen else "",
            percent(score),
            f"{100 * facts.calibration_error[name]:.2f}" if name in facts.calibration_error else "",
        ]
        for name, score in sorted(facts.scores.items(), key=lambda pair: -pair[1])
    ]
    caption = "Combinations of the witnesses on the validation documents, best first"
    headers = ["Combination", "Used", f"{metric}, %", "Calibration error, %"]
    return paragraphs(sentences) + table(caption, headers, rows, words=(1,))


def thresholds(found: Findings, names: Mapping[str, str]) -> str:
    """Show scores at other thresholds."""
    tuned, shared = found.evaluation.thresholds.overall, found.evaluation.thresholds.decides == "tuned"
    mark = "tuned threshold" if shared else "best threshold for all labels, but this model has one for each"
    x, y = fixed("threshold", 0, 1), fixed("percent", 0, 100)
    kinds = {"micro-F1": "micro_f1", "macro-F1": "macro_f1", "micro precision": "micro_precision"}
    kinds["micro recall"] = "micro_recall"
    final = line(
        f"Precision, recall and F1 of {names['final']}",
        f"Scores at each threshold; the dashed line marks the {mark}, {tuned:.2f}.",
        [Series(name, curve(found.curves["final"], "threshold", metric)) for name, metric in kinds.items()],
        x,
        y,
        mark=tuned,
    )
    systems = [Series(name, curve(found.curves[system], "threshold", "micro_f1")) for system, name in names.items()]
    if len(systems) == 1:
        return figures([final])
    title, description = "Micro-F1 of each system", "How the score of each system depends on the threshold."
    return figures([final, line(title, description, systems, x, fixed("micro-F1, percent", 0, 100))])


def calibration(found: Findings, names: Mapping[str, str]) -> str:
    """Show whether scores can be read as probabilities."""
    series = [
        Series(name, [(row["score"], 100 * row["observed"]) for row in found.calibration[system]["bins"]])
        for system, name in names.items()
    ]
    reliability = line(
        "Accuracy by score",
        "Each point combines all pairs of a text and a label whose scores are in one tenth of the range. On the dashed "
        "diagonal, scores are probabilities; above it they are too low, below it too high.",
        series,
        fixed("mean score", 0, 1),
        fixed("correct pairs, percent", 0, 100),
        diagonal=True,
    )
    bins = {round(10 * row["low"]): row["count"] for row in found.calibration["final"]["bins"]}
    heights = [bins.get(place, 0) for place in range(10)]
    spread = histogram(
        f"Scores of {names['final']}",
        "Number of pairs of a text and a label by score, on a logarithmic scale.",
        [place / 10 for place in range(11)],
        heights,
        "score",
        counts("pairs", heights, log=True),
    )
    errors = ", ".join(f"{name} {100 * found.calibration[system]['error']:.2f}" for system, name in names.items())
    sentence = f"Expected calibration error over pairs that score 0.1 or more, in percentage points: {errors}."
    return paragraphs([sentence]) + figures([reliability, spread])


def bands(found: Findings) -> str:
    """Show F1 by label frequency."""
    groups = [band for band in found.evaluation.bands if band["supported"]]
    names = [band["name"].replace(">=", "≥ ").replace("-", "–") for band in groups]
    metrics = {"micro-F1": "micro_f1", "macro-F1": "macro_f1"}
    chart = bar(
        "F1 by label frequency",
        "The model's own decisions. Labels grouped by number of training documents; macro-F1 over labels that occur "
        "here.",
        names,
        [(name, [100 * band[metric] for band in groups]) for name, metric in metrics.items()],
        "training documents per label",
        fixed("percent", 0, 100),
    )
    rows = [
        [
            name,
            f"{band['labels']:,}",
            f"{band['supported']:,}",
            *(percent(band[metric]) for metric in metrics.values()),
        ]
        for name, band in zip(names, groups, strict=True)
    ]
    headers = ["Training documents", "Labels", "Occurring here", "micro-F1, %", "macro-F1, %"]
    return figures([chart, table("Labels by training frequency", headers, rows)])


def labels(found: Findings) -> str:
    """List every label, with a search box if the browser runs scripts."""
    columns = found.evaluation.table
    rows = [
        [name, f"{trained:,}", *(f"{count:,}" for count in row[:3]), *(percent(share) for share in row[3:])]
        for name, trained, *row in zip(
            found.evaluation.names,
            found.train_counts,
            *(getattr(columns, kind).tolist() for kind in ("support", "predicted", "true_positives")),
            *(getattr(columns, kind).tolist() for kind in ("precision", "recall", "f1")),
            strict=True,
        )
    ]
    box = (
        '<p class="search" hidden><label>Search <input type="search" autocomplete="off"></label>'
        f'<output aria-live="polite">{len(rows)} of {len(rows)} labels</output></p>'
    )
    headers = ["Label", "Training", "Here", "Predicted", "Correct", "P, %", "R, %", "F1, %"]
    caption = "The model's own decisions: number of training documents, of texts here with the label, of predictions "
    return box + table(caption + "and of correct predictions", headers, rows)


def confusions(found: Findings) -> str:
    """List the most frequent confusions."""
    if not found.confusions:
        return "<p>No text has both a missed and a wrong label.</p>"
    rows = [[pair["missed"], pair["given"], f"{pair['texts']:,}"] for pair in found.confusions]
    caption = "Most frequent pairs of a missed and a wrong label in the same text"
    return table(caption, ["Missed", "Wrong", "Texts"], rows, words=(1,))

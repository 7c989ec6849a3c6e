"""The sections that every method has: scores, thresholds, calibration, labels; findings in, HTML out."""

from __future__ import annotations

from collections.abc import Mapping

from denn.report.charts import Series, bar, counts, fixed, histogram, line
from denn.report.combination import Combination, title
from denn.report.gather import Findings
from denn.report.html import curve, figures, paragraphs, percent, table

METRICS = {
    "micro P": "micro_precision",
    "micro R": "micro_recall",
    "micro F1": "micro_f1",
    "macro F1": "macro_f1",
    "macro F1, labels here": "supported_macro_f1",
    "F1 per text": "example_f1",
    "P@1": "p_at_1",
    "P@3": "p_at_3",
    "P@5": "p_at_5",
    "texts without label": "empty_predictions",
}
METRIC_NAMES = {"micro_f1": "micro F1", "macro_f1": "macro F1", "precision_at_k": "precision at 5"}
KINDS = {"0.5": "0.5", "tuned": "tuned", "per_label": "one per label"}


def scores(found: Findings, names: Mapping[str, str]) -> str:
    """Show every system at every threshold."""
    rows = []
    for system in names:
        for kind, metrics in found.evaluation.systems[system].items():
            cut = f"tuned, {metrics['threshold']:.2f}" if kind == "tuned" else KINDS[kind]
            rows.append([names[system], cut, *(percent(metrics[metric]) for metric in METRICS.values())])
    evaluation = found.evaluation
    said = [
        "P is precision, R recall. Micro counts all decisions alike, macro is the mean over all labels. A label is "
        "given where its score is above the threshold: 0.5, one tuned on validation texts, or one tuned per label."
    ]
    if evaluation.familiarity_sentence:
        said.append(evaluation.familiarity_sentence)
    if evaluation.unknown_labels:
        said.append(f"{evaluation.unknown_labels} labels here are unknown to the model; each is counted as missed.")
    caption = f"Scores on {evaluation.documents:,} texts, in per cent"
    return paragraphs(said) + table(caption, ["System", "Threshold", *METRICS], rows, words=(1,))


def combination(heard: Combination) -> str:
    """Show who is heard, what combines them, and how the alternatives did on validation."""
    facts, said = heard.facts, [heard.sentence]
    if not facts.scores:
        return paragraphs(said)
    said.append(
        "Each row decides by one way to combine the witnesses, or by one witness alone; nothing is judged on documents "
        "that it was fitted or tuned on. The calibration error is the mean distance between a score of 0.1 or more and "
        "the share of such scores that are right: at 0, scores are probabilities."
    )
    metric = METRIC_NAMES.get(facts.optimise, facts.optimise)
    rows = [
        [
            f"{title(name)} alone" if name in heard.witnesses else title(name),
            "yes" if name == heard.chosen else "",
            percent(score),
            f"{100 * facts.calibration_error[name]:.2f}" if name in facts.calibration_error else "",
        ]
        for name, score in sorted(facts.scores.items(), key=lambda pair: -pair[1])
    ]
    caption = "Ways to combine the witnesses, on the validation documents of the training, best first"
    headers = ["Combination", "Used", f"{metric}, %", "Calibration error, %"]
    return paragraphs(said) + table(caption, headers, rows, words=(1,))


def thresholds(found: Findings, names: Mapping[str, str]) -> str:
    """Show what other thresholds would give."""
    tuned = found.evaluation.headline["threshold"]
    x, y = fixed("threshold", 0, 1), fixed("per cent", 0, 100)
    kinds = {"micro F1": "micro_f1", "macro F1": "macro_f1", "micro precision": "micro_precision"}
    kinds["micro recall"] = "micro_recall"
    final = line(
        f"Precision, recall and F1 of {names['final']}",
        f"Scores at each threshold; the dashed upright is the tuned one, {tuned:.2f}.",
        [Series(name, curve(found.curves["final"], "threshold", metric)) for name, metric in kinds.items()],
        x,
        y,
        mark=tuned,
    )
    systems = [Series(name, curve(found.curves[system], "threshold", "micro_f1")) for system, name in names.items()]
    if len(systems) == 1:
        return figures([final])
    title, said = "Micro F1 of each system", "How much each system depends on its threshold."
    return figures([final, line(title, said, systems, x, fixed("micro F1, per cent", 0, 100))])


def calibration(found: Findings, names: Mapping[str, str]) -> str:
    """Show whether scores can be read as probabilities."""
    series = [
        Series(name, [(row["score"], 100 * row["observed"]) for row in found.calibration[system]["bins"]])
        for system, name in names.items()
    ]
    reliability = line(
        "How often a score is right",
        "Each point holds the pairs of a text and a label whose scores lie in one tenth of the range. On the dashed "
        "diagonal scores are probabilities; above it they are too timid, below it too bold.",
        series,
        fixed("mean score", 0, 1),
        fixed("pairs that are right, per cent", 0, 100),
        diagonal=True,
    )
    bins = {round(10 * row["low"]): row["count"] for row in found.calibration["final"]["bins"]}
    heights = [bins.get(place, 0) for place in range(10)]
    spread = histogram(
        f"Scores of {names['final']}",
        "How many pairs of a text and a label have which score; the axis of counts is logarithmic.",
        [place / 10 for place in range(11)],
        heights,
        "score",
        counts("pairs", heights, log=True),
    )
    errors = ", ".join(f"{name} {100 * found.calibration[system]['error']:.2f}" for system, name in names.items())
    said = f"Expected calibration error over the pairs that score 0.1 or more, in points: {errors}."
    return paragraphs([said]) + figures([reliability, spread])


def bands(found: Findings) -> str:
    """Show frequent and rare labels apart."""
    groups = [band for band in found.evaluation.bands if band["supported"]]
    names = [band["name"].replace(">=", "≥ ").replace("-", "–") for band in groups]
    metrics = {"micro F1": "micro_f1", "macro F1": "macro_f1"}
    chart = bar(
        "F1 by frequency of the label",
        "Labels in groups by their number of training documents, at the tuned threshold; macro over labels that occur "
        "here.",
        names,
        [(name, [100 * band[metric] for band in groups]) for name, metric in metrics.items()],
        "training documents of a label",
        fixed("per cent", 0, 100),
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
    headers = ["Training documents", "Labels", "of them here", "micro F1, %", "macro F1, %"]
    return figures([chart, table("Labels by training frequency", headers, rows)])


def labels(found: Findings) -> str:
    """List every label, with a search box where the browser runs scripts."""
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
    headers = ["Label", "Training", "Here", "Given", "Right", "P, %", "R, %", "F1, %"]
    caption = (
        "Each label at the tuned threshold: documents it was learnt from, texts here that have it, texts that were "
    )
    return box + table(caption + "given it, and how many of these rightly", headers, rows)


def confusions(found: Findings) -> str:
    """List the labels that are taken for each other."""
    if not found.confusions:
        return "<p>No text lacks one label and has a wrong one instead.</p>"
    rows = [[pair["missed"], pair["given"], f"{pair['texts']:,}"] for pair in found.confusions]
    caption = "A missed label and a wrong one in the same text, the most frequent pairs"
    return table(caption, ["Missed", "Wrongly given", "Texts"], rows, words=(1,))

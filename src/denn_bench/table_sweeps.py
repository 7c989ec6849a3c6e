"""Tables of the sweeps over k, γ and the datastore's size, and of the label-frequency groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from denn_bench import paper
from denn_bench.result import Result, select
from denn_bench.significance import METRICS
from denn_bench.summary import NOTHING, Table, corpora, markdown, mean_sd, title

Sweep = dict[float, dict[str, list[float]]]  # setting → metric → percent of each seed
RECIPES = ("denn", "denn-tuned")


def swept(runs: Sequence[Result], name: str) -> list[Result]:
    """Return the runs that have a sweep; a sweep of γ is meaningless if the final score is the average."""
    halves = [run.data["recipe"]["parameters"].get("combination") == "average" for run in runs]
    return [
        run
        for run, half in zip(runs, halves, strict=True)
        if run.data.get("sweeps", {}).get(name) and not (half and name == "gamma")
    ]


def sweep_of(runs: Sequence[Result], name: str) -> Sweep:
    """Collect a sweep over seeds, with the mean of both F1 and the standard deviation of draws, in ascending order."""
    setting = "share" if name == "datastore" else name
    found: Sweep = {}
    for run in swept(runs, name):
        for entry in run.data["sweeps"][name]:
            values: dict[str, float] = {metric: 100 * entry[metric] for metric in METRICS}
            values["average"] = fmean(values.values())
            values |= {f"{metric}_sd": 100 * entry.get(f"{metric}_sd", 0.0) for metric in METRICS}
            for metric, value in values.items():
                found.setdefault(entry[setting], {}).setdefault(metric, []).append(value)
    return dict(sorted(found.items()))


def means(sweep: Sweep, metric: str) -> dict[float, float]:
    """Return the mean over seeds of each setting."""
    return {setting: fmean(values[metric]) for setting, values in sweep.items()}


def deviation(values: Mapping[str, Sequence[float]], metric: str) -> float:
    """Return the standard deviation over seeds, or over the draws of documents if there is only one seed."""
    return stdev(values[metric]) if len(values[metric]) > 1 else values[f"{metric}_sd"][0]


def best(sweep: Sweep) -> float:
    """Return the setting with the best average of micro- and macro-F1, the smallest in case of a tie."""
    averages = means(sweep, "average")
    return max(averages, key=averages.__getitem__)


def spread(sweep: Sweep, metric: str) -> float:
    """Return the range of a metric over the settings, in points."""
    values = means(sweep, metric).values()
    return max(values) - min(values)


def k(results: Sequence[Result]) -> Table:
    """Show the sweep over the number of neighbours (RQ4)."""
    return _sweep_table(results, "k", "Number of neighbours k")


def gamma(results: Sequence[Result]) -> Table:
    """Show the sweep over the confidence threshold γ (RQ4)."""
    return _sweep_table(results, "gamma", "Threshold γ of the debiased confidence")


def datastore(results: Sequence[Result]) -> Table:
    """Show the sweep over the share of the training split in the datastore (RQ4)."""
    return _sweep_table(results, "datastore", "Share of the training split in the datastore")


def _sweep_table(results: Sequence[Result], name: str, heading: str) -> Table:
    texts, used = [f"### {heading}, F1 in percent, without retraining"], []
    for corpus in corpora(results, RECIPES):
        for recipe in RECIPES:
            runs = swept(select(results, corpus, recipe), name)
            sweep = sweep_of(runs, name)
            if not sweep:
                continue
            rows = []
            for setting, values in sweep.items():
                shown = _setting(name, setting)
                cells = [_with_deviation(values, metric) for metric in METRICS] + [mean_sd(values["average"], 2)]
                rows.append([shown, *cells])
            texts += [
                f"**{title(corpus)}, {recipe}**",
                markdown([name, "micro-F1", "macro-F1", "average"], rows),
                f"Here: {_here(name, sweep)}. The paper: {in_words(name, corpus)}.",
            ]
            used += runs
    if name == "datastore":
        texts.append("With one seed, ± is the standard deviation over the draws of documents.")
    return Table("\n\n".join(texts), used)


def _with_deviation(values: Mapping[str, Sequence[float]], metric: str) -> str:
    spread_of = deviation(values, metric)
    several = len(values[metric]) > 1 or spread_of > 0
    return f"{fmean(values[metric]):.2f}{f' ± {spread_of:.2f}' if several else ''}"


def _setting(name: str, setting: float) -> str:
    return f"{100 * setting:.0f} %" if name == "datastore" else f"{setting:g}"


def _here(name: str, sweep: Sweep) -> str:
    top = f"highest average on test at {_setting(name, best(sweep))}"  # not a choice: that would need validation
    if name == "datastore":
        first, last = min(sweep), max(sweep)
        gains = [means(sweep, metric)[last] - means(sweep, metric)[first] for metric in METRICS]
        span = f"from {_setting(name, first)} to {_setting(name, last)}"
        return f"{top}; {span}, micro-F1 {gains[0]:+.2f}, macro-F1 {gains[1]:+.2f}"
    return f"{top}; range of micro-F1 {spread(sweep, 'micro_f1'):.2f}, of macro-F1 {spread(sweep, 'macro_f1'):.2f}"


def in_words(name: str, corpus: str) -> str:
    """Return what the paper's text says about a sweep on a corpus; its figures have no numbers."""
    if name == "k" and corpus in paper.BEST_K:
        change = paper.K_SPREAD[corpus]
        return (
            f"best average at {paper.BEST_K[corpus]}; range of micro-F1 {change.micro_f1}, of macro-F1 "
            f"{change.macro_f1}"
        )
    if name == "gamma" and corpus in paper.BEST_GAMMA:
        return f"best at {paper.BEST_GAMMA[corpus]}"
    if name == "datastore" and corpus in paper.DATASTORE_GAIN:
        change = paper.DATASTORE_GAIN[corpus]
        return f"from 20 % to 100 %, micro-F1 {change.micro_f1:+}, macro-F1 {change.macro_f1:+}"
    return "no statement about this corpus"


def groups_of(run: Result) -> list[dict[str, Any]]:
    """Return the frequency groups of a run's labels, by the counts of the original training split if they are known."""
    labels, known = run.data["test"]["per_label"], paper.TRAIN_COUNTS.get(run.corpus)
    if known is None:
        return list(run.data["test"]["groups"])
    counts = [known.get(name, count) for name, count in zip(labels["label"], labels["train"], strict=True)]
    found = []
    for name, (low, high) in paper.GROUPS.items():
        scores = [f1 for f1, count in zip(labels["f1_final"], counts, strict=True) if low <= count <= high]
        if scores:
            found.append({"name": name, "labels": len(scores), "macro_f1": fmean(scores)})
    return found


def group_scores(runs: Sequence[Result]) -> dict[str, list[float]]:
    """Return the mean F1 of the labels of each group in percent by seed, most frequent labels first."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for group in groups_of(run):
            found.setdefault(group["name"], []).append(100 * group["macro_f1"])
    return found


def groups(results: Sequence[Result]) -> Table:
    """Compare the plain classifier with DENN by training frequency of the labels (RQ5)."""
    texts, used = ["### Labels by training frequency: mean F1 of the labels in a group, percent"], []
    for corpus in corpora(results, ("bert", "denn")):
        systems = {recipe: select(results, corpus, recipe) for recipe in ("bert", *RECIPES)}
        scores = {recipe: group_scores(runs) for recipe, runs in systems.items()}
        gains = paper.GROUP_GAINS.get(corpus, {})
        rows = []
        for group in groups_of((systems["denn"] or systems["bert"])[0]):
            values = {recipe: found.get(group["name"], []) for recipe, found in scores.items()}
            gain = NOTHING
            if values["bert"] and values["denn"]:
                gain = f"{fmean(values['denn']) - fmean(values['bert']):+z.1f}"
            in_paper = f"{gains[group['name']]:+.1f}" if gains else NOTHING
            rows.append([group["name"], str(group["labels"]), *map(mean_sd, values.values()), gain, in_paper])
        header = ["training documents", "labels", "BERT", "DENN", "DENN, tuned"]
        header += ["DENN − BERT, here", "DENN − BERT, paper"]
        texts += [f"**{title(corpus)}**", markdown(header, rows)]
        used += [run for runs in systems.values() for run in runs]
    texts.append(
        "AAPD's groups follow the counts of the original training split for the five labels of which the "
        "reconstruction lacks many; the counts of the others differ by a few per cent."
    )
    return Table("\n\n".join(texts), used)

"""The figures; the colours are Okabe and Ito's, which colour-blind readers can distinguish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from denn.errors import DataError
from denn_bench import paper
from denn_bench.result import Result, select
from denn_bench.summary import corpora, title
from denn_bench.table_sweeps import Sweep, best, deviation, group_scores, groups_of, means, sweep_of

WIDTH, HEIGHT = 8.0, 3.2  # inches of a row of panels
COLOURS = {"bert": "#D55E00", "bert-knn": "#CC79A7", "denn": "#0072B2", "denn-tuned": "#009E73"}
NAMES = {"bert": "BERT", "bert-knn": "BERT + kNN", "denn": "DENN", "denn-tuned": "DENN, tuned"}
MARKERS = {"bert": "s", "bert-knn": "^", "denn": "o", "denn-tuned": "D"}
PAPER: Mapping[str, Any] = {"color": "#555555", "linestyle": "--", "linewidth": 1.3, "zorder": 1}
METRICS = {"micro_f1": "micro-F1, %", "macro_f1": "macro-F1, %"}
SWEPT = ("denn", "denn-tuned")
BINS = 8


@dataclass(frozen=True)
class Drawing:
    """A figure and the data in it."""

    figure: Figure
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def k(results: Sequence[Result]) -> Drawing:
    """Draw F1 against the number of neighbours."""
    return _sweep(results, "k", "number of neighbours k", paper.BEST_K)


def gamma(results: Sequence[Result]) -> Drawing:
    """Draw F1 against γ."""
    return _sweep(results, "gamma", "threshold γ", paper.BEST_GAMMA)


def datastore(results: Sequence[Result]) -> Drawing:
    """Draw F1 against the share of the training split in the datastore."""
    return _sweep(results, "datastore", "share of the training split in the datastore, %", {})


def _sweep(results: Sequence[Result], name: str, label: str, printed_best: Mapping[str, float]) -> Drawing:
    curves = {
        (corpus, recipe): sweep
        for corpus in corpora(results, SWEPT)
        for recipe in SWEPT
        if (sweep := sweep_of(select(results, corpus, recipe), name))
    }
    names = list(dict.fromkeys(corpus for corpus, _ in curves))
    figure, axes = panels(names, len(METRICS), f"a sweep over {name}")
    rows: list[list[object]] = []
    for row_of_panels, corpus in zip(axes, names, strict=True):
        mine = {recipe: sweep for (its, recipe), sweep in curves.items() if its == corpus}
        for panel, (metric, unit) in zip(row_of_panels, METRICS.items(), strict=True):
            for recipe, sweep in mine.items():
                _curve(panel, recipe, sweep, metric, 100 if name == "datastore" else 1)
                for setting, values in sweep.items():
                    spread = deviation(values, metric)
                    rows.append([corpus, recipe, setting, metric, fmean(values[metric]), spread, len(values[metric])])
            if corpus in printed_best:
                panel.axvline(printed_best[corpus], **PAPER, label="best in the paper")
            if name == "datastore" and corpus in paper.DATASTORE_GAIN:
                gain = getattr(paper.DATASTORE_GAIN[corpus], metric)
                last = means(next(iter(mine.values())), metric)[1.0]
                panel.plot([20, 100], [last - gain, last], **PAPER, label="the paper's gain")
            panel.set(xlabel=label, ylabel=unit, title=title(corpus))
    legend(figure, axes)
    return Drawing(figure, ["corpus", "recipe", name, "metric", "percent", "standard_deviation", "seeds"], rows)


def _curve(panel: Axes, recipe: str, sweep: Sweep, metric: str, scale: float) -> None:
    """Draw one curve with its standard deviation over seeds, and a star at the best average of both F1."""
    at = [scale * setting for setting in sweep]
    values = list(means(sweep, metric).values())
    spreads = [deviation(found, metric) for found in sweep.values()]
    colour = COLOURS[recipe]
    panel.plot(at, values, color=colour, marker=MARKERS[recipe], markersize=4, label=NAMES[recipe])
    low, high = ([v + sign * s for v, s in zip(values, spreads, strict=True)] for sign in (-1, 1))
    panel.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)
    top = best(sweep)
    star = [means(sweep, metric)[top]]
    panel.plot(
        [scale * top], star, color=colour, marker="*", markersize=13, linestyle="none", label="highest average on test"
    )


def groups(results: Sequence[Result]) -> Drawing:
    """Draw the mean F1 of the labels in each frequency group, with the gains here and in the paper."""
    names = [
        corpus
        for corpus in corpora(results, ["denn"])
        if select(results, corpus, "bert") and select(results, corpus, "denn")
    ]
    figure, axes = panels(names, 1, "both bert and denn")
    rows: list[list[object]] = []
    for (panel,), corpus in zip(axes, names, strict=True):
        scores = {recipe: group_scores(select(results, corpus, recipe)) for recipe in ("bert", "denn")}
        sizes = {group["name"]: group["labels"] for group in groups_of(select(results, corpus, "denn")[0])}
        shown = list(sizes)
        for offset, (recipe, found) in zip((-0.2, 0.2), scores.items(), strict=True):
            heights, spreads = [fmean(found[name]) for name in shown], [deviation_of(found[name]) for name in shown]
            at = [place + offset for place in range(len(shown))]
            errors = spreads if any(spreads) else None
            panel.bar(at, heights, 0.38, yerr=errors, color=COLOURS[recipe], label=NAMES[recipe], capsize=3)
            rows += [
                [corpus, recipe, name, sizes[name], height, spread, len(found[name])]
                for name, height, spread in zip(shown, heights, spreads, strict=True)
            ]
        printed = paper.GROUP_GAINS.get(corpus, {})
        for place, name in enumerate(shown):
            gain = f"{fmean(scores['denn'][name]) - fmean(scores['bert'][name]):+z.1f}"
            in_paper = f"\npaper {printed[name]:+.1f}" if name in printed else ""
            top = max(fmean(found[name]) + deviation_of(found[name]) for found in scores.values())
            panel.text(place, top + 2, gain + in_paper, ha="center", va="bottom", fontsize=9)
        panel.set_xticks(range(len(shown)), [f"{_range(name)}\n{_count(sizes[name])}" for name in shown])
        panel.set(xlabel="training documents per label", ylabel="mean F1 of the labels, %", title=title(corpus))
        panel.set_ylim(0, min(118, panel.get_ylim()[1] + 16))
        panel.grid(visible=False, axis="x")
    legend(figure, axes)
    return Drawing(figure, ["corpus", "recipe", "group", "labels", "percent", "standard_deviation", "seeds"], rows)


def _range(name: str) -> str:
    return name.replace("<=", "≤ ").replace(">", "> ").replace("-", "–")


def _count(labels: int) -> str:
    return f"{labels} label{'s' if labels > 1 else ''}"


def frequency(results: Sequence[Result]) -> Drawing:
    """Draw the F1 of each label in the test split against its training frequency, and the means of equal-sized bins."""
    recipes = ("bert", "denn")
    names = corpora(results, recipes)
    figure, axes = panels(names, 1, "bert or denn")
    rows: list[tuple[str, str, str, int, float]] = []
    for (panel,), corpus in zip(axes, names, strict=True):
        for recipe in recipes:
            points = label_points(select(results, corpus, recipe))
            if not points:
                continue
            many = len(points) > 300
            at, f1 = [float(train) for _, train, _ in points], [value for *_, value in points]
            colour, size = COLOURS[recipe], 6 if many else 18
            panel.scatter(at, f1, s=size, color=colour, alpha=0.15 if many else 0.6, linewidths=0, rasterized=many)
            share = -(-len(points) // BINS)
            bins = [points[start : start + share] for start in range(0, len(points), share)]
            centres = [fmean(train for _, train, _ in some) for some in bins]
            heights = [fmean(value for *_, value in some) for some in bins]
            panel.plot(centres, heights, color=colour, marker=MARKERS[recipe], markersize=5, label=NAMES[recipe])
            rows += [(corpus, recipe, *point) for point in points]
        panel.set_xscale("symlog", linthresh=1)
        ticks = _ticks([row[3] for row in rows if row[0] == corpus])
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.set(xlabel="training documents per label", ylabel="F1 of the label, %", title=title(corpus))
        panel.set_ylim(-2, 102)
    legend(figure, axes)
    return Drawing(figure, ["corpus", "recipe", "label", "training_documents", "percent"], rows)


def _ticks(counts: Sequence[int]) -> list[int]:
    """Return the powers of ten within the range of counts, with 2 and 5 times them if the range is small."""
    low, high = min(counts), max(counts)
    steps = (1, 2, 5) if high < 100 * max(low, 1) else (1,)
    return [tick for tick in (0, *(step * 10**e for e in range(7) for step in steps)) if low <= tick <= high]


def label_points(runs: Sequence[Result]) -> list[tuple[str, int, float]]:
    """Return label, training frequency and mean F1 in percent over seeds for the labels in test, rarest first."""
    if not runs:
        return []
    table = runs[0].data["test"]["per_label"]
    f1 = [fmean(values) for values in zip(*(run.data["test"]["per_label"]["f1"] for run in runs), strict=True)]
    points = zip(table["label"], table["train"], table["support"], f1, strict=True)
    found = [(label, train, 100 * value) for label, train, support, value in points if support]
    return sorted(found, key=lambda point: (point[1], point[0]))


def schedule(results: Sequence[Result]) -> Drawing:
    """Draw the classifier's validation micro-F1 at 0.5 over the training steps, one line per seed."""
    names = corpora(results, COLOURS)
    figure, axes = panels(names, 1, "a training history")
    rows: list[list[object]] = []
    for (panel,), corpus in zip(axes, names, strict=True):
        for recipe, colour in COLOURS.items():
            for run in select(results, corpus, recipe):
                steps = [entry["step"] for entry in run.data["history"]]
                scores = [100 * entry.get("micro_f1", entry["score"]) for entry in run.data["history"]]
                panel.plot(
                    steps, scores, color=colour, marker=MARKERS[recipe], markersize=3, alpha=0.8, label=NAMES[recipe]
                )
                rows += [[corpus, recipe, run.seed, *pair] for pair in zip(steps, scores, strict=True)]
        shown = sorted(float(str(row[-1])) for row in rows if row[0] == corpus)
        low = shown[len(shown) // 20] - 1  # a line that leaves the plot at the bottom is a collapsed run
        panel.set(xlabel="training steps", ylabel="micro-F1 on validation, %", title=title(corpus))
        panel.set(xlim=(0, None), ylim=(low, shown[-1] + 1))
    legend(figure, axes)
    return Drawing(figure, ["corpus", "recipe", "seed", "step", "percent"], rows)


def embedding_map(maps: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw the maps of `denn bench map`: test texts as crosses, training documents coloured by label similarity."""
    if not maps:
        raise DataError("The results contain no embedding map. Run `denn bench map MODEL CORPUS` first.")
    figure = Figure(figsize=(WIDTH, 6 * len(maps)))
    rows: list[list[object]] = []
    for panel, found in zip(figure.subplots(len(maps), 1, squeeze=False)[:, 0], maps, strict=True):
        test, train = found["test"], found["train"]
        order = sorted(range(len(train["x"])), key=lambda row: train["overlap"][row])  # draw similar documents on top
        x, y, overlap = ([train[axis][row] for row in order] for axis in ("x", "y", "overlap"))
        shade = panel.scatter(x, y, c=overlap, s=9, cmap="viridis_r", vmin=0, vmax=1, linewidths=0, rasterized=True)
        panel.scatter(test["x"], test["y"], marker="X", s=70, color="#D55E00", edgecolors="white", label="test texts")
        bar = figure.colorbar(shade, ax=panel, label="label similarity of a training document", shrink=0.8)
        bar.outline.set_visible(False)
        panel.set(xticks=[], yticks=[], title=f"{title(found['corpus'])}: {', '.join(found['label_set'])}")
        panel.set_xlabel(
            f"t-SNE of cosine distances. Over all {found['documents']:,} training documents: Spearman correlation "
            f"of label\nand cosine similarity {found['spearman']:.2f}; label similarity of the "
            f"{found['nearest']} nearest {found['nearest_overlap']:.2f}, of any document {found['random_overlap']:.2f}."
        )
        panel.spines[:].set_visible(False)
        panel.legend(loc="upper right")
        places = zip(test["x"], test["y"], strict=True)
        rows += [[found["corpus"], "test", *place, 1.0] for place in places]
        rows += [[found["corpus"], "train", *point] for point in zip(x, y, overlap, strict=True)]
    return Drawing(figure, ["corpus", "part", "x", "y", "label_similarity"], rows)


def panels(
    names: Sequence[str], columns: int, needed: str, command: str = "denn bench run"
) -> tuple[Figure, Sequence[Sequence[Axes]]]:
    """Create a row of panels for each corpus."""
    if not names:
        raise DataError(f"The results contain no run with {needed}. Run `{command}` first.")
    figure = Figure(figsize=(WIDTH, HEIGHT * len(names) + 0.5))
    axes: Sequence[Sequence[Axes]] = figure.subplots(len(names), columns, squeeze=False).tolist()
    return figure, axes


def legend(figure: Figure, axes: Sequence[Sequence[Axes]]) -> None:
    """Add one legend below all panels, with each name once."""
    handles: dict[str, Any] = {}
    for panel in (panel for row in axes for panel in row):
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(5, len(handles)))


def deviation_of(values: Sequence[float]) -> float:
    """Return the standard deviation; 0 for one value."""
    return stdev(values) if len(values) > 1 else 0.0

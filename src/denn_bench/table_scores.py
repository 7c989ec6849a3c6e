"""Tables of scores: the main tables, the ablation, losses and views, combinations, thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from denn_bench import paper
from denn_bench.paper import Printed
from denn_bench.result import Result, select
from denn_bench.significance import (
    METRICS,
    Comparison,
    common,
    compare,
    decided,
    described,
    pooled_bootstrap,
    probability,
)
from denn_bench.summary import (
    HEADLINE,
    NOTHING,
    RISING_A_LITTLE,
    STILL_RISING,
    UNCONVERGED,
    Table,
    answer_percent,
    budget_ended,
    collapse,
    corpora,
    dated,
    explained,
    f1_percent,
    markdown,
    pair,
    percent,
    printed,
    printed_f1,
    rise,
    rising,
    seeds,
    still_rises,
    title,
)

TUNED = {"denn-tuned": "DENN, tuned beyond the paper"}
LOSSES = {"denn-ucl": "UCL", "denn-scl": "SCL", "denn-wscl": "WSCL", "denn": "debiased (the paper's)"}
POSITIVES = {
    "denn-masking": "random masking",
    "denn-span": "continuous masking",
    "denn-shuffle": "token shuffling",
    "denn": "dropout (the paper's)",
}
ABLATION = {  # row → recipe and part
    "BERT": ("bert-knn", "classifier"),
    "+ kNN": ("bert-knn", "average"),
    "+ DCL": ("denn", "average"),
    "+ debiased λ": ("denn", "final"),
    "classifier": ("denn", "classifier"),
    "kNN": ("denn", "neighbours"),
    "DENN": ("denn", "final"),
}
STEPS = (
    ("BERT", "+ kNN"),
    ("+ kNN", "+ DCL"),
    ("+ DCL", "+ debiased λ"),
    ("BERT", "+ debiased λ"),
    ("classifier", "kNN"),
    ("classifier", "DENN"),
    ("kNN", "DENN"),
)
Part = tuple[Sequence[Result], str]  # runs, and the part of their score that decides


def main(results: Sequence[Result], corpus: str) -> Table:
    """Compare every system of the paper on one corpus with the printed numbers (RQ1)."""
    printed_rows, runs = paper.MAIN[corpus], select(results, corpus)
    names = {**paper.SYSTEMS, **TUNED}  # systems of related work have no numbers in the paper
    rows, used = [], []
    for recipe, name in names.items():
        mine = select(runs, recipe=recipe)
        row = printed_rows.get(recipe, Printed())
        cells = [
            printed(row.micro_f1),
            rising(answer_percent(mine, "micro_f1"), mine),
            printed(row.macro_f1),
            answer_percent(mine, "macro_f1"),
            pair(printed(row.micro_precision), printed(row.micro_recall)),
            pair(answer_percent(mine, "micro_precision"), answer_percent(mine, "micro_recall")),
            pair(printed(row.macro_precision), printed(row.macro_recall)),
            pair(answer_percent(mine, "macro_precision"), answer_percent(mine, "macro_recall")),
        ]
        if any(still_rises(run) for run in mine):
            cells[1::2] = [UNCONVERGED, *[NOTHING] * 3]
        if mine or recipe in printed_rows:
            rows.append([dated(recipe, name, mine), *cells, str(len(mine) or NOTHING)])
        used += mine
    kinds = ("micro-F1", "macro-F1", "micro-P / R", "macro-P / R")
    header = ["system", *(f"{kind}, {where}" for kind in kinds for where in ("paper", "here")), "seeds"]
    parts = [f"### {title(corpus)}: all systems, percent", *explained(markdown(header, rows)), *_notes(used, names)]
    for a, b in (("denn", "bert"), ("denn-tuned", "denn")):
        first, second = select(runs, recipe=a), select(runs, recipe=b)
        if common(first, second):
            parts.append(compare(first, second, "final", "final"))
    if common(select(runs, recipe="denn"), select(runs, recipe="bert")):
        parts.append(_claim(select(runs, recipe="denn"), select(runs, recipe="bert"), printed_rows))
    return Table("\n\n".join(parts), used)


def _notes(runs: Sequence[Result], names: Mapping[str, str]) -> list[str]:
    """List what is special about single runs."""

    def name(run: Result) -> str:
        return names[run.recipe] + f" (seed {run.seed})" * (len(select(runs, recipe=run.recipe)) > 1)

    ended = [f"{name(run)} {reason}" for run in runs if (reason := budget_ended(run))]
    collapsed = [f"{name(run)} after step {step}" for run in runs if (step := collapse(run)) is not None]
    by_recipe = {recipe: select(runs, recipe=recipe) for recipe in dict.fromkeys(run.recipe for run in runs)}
    marginals = [
        f"{names[recipe]} {pair(*(percent(some, 'final', metric) for metric in METRICS))}"
        for recipe, some in by_recipe.items()
        if some[0].answer == "sequence" and not any(map(still_rises, some))
    ]
    listed = {
        "Ended by a time budget": ended,
        "Training collapsed, and the weights before it count": collapsed,
        "Systems that write a sequence are scored by the best one. By the probability of each label over all "
        "sequences and a tuned threshold": marginals,
    }
    return [f"{what}: {'; '.join(those)}." for what, those in listed.items() if those]


def _claim(denn: Sequence[Result], bert: Sequence[Result], rows: Mapping[str, Printed]) -> str:
    seeds_used = len(common(denn, bert))
    found = []
    for metric, name in zip(METRICS, ("Micro-F1", "macro-F1"), strict=True):
        here, in_paper = difference((denn, "final"), (bert, "final"), metric), change(rows, "bert", "denn", metric)
        found.append(f"{name}: {verdict(here, in_paper, seeds_used)}")
    if any(rise(run) > RISING_A_LITTLE for run in (*denn, *bert)):
        found.append(f"training had not converged ({STILL_RISING})")
    return f"The paper claims that DENN beats BERT. {'; '.join(found)}."


def ranking(results: Sequence[Result]) -> Table:
    """Rank the systems of the paper by micro-F1 on every corpus, also on those that are not in the paper."""
    shown = corpora(results, paper.SYSTEMS)
    used, cells = [], {recipe: [NOTHING] * len(shown) for recipe in paper.SYSTEMS}
    for number, corpus in enumerate(shown):
        runs = {recipe: select(results, corpus, recipe) for recipe in paper.SYSTEMS}
        runs = {recipe: some for recipe, some in runs.items() if some and not any(map(still_rises, some))}
        means = {recipe: fmean(run.f1(run.answer, HEADLINE)[0] for run in some) for recipe, some in runs.items()}
        for place, recipe in enumerate(sorted(means, key=means.__getitem__, reverse=True), 1):
            scores = rising(pair(*(answer_percent(runs[recipe], metric) for metric in METRICS)), runs[recipe])
            cells[recipe][number] = dated(recipe, f"{place}: {scores}", runs[recipe])
            used += runs[recipe]
    rows = [[name, *cells[recipe]] for recipe, name in paper.SYSTEMS.items() if set(cells[recipe]) != {NOTHING}]
    header = ["system", *(title(corpus) for corpus in shown)]
    note = f"Place by micro-F1: micro-F1 / macro-F1. {NOTHING}: no run, or not trained to convergence."
    heading = "### Systems by place on every corpus, percent"
    return Table("\n\n".join([heading, *explained(markdown(header, rows)), note]), used)


def ablation(results: Sequence[Result]) -> Table:
    """Show the ablation BERT → + kNN → + DCL → + debiased λ, and the parts of DENN alone (RQ2)."""
    texts, used = ["### Ablation, percent"], []
    for corpus in corpora(results, ("bert", "bert-knn", "denn"), ["aapd"]):
        parts = {name: (select(results, corpus, recipe), part) for name, (recipe, part) in ABLATION.items()}
        plain = select(results, corpus, "bert")  # the same weights, possibly with more seeds
        if len(plain) > len(parts["BERT"][0]):
            parts["BERT"] = (plain, "final")
        rows = paper.ABLATION.get(corpus, {})
        texts += [f"**{title(corpus)}**", _ablation_rows(parts, rows), _ablation_steps(parts, rows)]
        used += [run for runs, _ in parts.values() for run in runs]
    texts.append(
        "A step holds if the difference has the paper's sign and its 95 % interval excludes 0. The interval comes from "
        "a bootstrap over the test documents, pooled over the common seeds. A difference whose interval contains 0 is "
        "not significant. With one seed, only the sign is stated: the interval does not include the effect of the seed."
    )
    return Table("\n\n".join(texts), used)


def _ablation_rows(parts: Mapping[str, Part], rows: Mapping[str, Printed]) -> str:
    lines = []
    for name, (runs, part) in parts.items():
        row = rows.get(name, Printed())
        cells = [cell for metric in METRICS for cell in (printed(getattr(row, metric)), percent(runs, part, metric))]
        lines.append([name, *cells, seeds(runs)])
    return markdown(
        ["system", "micro-F1, paper", "micro-F1, here", "macro-F1, paper", "macro-F1, here", "seeds"], lines
    )


def _ablation_steps(parts: Mapping[str, Part], rows: Mapping[str, Printed]) -> str:
    lines = []
    for before, after in STEPS:
        cells = []
        for metric in METRICS:
            in_paper = change(rows, before, after, metric)
            cells.append(NOTHING if in_paper is None else f"{in_paper:+.1f}")
            if common(parts[after][0], parts[before][0]):
                found = difference(parts[after], parts[before], metric)
                seeds_used = len(common(parts[after][0], parts[before][0]))
                cells += [described(found)[0], verdict(found, in_paper, seeds_used)]
            else:
                cells += [NOTHING, NOTHING]
        both = [run for run, _ in common(parts[after][0], parts[before][0])]
        lines.append([f"{before} → {after}", *cells, seeds(both)])
    kinds = [f"{kind}, {what}" for kind in ("micro-F1", "macro-F1") for what in ("paper", "here", "sign")]
    return markdown(["step", *kinds, "seeds"], lines)


def difference(after: Part, before: Part, metric: str) -> Comparison:
    """Compare the parts of runs with common seeds, pooled over the seeds."""
    pairs = decided(common(after[0], before[0]), after[1], before[1])
    return pooled_bootstrap(pairs, "micro_f1" if metric == "micro_f1" else "macro_f1")


def change(rows: Mapping[str, Printed], before: str, after: str, metric: str) -> float | None:
    """Return the difference of two printed rows, or None if the paper has no numbers."""
    values = [getattr(rows.get(name, Printed()), metric) for name in (after, before)]
    return None if None in values else values[0] - values[1]


def verdict(found: Comparison, in_paper: float | None, seeds_used: int) -> str:
    """State whether a difference is significant and has the paper's sign, or is a gain if the paper has no number.

    The bootstrap over documents does not see that another seed may keep another checkpoint: one seed is not a finding.
    """
    alike = found.difference * (1 if in_paper is None else in_paper) > 0
    sign = f"{'same' if alike else 'opposite'} sign"
    if seeds_used < 2:
        return f"one seed, {sign}"
    if found.low <= 0 <= found.high:
        return f"not significant, {sign}"
    return "holds" if alike else "does not hold"


def contrast(results: Sequence[Result]) -> Table:
    """Compare the contrastive losses (RQ3)."""
    return _variants(results, "Contrastive losses", "loss", LOSSES, paper.CONTRAST)


def views(results: Sequence[Result]) -> Table:
    """Compare the ways to create a second view of a text (RQ3)."""
    return _variants(results, "Positives", "second view by", POSITIVES, paper.VIEWS)


def _variants(
    results: Sequence[Result], heading: str, what: str, names: Mapping[str, str], rows: Mapping[str, Printed]
) -> Table:
    """Compare the variants of DENN with the paper's and with DENN itself."""
    texts, used = [f"### {heading}, percent"], []
    for corpus in corpora(results, [name for name in names if name != "denn"], ["aapd"]):
        denn = select(results, corpus, "denn")
        lines = []
        for recipe, name in names.items():
            runs = select(results, corpus, recipe)
            against = [NOTHING, NOTHING]
            if recipe != "denn" and common(runs, denn):
                against = [described(difference((runs, "final"), (denn, "final"), metric))[0] for metric in METRICS]
            in_paper = printed_f1(rows[recipe] if corpus == "aapd" else None)
            here = f1_percent(runs, "final")
            here[0] = rising(here[0], runs)
            cells = [cell for pair in zip(in_paper, here, strict=True) for cell in pair]
            lines.append([name, *cells, *against, seeds(runs)])
            used += runs
        kinds = [f"{kind}, {where}" for kind in ("micro-F1", "macro-F1", "average") for where in ("paper", "here")]
        header = [what, *kinds, "micro-F1 against DENN", "macro-F1 against DENN", "seeds"]
        shown = [run for recipe in names for run in select(results, corpus, recipe)]
        texts += [f"**{title(corpus)}**", *explained(markdown(header, lines)), *_notes(shown, names)]
    texts.append(
        "Differences use the common seeds, with the 95 % interval of the pooled bootstrap. With one seed, the interval "
        "does not include the effect of the seed."
    )
    return Table("\n\n".join(texts), used)


def combination(results: Sequence[Result]) -> Table:
    """Compare the plain average of classifier and neighbours with the debiased λ, on every corpus and seed."""
    lines, used = [], []
    recipes = ("denn", "denn-linear", "denn-tuned")
    for corpus in corpora(results, recipes):
        for recipe in recipes:
            runs = select(results, corpus, recipe)
            groups = [[run] for run in runs] + ([list(runs)] if len(runs) > 1 else [])
            for some in groups:
                cells = []
                by_confidence = "confidence" if "confidence" in some[0].data["decisions"] else "final"
                for metric in METRICS:
                    found = difference((some, "average"), (some, by_confidence), metric)
                    values = [percent(some, part, metric) for part in (by_confidence, "average")]
                    cells += [*values, described(found)[0], probability(found.p)]
                lines.append([f"{title(corpus)}, {recipe}", seeds(some), *cells])
            used += runs
    kinds = [f"{kind}, {what}" for kind in ("micro-F1", "macro-F1") for what in ("λ", "average", "average − λ", "p")]
    printed_gains = "; ".join(
        f"{title(corpus)} {change(rows, '+ debiased λ', '+ DCL', 'micro_f1'):+.1f} / "
        f"{change(rows, '+ debiased λ', '+ DCL', 'macro_f1'):+.1f}"
        for corpus, rows in paper.ABLATION.items()
    )
    table = markdown(["runs", "seeds", *kinds], lines)
    note = f"The paper's average − λ, micro / macro: {printed_gains}."
    return Table(f"### Plain average against debiased λ, percent\n\n{table}\n\n{note}", used)


def thresholds(results: Sequence[Result]) -> Table:
    """Compare fixed thresholds, the tuned one and those tuned per label."""
    kinds = {"0.4": "0.4", "0.45": "0.45", "0.5": "0.5", "tuned": "tuned", "per_label": "per label"}
    recipes = ("bert", "denn", "denn-tuned")
    lines, used = [], []
    for corpus in corpora(results, recipes):
        for recipe in recipes:
            runs = select(results, corpus, recipe)
            parts = [part for part in ("final", "average") if runs and part in runs[0].data["test"]["systems"]]
            for part in parts:
                cells = [pair(*(percent(runs, part, metric, kind) for metric in METRICS)) for kind in kinds]
                lines.append([f"{title(corpus)}, {recipe} ({part})", *cells, seeds(runs)])
            used += runs
    table = markdown(["system", *kinds.values(), "seeds"], lines)
    return Table(f"### Thresholds: micro-F1 / macro-F1, percent\n\n{table}", used)

"""Tables of costs and settings: overhead, parameters, speed, settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from denn_bench import paper
from denn_bench.result import Result, completed, select
from denn_bench.summary import (
    NOTHING,
    OUTDATED,
    Table,
    answer_percent,
    budget_ended,
    corpora,
    dated,
    device,
    explained,
    markdown,
    measured,
    pair,
    percent,
    rising,
    seeds,
    title,
)

GB = 1e9
NEUTRAL = {"seed", "device", "time_budget", "checkpoint_seconds"}  # parameters that do not affect the method
PARTS = ("classifier", "neighbours", "average", "final")


def overhead(results: Sequence[Result]) -> Table:
    """Show the cost of the neighbours at inference, in time and space."""
    rows, used = [], []
    for corpus in corpora(results, ["denn"], paper.OVERHEAD):
        runs = select(results, corpus, "denn")
        timed = [run for run in runs if not run.data["cost"].get("timed_briefly")]  # with the whole datastore
        cells = [
            measured(timed, lambda run: _cost(run, "inference_ms_per_text_without_neighbours"), 3),
            measured(timed, lambda run: _cost(run, "inference_ms_per_text"), 3),
            measured(timed, _extra_share, 1),
            measured(timed, lambda run: _cost(run, "prediction_ms_per_text"), 3),
            measured(timed, lambda run: _cost(run, "prediction_ms_per_text_with_evidence"), 3),
            measured(runs, lambda run: _cost(run, "store_bytes", GB), 3),
        ]
        if corpus in paper.OVERHEAD:
            row = paper.OVERHEAD[corpus]
            share = 100 * (row.with_neighbours / row.without_neighbours - 1)
            cells_of_paper = [f"{row.without_neighbours:.2f}", f"{row.with_neighbours:.2f}", f"{share:.1f}"]
            cells_of_paper += [NOTHING, NOTHING, f"{row.store_gb:.3f}", NOTHING]
            rows.append([f"{title(corpus)}, paper", *cells_of_paper])
        rows.append([f"{title(corpus)}, here", *cells, seeds(runs)])
        used += runs
    header = [
        "corpus", "scores without neighbours, ms/text", "with, ms/text", "extra time, %", "predictions, ms/text",
        "with evidence, ms/text", "datastore, GB", "seeds",
    ]  # fmt: skip
    note = (
        "The paper used four V100 GPUs. The size of the datastore is that of its embeddings, without texts and labels. "
        "Predictions are the output of `predict`: labels and scores without evidence, or with the texts of all k "
        "neighbours."
    )
    return Table(f"### Time and space of the neighbours\n\n{markdown(header, rows)}\n\n{note}", used)


def _extra_share(run: Result) -> float | None:
    both = _cost(run, "inference_ms_per_text")
    alone = _cost(run, "inference_ms_per_text_without_neighbours")
    return 100 * (both / alone - 1) if both and alone else None


def _cost(run: Result, name: str, unit: float = 1.0) -> float | None:
    value = run.data["cost"].get(name)
    return None if value is None else value / unit


def parameters(results: Sequence[Result]) -> Table:
    """Show the parameters of encoder and head, and those that a system adds."""
    rows, used = [], []
    recipes = {run.recipe for run in results}
    for corpus in corpora(results, recipes, paper.EXTRA_PARAMETERS):
        in_paper = paper.EXTRA_PARAMETERS.get(corpus, {})
        here = {run.recipe for run in select(results, corpus)}
        for recipe in [*in_paper, *sorted(here - in_paper.keys())]:
            runs = select(results, corpus, recipe)[:1]  # the seed changes nothing
            sizes = runs[0].data["cost"]["parameters"] if runs else None
            counts = [f"{sizes[part]:,}" if sizes else NOTHING for part in ("encoder", "head", "extra")]
            extra = f"{in_paper[recipe]:,}" if recipe in in_paper else NOTHING
            rows.append([f"{title(corpus)}, {paper.SYSTEMS.get(recipe, recipe)}", *counts, extra])
            used += runs
    header = ["system", "encoder", "head", "extra, here", "extra, paper"]
    return Table(f"### Numbers of parameters\n\n{markdown(header, rows)}", used)


def systems(results: Sequence[Result]) -> Table:
    """Show the cost of every system: parameters, training time, scoring time per text."""
    texts, used = ["### Cost of every system"], []
    header = [
        "system",
        "million parameters",
        "in encoder",
        "epoch, s",
        "epochs",
        "training, s",
        "scoring, ms/text",
    ]
    for corpus in corpora(results, paper.SYSTEMS):
        rows = []
        for recipe, name in paper.SYSTEMS.items():
            for machine in sorted({device(run) for run in select(results, corpus, recipe)}):
                runs = [run for run in select(results, corpus, recipe) if device(run) == machine]
                cells = [
                    measured(runs[:1], lambda run: _millions(run, "encoder", "head", "extra"), 2),  # of any seed
                    measured(runs[:1], lambda run: _millions(run, "encoder"), 2),
                    measured(runs, lambda run: _cost(run, "epoch_seconds"), 1),
                    measured(runs, lambda run: _cost(run, "epochs"), 1),
                    measured(runs, lambda run: _cost(run, "training_seconds") or _cost(run, "seconds"), 0),
                    measured(runs, lambda run: _cost(run, "inference_ms_per_text"), 2),
                ]
                rows.append([dated(recipe, name, runs), *cells, machine, seeds(runs)])
                used += runs
        texts += [f"**{title(corpus)}**", markdown([*header, "machine", "seeds"], rows)]
    note = (
        "Scoring is timed on the first 1,000 test documents, including neighbours and label sequences. If a run shared "
        "its GPU, the scoring time is that of a short separate run (`denn bench time`) with 8,000 training documents, "
        "and the epoch time is the shorter of the two. DENN's scoring time comes from a short separate run with all "
        f"documents in the datastore, on up to 4,096 texts. {OUTDATED}: run before the review of 18 November 2026; the "
        "system has changed since."
    )
    return Table("\n\n".join([*texts, note]), used)


def _millions(run: Result, *parts: str) -> float | None:
    sizes = run.data["cost"]["parameters"]
    return None if sizes is None else sum(sizes[part] for part in parts) / 1e6


def speed(results: Sequence[Result]) -> Table:
    """Show the speed and memory of training."""
    rows, used = [], []
    for corpus in corpora(results, {run.recipe for run in results}):
        for recipe in sorted({run.recipe for run in select(results, corpus)}):
            for machine in sorted({device(run) for run in select(results, corpus, recipe)}):
                runs = [run for run in select(results, corpus, recipe) if device(run) == machine]
                cells = [
                    measured(runs, lambda run: _cost(run, "tokens_per_second"), 0),
                    measured(runs, lambda run: _cost(run, "mfu", 0.01), 1),
                    measured(runs, lambda run: _cost(run, "matrix_rate", 1e12), 0),
                    measured(runs, lambda run: _cost(run, "epoch_seconds"), 1),
                    measured(runs, lambda run: _cost(run, "training_seconds"), 0),
                    measured(runs, lambda run: _cost(run, "peak_memory_bytes", GB), 1),
                ]
                rows.append([f"{title(corpus)}, {recipe}", *cells, machine, seeds(runs)])
                used += runs
    columns = ["tokens/s", "MFU, %", "matrix rate, TFLOP/s", "epoch, s", "training, s", "peak memory, GB"]
    note = "MFU: 6 × parameters in the layers × tokens per second / bf16 matrix rate measured on the same machine."
    return Table(f"### Speed of training\n\n{markdown(['runs', *columns, 'machine', 'seeds'], rows)}\n\n{note}", used)


def settings(results: Sequence[Result]) -> Table:
    """Compare every setting of DENN that was tried with the paper's."""
    mine = [run for run in results if run.data["recipe"]["method"] == "denn"]
    texts, used = ["### What changes the scores: micro-F1 / macro-F1, percent"], []
    for corpus in corpora(mine, {run.recipe for run in mine}):
        runs = select(mine, corpus)
        like = [
            *runs,
            *select(mine, corpus.removesuffix("-extra")),
        ]  # a corpus that only adds documents may have no base
        base = next((run for run in like if run.recipe == "denn"), None)
        groups: dict[tuple[str, str], list[Result]] = {}
        for run in runs:
            groups.setdefault((run.recipe, _changes(run, base)), []).append(run)
        rows = []
        for (recipe, changes), some in sorted(groups.items(), key=lambda item: (item[0][0] != "denn", item[0])):
            cells = [pair(percent(some, part, "micro_f1"), percent(some, part, "macro_f1")) for part in PARTS]
            rows.append([recipe if changes == NOTHING else f"{recipe}: {changes}", *cells, seeds(some)])
        texts += [f"**{title(corpus)}**", markdown(["recipe: difference from `denn`", *PARTS, "seeds"], rows)]
        used += runs
    return Table("\n\n".join(texts), used)


def variants(results: Sequence[Result]) -> Table:
    """Compare other settings of systems other than DENN with their own recipes."""
    texts, used = ["### Other settings of other systems, percent"], []
    methods = {run.recipe: str(run.data["recipe"]["method"]) for run in results}
    others = {recipe for recipe, method in methods.items() if method != "denn" and recipe not in paper.SYSTEMS}
    for corpus in corpora(results, others):
        rows = []
        here = sorted({run.recipe for run in select(results, corpus) if run.recipe in others})
        for method in sorted({methods[recipe] for recipe in here}):
            base = select(results, corpus, method)
            for recipe in [method, *(name for name in here if methods[name] == method)]:
                runs = select(results, corpus, recipe)
                changes = _changes(runs[0], base[0] if base else None) if recipe != method else NOTHING
                scores = [answer_percent(runs, metric) for metric in ("micro_f1", "macro_f1")]
                scores[0] = rising(scores[0], runs)
                steps = measured(runs, lambda run: _cost(run, "steps"), 0)
                rows.append([recipe if changes == NOTHING else f"{recipe}: {changes}", steps, *scores, seeds(runs)])
                used += runs
        header = ["recipe: difference from its method", "steps", "micro-F1", "macro-F1", "seeds"]
        shown = (run for recipe in here for run in select(results, corpus, recipe))
        ended = [f"{run.recipe} {reason}" for run in shown if (reason := budget_ended(run))]
        texts += [f"**{title(corpus)}**", *explained(markdown(header, rows))]
        texts += [f"Ended by a time budget: {'; '.join(ended)}."] * bool(ended)
    return Table("\n\n".join(texts), used)


def _changes(run: Result, base: Result | None) -> str:
    """List the parameters that differ from another run's, and the size of the training split if it differs."""
    if base is None:
        return "(no run to compare with)"
    mine, its = _settings(run), _settings(base)
    return ", ".join(f"{name} {value}" for name, value in mine.items() if value != its.get(name)) or NOTHING


def _settings(run: Result) -> dict[str, Any]:
    kept = {name: value for name, value in completed(run.data["recipe"])["parameters"].items() if name not in NEUTRAL}
    return kept | {"training documents": run.data["corpus"]["train"]}

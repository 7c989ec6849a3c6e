"""Every table of the benchmark by name, in Markdown, with the paper's numbers next to ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from denn.errors import ConfigError
from denn.registry import did_you_mean
from denn_bench import table_costs, table_scores, table_sweeps
from denn_bench.paper import MAIN
from denn_bench.result import Result
from denn_bench.summary import Table, caption

TABLES: dict[str, Callable[[Sequence[Result]], Table]] = {
    **{f"main-{corpus}": partial(table_scores.main, corpus=corpus) for corpus in MAIN},
    "ranking": table_scores.ranking,
    "ablation": table_scores.ablation,
    "contrast": table_scores.contrast,
    "views": table_scores.views,
    "k": table_sweeps.k,
    "gamma": table_sweeps.gamma,
    "datastore": table_sweeps.datastore,
    "groups": table_sweeps.groups,
    "overhead": table_costs.overhead,
    "parameters": table_costs.parameters,
    "combination": table_scores.combination,
    "thresholds": table_scores.thresholds,
    "settings": table_costs.settings,
    "speed": table_costs.speed,
    "systems": table_costs.systems,
    "variants": table_costs.variants,
}


def render(name: str, results: Sequence[Result]) -> str:
    """Return a table in Markdown, with a caption that names its source."""
    if name not in TABLES:
        raise ConfigError(f"There is no table {name!r}.{did_you_mean(name, TABLES)} Available: {', '.join(TABLES)}.")
    table = TABLES[name](results)
    return f"{table.text}\n\n{caption(f'denn bench table {name}', table.runs)}\n"

"""Draw the measurements of datastore.py, and print its table.

python -m denn_bench.studies.datastore_page [--results results] [--out docs/figures]

Figures: latency of one query, and memory, by the number of documents, for each store and width: stores.svg and .png,
with the data as stores.csv. The table goes to standard output, as Markdown for docs/datastore.md.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

STORES = {
    "exact": ("embedded, exact", "#0072B2", "o"),
    "approximate": ("embedded, approximate", "#009E73", "s"),
    "postgres": ("PostgreSQL", "#D55E00", "^"),
}
COLUMNS = {
    "documents": lambda row: f"{row['documents']:,}",
    "store": lambda row: STORES[row["store"]][0],
    "one query, ms": lambda row: f"{row['single']['ms']:.1f}",
    "bare engine, ms": lambda row: f"{row['single']['bare_ms']:.1f}",
    "ratio": lambda row: f"{row['single']['ratio']:.2f}",
    "64 queries, ms": lambda row: f"{row['batch']['ms']:.0f}",
    "ratio ": lambda row: f"{row['batch']['ratio']:.2f}",
    "recall": lambda row: f"{row['recall']:.3f}",
    "build, s": lambda row: "-" if row["build_s"] is None else f"{row['build_s']:.0f}",
    "bulk adds/s": lambda row: f"{row['bulk_per_s']:,.0f}",
    "single adds/s": lambda row: f"{row['single_per_s']:.0f}",
    "visible after, ms": lambda row: f"{row['visible_ms']:.0f}",
    "memory, bytes/doc.": lambda row: f"{row['memory_bytes_per_document']:,.0f}",
    "disk, bytes/doc.": lambda row: f"{row['disk_bytes_per_document']:,.0f}",
}


def measured(folder: Path) -> list[dict[str, Any]]:
    """Return all rows, by width, size and store."""
    rows = []
    for store in STORES:
        for file in sorted(folder.glob(f"datastore-{store}-*.json")):
            rows += [size | {"store": store} for size in json.loads(file.read_text())["sizes"]]
    return sorted(rows, key=lambda row: (row["dimension"], row["documents"], list(STORES).index(row["store"])))


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|--:|---|" + "--:|" * (len(COLUMNS) - 2)]
    lines += ["| " + " | ".join(write(row) for write in COLUMNS.values()) + " |" for row in rows]
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Draw latency by size, one panel per width."""
    matplotlib.rcParams["svg.hashsalt"] = "denn"
    widths = sorted({row["dimension"] for row in rows})
    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    panels = figure.subplots(1, len(widths), sharey=True, squeeze=False)[0]
    for panel, width in zip(panels, widths, strict=True):
        for store, (name, colour, marker) in STORES.items():
            mine = [row for row in rows if (row["store"], row["dimension"]) == (store, width)]
            sizes = [row["documents"] for row in mine]
            panel.plot(sizes, [row["single"]["ms"] for row in mine], color=colour, marker=marker, label=name)
            bare = [row["single"]["bare_ms"] for row in mine]
            panel.plot(sizes, bare, color=colour, linestyle=":", linewidth=1)
        panel.set(xscale="log", yscale="log", title=f"width {width}", xlabel="documents")
        panel.set_xticks(sorted({row["documents"] for row in rows}), labels=["50,000", "200,000", "800,000"])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("one query, ms")
    panels[0].set_yticks([2, 5, 10, 20, 50, 100], labels=["2", "5", "10", "20", "50", "100"])
    panels[0].plot([], [], color="#555555", linestyle=":", label="bare engine")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(out / "stores.png", dpi=150)
    figure.savefig(out / "stores.svg", metadata={"Date": None})
    with (out / "stores.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["width", *COLUMNS])
        writer.writerows([row["dimension"], *(write(row) for write in COLUMNS.values())] for row in rows)


def main() -> None:
    """Read the results, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    arguments = parser.parse_args()
    rows = measured(arguments.results)
    draw(rows, arguments.out)
    for width in sorted({row["dimension"] for row in rows}):
        print(f"**Width {width}**\n\n{table([row for row in rows if row['dimension'] == width])}\n")


if __name__ == "__main__":
    main()

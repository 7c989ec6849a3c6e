"""Every figure of the benchmark by name: SVG, PNG and the data as CSV, with the paper's numbers if it has any."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from denn.data.spreadsheets import write_table
from denn.errors import ConfigError, DataError, MissingExtraError
from denn.registry import did_you_mean
from denn.strict_json import loads
from denn_bench.map import KIND
from denn_bench.result import Result

FIGURES = {  # name → what it shows
    "k": "F1 against the number of neighbours",
    "gamma": "F1 against γ",
    "datastore": "F1 against the share of the training split in the datastore",
    "groups": "F1 of labels by frequency group, BERT and DENN",
    "frequency": "F1 of each label against its training frequency",
    "schedule": "validation score over the steps of training",
    "map": "test texts of one label set among training documents",
}
DPI = 150
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "grid.color": "#e3e3e3",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "figure.constrained_layout.w_pad": 0.08,
    "svg.hashsalt": "denn",  # makes the files reproducible
}


def draw(name: str, results: Sequence[Result], out: Path, folder: Path = Path("results")) -> list[Path]:
    """Draw a figure into the folder `out` as SVG, PNG and CSV, and return the files; `folder` contains the maps."""
    if name not in FIGURES:
        raise ConfigError(f"There is no figure {name!r}.{did_you_mean(name, FIGURES)} Available: {', '.join(FIGURES)}.")
    need_matplotlib()
    plots = import_module("denn_bench.plots")
    maker: Callable[[Sequence[Any]], Any] = plots.embedding_map if name == "map" else getattr(plots, name)
    return write(name, lambda: maker(read_maps(folder) if name == "map" else results), out)


def need_matplotlib() -> None:
    """Reject drawing without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("Drawing", "matplotlib", "bench") from error


def write(name: str, make: Callable[[], Any], out: Path) -> list[Path]:
    """Make a drawing and write it into a folder as SVG, PNG and CSV; return the files."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        drawing = make()
        pictures = {suffix: _picture(drawing.figure, suffix) for suffix in ("svg", "png")}
    table = write_table([drawing.columns, *([_plain(cell) for cell in row] for row in drawing.rows)])
    out.mkdir(parents=True, exist_ok=True)
    return [_write(out / f"{name}.{suffix}", content) for suffix, content in (*pictures.items(), ("csv", table))]


def read_maps(folder: Path) -> list[dict[str, Any]]:
    """Read the maps `<corpus>-map.json` of a folder."""
    maps = []
    for path in sorted(folder.glob("*-map.json")):
        try:
            found = loads(path.read_text(encoding="utf-8"))
        except ValueError as error:  # not UTF-8, or not JSON
            raise DataError(f"{path} is not a JSON file. Move it away, or run `denn bench map` again.") from error
        if isinstance(found, dict) and found.get("kind") == KIND:
            maps.append(found)
    return maps


def save(figure: Any, out: Path, name: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[Path]:
    """Write a figure reproducibly as SVG and PNG, and its data as CSV."""
    out.mkdir(parents=True, exist_ok=True)
    files = [_write(out / f"{name}.{suffix}", _picture(figure, suffix)) for suffix in ("svg", "png")]
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return [*files, out / f"{name}.csv"]


def _picture(figure: Any, suffix: str) -> bytes:
    """Return an image without the date and the program that made it."""
    content = io.BytesIO()
    nameless = {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
    figure.savefig(content, format=suffix, dpi=DPI, metadata=nameless)
    return content.getvalue()


def _plain(cell: object) -> object:
    return f"{cell:.6g}" if isinstance(cell, float) else cell


def _write(path: Path, content: bytes) -> Path:
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(content)
    temporary.replace(path)
    return path

"""Figures: the files, the data in them, and the paper's lines."""

import csv
import json

import matplotlib.colors
import pytest

from bench_runs import TRAIN, all_runs, run
from denn.errors import ConfigError, DataError
from denn_bench import plots
from denn_bench.figures import FIGURES, draw, read_maps

pytestmark = pytest.mark.slow  # draws and writes every figure

MAP = {
    "kind": "map",
    "corpus": "aapd",
    "label_set": ["cs.IT", "math.IT"],
    "test": {"x": [0.0, 0.5], "y": [0.0, 0.5]},
    "train": {"x": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0], "overlap": [1.0, 0.5, 0.0]},
    "documents": 40_827,
    "spearman": 0.61,
    "nearest": 30,
    "nearest_overlap": 0.92,
    "random_overlap": 0.11,
}


@pytest.fixture(scope="module")
def runs():
    return all_runs()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "aapd-map.json").write_text(json.dumps(MAP))
    (tmp_path / "aapd-denn-0.json").write_text("{}")
    return tmp_path


def table(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_written_thrice(name, runs, folder):
    one_corpus = [result for result in runs if result.corpus == "aapd"]
    written = draw(name, one_corpus, folder / "out", folder)
    assert [path.name for path in written] == [f"{name}.svg", f"{name}.png", f"{name}.csv"]
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(path.name for path in written)
    assert written[0].read_text().startswith("<?xml")
    assert written[1].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(table(written[2])) >= 4


def test_the_same_data_gives_the_same_bytes(folder):
    some = [run("bert"), run("denn")]
    first, again = (draw("groups", some, folder / name) for name in ("first", "again"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]


def test_an_unknown_figure_is_named_with_the_known_ones(runs, tmp_path):
    with pytest.raises(ConfigError, match=r"no figure 'gama'\. Did you mean 'gamma'\? Available: k, gamma, "):
        draw("gama", runs, tmp_path)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_without_runs_says_what_to_run(name, tmp_path):
    with pytest.raises(DataError, match="Run `denn bench"):
        draw(name, [], tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


def rows_of(drawing, **wanted):
    rows = [dict(zip(drawing.columns, row, strict=True)) for row in drawing.rows]
    return [row for row in rows if wanted.items() <= row.items()]


def test_the_data_of_a_sweep_are_means_over_seeds(runs):
    (best,) = rows_of(plots.k(runs), corpus="aapd", recipe="denn", k=30, metric="micro_f1")
    assert (best["percent"], best["standard_deviation"], best["seeds"]) == pytest.approx((74.6, 0.1, 3))


def test_one_seed_of_the_datastore_sweep_shows_the_spread_of_its_draws(runs):
    (one,) = rows_of(plots.datastore(runs), corpus="eurlex57k", datastore=0.4, metric="macro_f1")
    assert (one["standard_deviation"], one["seeds"]) == pytest.approx((0.3, 1))


def lines(figure, label):
    return [
        (panel.get_title(), *map(list, line.get_data()))
        for panel in figure.axes
        for line in panel.lines
        if line.get_label() == label
    ]


def test_the_papers_best_k_and_gain_are_drawn_where_it_prints_them(runs):
    assert [(name, x) for name, x, _ in lines(plots.k(runs).figure, "best in the paper")] == [("AAPD", [30, 30])] * 2
    gains = lines(plots.datastore(runs).figure, "the paper's gain")
    assert [(name, x) for name, x, _ in gains] == [("AAPD", [20, 100])] * 2
    assert [y[1] - y[0] for _, _, y in gains] == pytest.approx([1.4, 2.6])


def test_the_star_stands_at_the_best_average(runs):
    stars = lines(plots.gamma(runs).figure, "highest average on test")
    assert {x[0] for _, x, _ in stars} == {0.7}


def test_groups_print_the_gains_of_both(runs):
    texts = [text.get_text() for text in plots.groups(runs).figure.axes[0].texts]
    assert [text.split("\n")[1] for text in texts] == ["paper +3.9", "paper +2.8", "paper +10.9", "paper +2.0"]
    drawing = plots.groups(runs)
    bert, denn = ([row[4] for row in drawing.rows if row[:2] == ["aapd", recipe]] for recipe in ("bert", "denn"))
    assert texts[0].startswith(f"{denn[0] - bert[0]:+.1f}\n")


def test_a_group_without_labels_is_left_out():
    some = [run("bert"), run("denn")]
    for result in some:
        labels = result.data["test"]["per_label"]
        labels["train"] = [min(count, 4500) for count in labels["train"]]
    panel = plots.groups(some).figure.axes[0]
    assert len(panel.texts) == 3
    assert panel.texts[0].get_text().endswith("paper +2.8")


def test_frequency_has_the_labels_of_the_test_part_rarest_first():
    some = [run("denn", 0), run("denn", 1)]
    for result, f1 in zip(some, (0.25, 0.75), strict=True):
        result.data["test"]["per_label"]["f1"] = [f1] * len(TRAIN)
        result.data["test"]["per_label"]["support"][0] = 0
    points = plots.label_points(some)
    assert [train for _, train, _ in points] == sorted(TRAIN[1:])
    assert {value for *_, value in points} == {50.0}


@pytest.mark.parametrize(
    ("counts", "ticks"), [([300, 4000], [500, 1000, 2000]), ([0, 5000], [0, 1, 10, 100, 1000]), ([7], [])]
)
def test_ticks(counts, ticks):
    assert plots._ticks(counts) == ticks


def test_schedule_has_a_line_for_each_seed(runs):
    panel = plots.schedule([result for result in runs if result.corpus == "aapd"]).figure.axes[0]
    colours = [matplotlib.colors.to_hex(line.get_color()).upper() for line in panel.lines]
    assert [colours.count(plots.COLOURS[name]) for name in ("bert", "denn", "denn-tuned")] == [3, 3, 1]


def test_maps_are_those_of_their_kind_and_broken_ones_are_named(folder):
    (folder / "other-map.json").write_text('{"kind": "chart"}')
    assert read_maps(folder) == [MAP]
    assert "Spearman" in plots.embedding_map([MAP]).figure.axes[0].get_xlabel()
    for content in ("{", '{"kind": "map", "spearman": NaN}'):
        (folder / "broken-map.json").write_text(content)
        with pytest.raises(DataError, match=r"broken-map\.json is not a JSON file"):
            read_maps(folder)

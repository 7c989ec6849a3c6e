"""Charts: values are drawn at the right positions, and user text never becomes markup."""

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denn.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Series,
    around,
    bar,
    counts,
    fixed,
    histogram,
    line,
    per_cent,
    scatter,
)

PER_CENT = fixed("per cent", 0, 100)


def parsed(figure):
    """Parse a figure as XML and return its SVG."""
    return ElementTree.fromstring(figure).find("svg")


def numbers(path):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]


def test_points_lie_where_the_axes_say():
    svg = parsed(line("t", "d", [Series("a", [(0, 0), (5, 50), (10, 100)])], fixed("x", 0, 10), PER_CENT))
    path = next(node.get("d") for node in svg.iter("path") if node.get("class") == "line")
    middle = [(LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2]
    assert numbers(path) == [LEFT, HEIGHT - BOTTOM, *middle, WIDTH - RIGHT, TOP]


def test_ticks_stand_at_round_values_with_both_labels():
    svg = parsed(line("t", "d", [Series("a", [(1, 1)])], fixed("threshold", 0, 1), PER_CENT))
    texts = [node.text for node in svg.iter("text")]
    assert texts == ["0", "20", "40", "60", "80", "100", "0", "0.2", "0.4", "0.6", "0.8", "1", "threshold", "per cent"]


def test_lines_that_coincide_are_named():
    low, high = [(0, 10), (5, 20)], [(0, 60), (5, 70)]
    series = [Series("DENN", high), Series("classifier", low), Series("neighbours", [(0, 60.2), (5, 69.8)])]
    svg = parsed(line("t", "A sentence.", series, fixed("x", 0, 10), PER_CENT))
    assert svg.find("desc").text == "A sentence. The lines “DENN” and “neighbours” coincide."
    apart = [*series[:2], Series("neighbours", [(0, 60), (5, 72)])]
    assert parsed(line("t", "A sentence.", apart, fixed("x", 0, 10), PER_CENT)).find("desc").text == "A sentence."


def test_error_bars_reach_one_deviation_up_and_down():
    svg = parsed(line("t", "d", [Series("a", [(5, 50), (6, 50)], [25, 0])], fixed("x", 0, 10), PER_CENT))
    path = next(node.get("d") for node in svg.iter("path") if node.get("class") == "error")
    span = HEIGHT - TOP - BOTTOM
    x, low, high = numbers(path)
    assert x == (LEFT + WIDTH - RIGHT) / 2
    assert (low, high) == (HEIGHT - BOTTOM - span / 4, HEIGHT - BOTTOM - 3 * span / 4)


def test_bars_are_as_high_as_their_values():
    series = [("micro", [50, 0]), ("macro", [25, 100])]
    svg = parsed(bar("t", "d", ["rare", "often"], series, "labels", PER_CENT))
    heights = [float(node.get("height")) for node in svg.iter("rect")]
    assert heights == [pytest.approx(share * (HEIGHT - TOP - BOTTOM)) for share in (0.5, 0, 0.25, 1)]
    assert [node.text for node in svg.iter("text") if node.get("class") == "value"] == ["50.0", "0.0", "25.0", "100.0"]


def test_a_histogram_has_a_bar_for_each_bin_that_is_not_empty():
    heights = [3, 0, 6]
    svg = parsed(histogram("t", "d", [0, 1, 2, 3], heights, "x", fixed("texts", 0, 6)))
    drawn = [(float(node.get("x")), float(node.get("height"))) for node in svg.iter("rect")]
    step = (WIDTH - LEFT - RIGHT) / 3
    full = HEIGHT - TOP - BOTTOM
    assert drawn == [
        (pytest.approx(LEFT + 1), pytest.approx(full / 2)),
        (pytest.approx(LEFT + 2 * step + 1, abs=0.1), full),
    ]


def test_counts_on_a_logarithmic_axis():
    axis = counts("pairs", [1, 250_000], log=True)
    assert [name for _, name in axis.ticks] == ["1", "100", "10k", "1M"]  # every second of seven powers
    steps = [axis.share(10.0**power) for power in range(5)]
    gaps = [after - before for before, after in pairwise(steps)]
    assert gaps == [pytest.approx(gaps[0])] * 4
    assert 0 < axis.share(1) < axis.share(250_000) <= 1
    assert axis.share(0) == 0


def test_a_scatter_has_a_dot_and_a_cross_for_each_point():
    points = [(0.1, 0.2), (0.3, 0.4)]
    axis = fixed("x", 0, 1)
    series = [Series("a", points), Series("others", [(0.5, 0.5)], colour=7)]
    svg = parsed(scatter("t", "d", series, axis, axis, [Series("a", points[:1])]))
    drawn = {node.get("class"): node.get("d").count("M") for node in svg.iter("path") if "s" in node.get("class", "")}
    assert {name: count for name, count in drawn.items() if name[0] == "s"} == {
        "s0 cloud": 2,
        "s7 cloud": 1,
        "s0 cross": 1,
    }


def test_a_chart_says_what_it_is_to_those_who_do_not_see_it():
    svg = parsed(line("F1 & <k>", 'from "a" to <b>', [Series("a", [(1, 1)])], fixed("x", 0, 1), PER_CENT))
    assert svg.get("role") == "img"
    names = svg.get("aria-labelledby").split()
    assert names == [svg.find("title").get("id"), svg.find("desc").get("id")]
    assert (svg.find("title").text, svg.find("desc").text) == ("F1 & <k>", 'from "a" to <b>')


def test_series_of_a_user_are_no_markup():
    figure = line("t", "d", [Series("<script>x</script>"), Series("b")], fixed("x", 0, 1), PER_CENT)
    assert "<script" not in figure
    assert ElementTree.fromstring(figure).find("ul")[0][0].tail == "<script>x</script>"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5), st.sampled_from([0.1, 4.0]))
def test_an_axis_holds_its_values_and_has_some_ticks(values, least):
    axis = around("x", values, least)
    assert axis.low <= min(values) <= max(values) <= axis.high
    assert axis.high - axis.low >= least * 0.999
    assert 4 <= len(axis.ticks) <= 14
    assert all(axis.low - 1e-6 <= place <= axis.high + 1e-6 for place, _ in axis.ticks)
    assert len({name for _, name in axis.ticks}) == len(axis.ticks)


@given(st.lists(st.floats(-5, 105), min_size=1, max_size=5))
def test_per_cent_end_at_a_hundred(values):
    axis = per_cent("F1", values, 4)
    inside = [min(max(value, 0), 100) for value in values]
    assert 0 <= axis.low <= min(inside) <= max(inside) <= axis.high <= 100
    assert axis.high - axis.low >= 4 * 0.999
    assert 4 <= len(axis.ticks) <= 14


@pytest.mark.parametrize(("value", "ends"), [(100, (96, 100)), (99, (96, 100)), (0, (0, 4)), (50, (48, 52))])
def test_an_axis_of_per_cent_by_hand(value, ends):
    axis = per_cent("F1", [value], 4)
    assert (axis.low, axis.high) == ends

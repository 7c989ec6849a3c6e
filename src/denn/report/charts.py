"""Small charts as inline SVG: lines, bars, histograms and scatter plots; the page's CSS sets colours and dashes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 22, 14, 46  # margins for the labels
APART = 1.5  # lines that are never farther apart than this look like one


@dataclass(frozen=True)
class Axis:
    """An axis with its label, range and ticks."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 to 1."""
        low, high = (math.log10(end) for end in (self.low, self.high)) if self.log else (self.low, self.high)
        place = math.log10(max(value, self.low)) if self.log else value
        return (min(max(place, low), high) - low) / (high - low)


@dataclass(frozen=True)
class Series:
    """Points of one colour, optionally with half-lengths of error bars."""

    name: str
    points: Sequence[tuple[float, float]] = ()
    errors: Sequence[float] = ()
    colour: int | None = None  # one of the page's eight; default: by position in the chart


def fixed(label: str, low: float, high: float) -> Axis:
    """Make an axis with a fixed range."""
    step = _step(high - low)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return Axis(label, low, high, tuple((i * step, _number(i * step)) for i in range(first, last + 1)))


def around(label: str, values: Iterable[float], least: float) -> Axis:
    """Make an axis for all values, at least `least` long so that noise does not look like a finding."""
    return _rounded(label, *_room(values, least))


def per_cent(label: str, values: Iterable[float], least: float) -> Axis:
    """Make an axis for percentages, limited to the range from 0 to 100."""
    low, high = _room((min(max(value, 0), 100) for value in values), least)
    low, high = low - max(high - 100, 0), high + max(-low, 0)
    return _rounded(label, max(low, 0), min(high, 100))


def counts(label: str, values: Iterable[float], log: bool = False) -> Axis:
    """Make an axis for counts, from 0, or logarithmic from 0.5."""
    high = max([*values, 1])
    if not log:
        return fixed(label, 0, math.ceil(high / _step(high)) * _step(high))
    powers = range(math.ceil(math.log10(high)) + 1)
    every = math.ceil(len(powers) / 6)
    return Axis(label, 0.5, max(high * 1.5, 10), tuple((10**p, _power(p)) for p in powers[::every]), log=True)


def line(
    title: str,
    description: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    mark: float | None = None,
    diagonal: bool = False,
) -> str:
    """Draw lines with a point at each value; `mark` adds a vertical line, `diagonal` a line from corner to corner."""
    body = [_axes(x, y)]
    if mark is not None:
        body.append(f'<path class="mark" d="M{_x(x, mark)} {TOP}V{HEIGHT - BOTTOM}"/>')
    if diagonal:
        body.append(f'<path class="mark" d="M{LEFT} {HEIGHT - BOTTOM}L{WIDTH - RIGHT} {TOP}"/>')
    drawn = [[(_x(x, across), _y(y, up)) for across, up in one.points] for one in series]
    for (style, one), places in reversed(
        list(zip(_styled(series), drawn, strict=True))
    ):  # draw the first series on top
        path = "L".join(f"{across} {up}" for across, up in places)
        bars = "".join(
            f"M{_x(x, across)} {_y(y, up - error)}V{_y(y, up + error)}"
            for (across, up), error in zip(one.points, one.errors, strict=False)
            if error
        )
        dots = "".join(f"M{across} {up}h0" for across, up in places) if len(places) <= 20 else ""
        body.append(
            f'<g class="{style}"><path class="line" d="M{path}"/><path class="error" d="{bars}"/>'
            f'<path class="dots" d="{dots}"/></g>'
        )
    return _figure(title, description + _coinciding(series, drawn), body, _legend(series, "line"))


def bar(
    title: str,
    description: str,
    categories: Sequence[str],
    series: Sequence[tuple[str, Sequence[float]]],
    x: str,
    y: Axis,
) -> str:
    """Draw a group of bars for each category, with the value above each bar."""
    slot = (WIDTH - LEFT - RIGHT) / len(categories)
    wide = min(slot * 0.8 / len(series), 48)
    centres = [LEFT + slot * (place + 0.5) for place in range(len(categories))]
    ticks = tuple((centre, name) for centre, name in zip(centres, categories, strict=True))
    body = [_axes(Axis(x, LEFT, WIDTH - RIGHT, ticks), y)]
    for number, (_, values) in enumerate(series):
        body.append(f'<g class="s{number}">')
        for centre, value in zip(centres, values, strict=True):
            left = centre + (number - len(series) / 2) * wide
            body.append(_bar(left + 1, wide - 2, y, value))
            body.append(_text(left + wide / 2, _y(y, value) - 4, f"{value:.1f}", "value"))
        body.append("</g>")
    return _figure(title, description, body, _legend([Series(name) for name, _ in series], "box"))


def histogram(title: str, description: str, edges: Sequence[float], heights: Sequence[int], x: str, y: Axis) -> str:
    """Draw a histogram; `edges` has one entry more than `heights`."""
    across = fixed(x, edges[0], edges[-1])
    body = [_axes(across, y), '<g class="s0">']
    for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
        left, right = _x(across, low), _x(across, high)
        body.append(_bar(left + 1, right - left - 2, y, height) if height else "")
    return _figure(title, description, [*body, "</g>"], "")


def scatter(
    title: str,
    description: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    crosses: Sequence[Series] = (),
    height: int = 420,
) -> str:
    """Draw a dot for each point of `series`, and a cross for each point of `crosses` in the same colours."""
    body = [_axes(x, y, height)]
    for style, one in reversed(_styled(series)):  # draw the first series on top
        dots = "".join(f"M{_x(x, across)} {_y(y, up, height)}h0" for across, up in one.points)
        body.append(f'<path class="{style} cloud" d="{dots}"/>')
    for style, one in reversed(_styled(crosses)):
        places = ((_x(x, across), _y(y, up, height)) for across, up in one.points)
        body.append(f'<path class="{style} cross" d="{"".join(f"M{a - 3:.1f} {u}h6m-3-3v6" for a, u in places)}"/>')
    return _figure(title, description, body, _legend(series, "box"), height)


def _coinciding(series: Sequence[Series], drawn: Sequence[Sequence[tuple[float, float]]]) -> str:
    """Return sentences on lines that hide each other."""
    together: dict[int, list[str]] = {}  # position of the first → names
    for place, (one, places) in enumerate(zip(series, drawn, strict=True)):
        first = next((other for other in together if _same(drawn[other], places)), place)
        together.setdefault(first, []).append(f"“{one.name}”")
    return "".join(f" The lines {' and '.join(names)} coincide." for names in together.values() if len(names) > 1)


def _same(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> bool:
    return len(one) == len(other) and all(math.dist(a, b) <= APART for a, b in zip(one, other, strict=True))


def _styled(series: Sequence[Series]) -> list[tuple[str, Series]]:
    """Pair each series with the CSS class of its colour and dashes."""
    return [(f"s{place if one.colour is None else one.colour}", one) for place, one in enumerate(series)]


def _room(values: Iterable[float], least: float) -> tuple[float, float]:
    """Return a range with a margin of a tenth around the values, at least `least` long."""
    found = list(values)
    low, high = min(found), max(found)
    margin = max(0.1 * (high - low), (least - (high - low)) / 2)
    return low - margin, high + margin


def _rounded(label: str, low: float, high: float) -> Axis:
    """Make an axis that starts and ends at a tick."""
    step = _step(high - low)
    return fixed(label, math.floor(low / step) * step, math.ceil(high / step) * step)


def _step(span: float) -> float:
    """Return 1, 2 or 5 times a power of ten, which divides the span into four to nine steps."""
    power: float = 10.0 ** math.floor(math.log10(span / 4))
    return next(factor * power for factor in (5, 2, 1) if factor * power <= span / 4)


def _number(value: float) -> str:
    return f"{round(value, 9):,.10g}".replace("-", "−")


def _power(exponent: int) -> str:
    """Format a power of ten: 1, 10, 100, 1k, 10k, 100k, 1M."""
    return f"{10 ** (exponent % 3)}{['', 'k', 'M', 'G', 'T'][exponent // 3]}"


def _x(axis: Axis, value: float) -> float:
    return round(LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT), 1)


def _y(axis: Axis, value: float, height: int = HEIGHT) -> float:
    return round(height - BOTTOM - axis.share(value) * (height - TOP - BOTTOM), 1)


def _bar(left: float, width: float, y: Axis, value: float) -> str:
    top = _y(y, value)
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{HEIGHT - BOTTOM - top:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _axes(x: Axis, y: Axis, height: int = HEIGHT) -> str:
    """Draw the grid, ticks and labels of both axes."""
    bottom = height - BOTTOM
    drawn = [f'<path class="grid" d="{"".join(f"M{LEFT} {_y(y, at, height)}H{WIDTH - RIGHT}" for at, _ in y.ticks)}"/>']
    drawn += [_text(LEFT - 6, _y(y, at, height) + 4, name, "tick left") for at, name in y.ticks]
    drawn += [_text(_x(x, at), bottom + 17, name, "tick") for at, name in x.ticks]
    drawn += [f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{WIDTH - RIGHT}"/>']
    drawn += [_text((LEFT + WIDTH - RIGHT) / 2, height - 8, x.label, "label")]
    middle = (TOP + bottom) / 2
    drawn += [f'<text class="label" transform="translate(13 {middle:.1f}) rotate(-90)">{escape(y.label)}</text>']
    return "".join(drawn)


def _legend(series: Sequence[Series], kind: str) -> str:
    """Return the legend; a single series needs none."""
    if len(series) < 2:
        return ""
    swatch = {
        "line": '<path class="line" d="M0 6H24"/>',
        "box": '<rect x="4" width="12" height="12" rx="2"/>',
    }[kind]
    rows = (
        f'<li><svg class="{style}" viewBox="0 0 24 12" aria-hidden="true">{swatch}</svg>{escape(one.name)}</li>'
        for style, one in _styled(series)
    )
    return f'<ul class="legend">{"".join(rows)}</ul>'


def _figure(title: str, description: str, body: Sequence[str], legend: str, height: int = HEIGHT) -> str:
    name, width = "chart-" + re.sub(r"\W+", "-", title.lower()), "wide" if height > HEIGHT else "plain"
    return (
        f'<figure class="{width}"><figcaption>{escape(title)}</figcaption>'
        f'<svg class="chart" role="img" viewBox="0 0 {WIDTH} {height}" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        f'{"".join(body)}</svg>{legend}<p class="note">{escape(description)}</p></figure>'
    )

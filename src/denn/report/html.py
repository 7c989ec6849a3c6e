"""HTML helpers of the sections; all user text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = ()) -> str:
    """Return a table; the first column contains row headers, and `words` are further columns of text."""
    kinds = ["" if column and column not in words else ' class="word"' for column in range(len(headers))]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}' for kind, name in zip(kinds, headers, strict=True))
    body = "".join(
        f'<tr><th scope="row">{escape(first)}'
        + "".join(f"<td{kind}>{escape(cell)}" for kind, cell in zip(kinds[1:], rest, strict=True))
        for first, *rest in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def figures(charts: Sequence[str]) -> str:
    """Return charts in a row."""
    return f'<div class="figures">{"".join(charts)}</div>'


def paragraphs(sentences: Iterable[str]) -> str:
    """Return a paragraph for each sentence."""
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def shortened(text: str, length: int) -> str:
    """Shorten a text at a word boundary."""
    text = text.strip()
    return text if len(text) <= length else text[:length].rsplit(maxsplit=1)[0] + " …"


def percent(share: float) -> str:
    """Format a share in percent, without the sign."""
    return f"{100 * share:.1f}"


def curve(rows: Sequence[Mapping[str, Any]], x: str, metric: str) -> list[tuple[float, float]]:
    """Return the points of a line from rows, with the metric in percent."""
    return [(row[x], 100 * row[metric]) for row in rows]

"""Pieces of HTML that the sections share; every text of a user goes through `escape`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = ()) -> str:
    """Write a table of plain texts; the first column heads its row, `words` are other columns that are no numbers."""
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
    """Set charts beside each other."""
    return f'<div class="figures">{"".join(charts)}</div>'


def paragraphs(sentences: Iterable[str]) -> str:
    """Write a paragraph for each sentence."""
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def shortened(text: str, length: int) -> str:
    """Cut a text between words."""
    text = text.strip()
    return text if len(text) <= length else text[:length].rsplit(maxsplit=1)[0] + " …"


def percent(share: float) -> str:
    """Write a share in per cent, without the sign."""
    return f"{100 * share:.1f}"


def curve(rows: Sequence[Mapping[str, Any]], x: str, metric: str) -> list[tuple[float, float]]:
    """Take the points of a line from rows, the metric in per cent."""
    return [(row[x], 100 * row[metric]) for row in rows]

"""A prediction as a small HTML table for notebooks, light or dark: labels, the witnesses' scores, and evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from denn.prediction_types import Prediction

NEIGHBOURS = 3  # shown at first; the others are behind a click
CHARACTERS = 160  # maximum length of a neighbour's text
TABLE = '<table style="margin: 0 0 0.5em 0">'  # no colours: the notebook's theme applies


def render(prediction: Prediction) -> str:
    """Return the HTML of a prediction, with all user content escaped."""
    known = sorted(map(list, prediction.parts.values()), key=len)
    witnesses = known[-1] if known else []  # those of the label that most witnesses know
    rows = [_label(prediction, label, score, witnesses) for label, score in prediction.scores.items()]
    found = [
        (f"{one.similarity:.3f}", ", ".join(map(prediction.vocabulary.name, one.labels)), one.id, _shortened(one.text))
        for one in prediction.neighbours
    ]
    near, head = found[:NEIGHBOURS], ("similarity", "labels", "id", "similar document")
    parts = [_table(("label", "score", *witnesses, "supporting words"), rows)]
    parts += [f"<p>{escape(fact)}</p>" for fact in _facts(prediction)]
    parts += [_table(head, near)] if near else []
    if rest := found[NEIGHBOURS:]:
        parts.append(f"<details><summary>{len(rest)} more</summary>{_table(head, rest)}</details>")
    return f"<div>{''.join(parts)}</div>"


def _label(prediction: Prediction, label: str, score: float, witnesses: Sequence[str]) -> Sequence[str]:
    """Return the cells of a label: chosen or not, scores, words."""
    known = prediction.parts.get(label, {})
    scores = [f"{known[name]:.3f}" if name in known else "–" for name in witnesses]
    words = ", ".join(word for word, _ in prediction.words.get(label, ()))
    name = prediction.vocabulary.name(label)
    return (f"{'✓ ' if label in prediction.labels else ''}{name}", f"{score:.3f}", *scores, words)


def _facts(prediction: Prediction) -> list[str]:
    """Return what a reader should know before trusting the labels, one sentence each."""
    facts = []
    if not prediction.labels:
        facts.append("No label is above its threshold.")
    if prediction.same_text is not None:
        facts.append(f"Document {prediction.same_text} has the same text, so its labels are used.")
    if prediction.unfamiliar:
        facts.append("Unfamiliar text: no stored document is similar, so these labels are less reliable.")
    return facts


def _shortened(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        # Notebooks align cells to the right unless each says otherwise.
        found = (f'<{tag} style="text-align: left">{escape(cell)}</{tag}>' for cell in cells)
        return f"<tr>{''.join(found)}</tr>"

    return (
        f"{TABLE}<thead>{row(head, 'th')}</thead><tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody></table>"
    )

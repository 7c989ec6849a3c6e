"""Write tables for spreadsheets, which treat a cell that begins with = + - or @ as a formula and run it.

Such a cell gets an apostrophe in front, as OWASP advises; numbers stay numbers. `service/page/csv.js` does the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
PROTECTED = re.compile(r"'+[=+\-@\t\r\n＝＋－＠]")
ADDED = ["labels", "scores", "familiarity", "unfamiliar"]  # columns that the page adds; earlier versions: the first two
NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)


def write_table(rows: Iterable[Sequence[object]], separator: str = ",") -> bytes:
    """Return rows as CSV in UTF-8; None is an empty cell.

    Python's csv module writes a lone carriage return without quotes, and then cannot read it.
    """
    special = re.compile(rf'["\r\n{re.escape(separator)}]')

    def field(cell: object) -> str:
        text = protect(cell) if isinstance(cell, str) else "" if cell is None else str(cell)
        return '"' + text.replace('"', '""') + '"' if special.search(text) else text

    lines = (separator.join(map(field, row)) or '""' for row in rows)  # blank lines are skipped by readers
    return "".join(f"{line}\n" for line in lines).encode()


def protect(cell: str) -> str:
    """Put an apostrophe before a cell that a spreadsheet would treat as a formula."""
    return f"'{cell}" if FORMULA.match(cell) and not NUMBER.fullmatch(cell) else cell


def restore(cell: str) -> str:
    """Undo `protect`."""
    return cell[1:] if PROTECTED.match(cell) else cell


def is_ours(header: Sequence[str]) -> bool:
    """Recognise a file that the page wrote by its last columns; in other files an apostrophe is content."""
    names = [name.removeprefix("predicted_") for name in header]
    return any(names[-len(added) :] == added for added in (ADDED, ADDED[:2]))

"""Diagrams become part of their page, so that they have the colours of the mode that a reader chose, light or dark."""

import re
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DIAGRAM = re.compile(r'<img [^>]*src="(?:\.\./)*images/(concept-[a-z]+\.svg)"[^>]*>')


def on_page_content(html: str, **_: object) -> str:
    """Put the file of a diagram in the place of its image."""
    return DIAGRAM.sub(lambda image: (IMAGES / image[1]).read_text(encoding="utf-8"), html)

"""Embed diagrams in their page, so that they follow the reader's light or dark theme."""

import re
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
DIAGRAM = re.compile(r'<img [^>]*src="(?:\.\./)*images/(concept-[a-z]+\.svg)"[^>]*>')


def on_page_content(html: str, **_: object) -> str:
    """Replace the image of a diagram with the content of its file."""
    return DIAGRAM.sub(lambda image: (IMAGES / image[1]).read_text(encoding="utf-8"), html)

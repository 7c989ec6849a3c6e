"""Reuters-21578 in the ModApte split: newswire stories with 90 topics, without a published validation split."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from denn.data.compressed import read_whole
from denn.data.published import Layout, jsonl, read_published
from denn.errors import DataError
from denn.types import Corpus, Document

FILES = tuple(f"reut2-{number:03}.sgm" for number in range(22))
PARTS = {"TRAIN": "train", "TEST": "test"}  # LEWISSPLIT → split
STORY = re.compile(r"<REUTERS ([^>]*)>(.*?)</REUTERS>", re.DOTALL)
CLOSING = re.compile(r"\s*\b(?:Reuter|REUTER)\s*$")


def load(folder: Path) -> Corpus:
    """Read `train` and `test` from `<part>.jsonl` or from Lewis's SGML, and split off a tenth of train as `valid`."""
    return read_published(folder, "reuters21578", (jsonl("train", "test"), Layout(FILES, _read_sgml)))


def _read_sgml(found: Mapping[str, Path]) -> dict[str, list[Document]]:
    """Keep the topics that occur in both splits, and the stories that have one of them."""
    parts: dict[str, list[Document]] = {"train": [], "test": []}
    for path in found.values():
        for part, story in _stories(path):
            parts[part].append(story)
    used = [{topic for story in stories for topic in story.labels} for stories in parts.values()]
    common = set.intersection(*used)
    return {
        part: [
            Document(story.text, tuple(topic for topic in story.labels if topic in common), story.id)
            for story in stories
            if not common.isdisjoint(story.labels)
        ]
        for part, stories in parts.items()
    }


def _stories(path: Path) -> Iterator[tuple[str, Document]]:
    """Yield the stories that the topics' editors have seen, each with its split."""
    stories = STORY.findall(read_whole(path).decode("latin-1"))
    if not stories:
        raise DataError(f"{path}: there are no stories in <REUTERS …> and </REUTERS>. Download the file again.")
    for head, story in stories:
        attributes = dict(re.findall(r'(\w+)="([^"]*)"', head))
        if attributes.get("TOPICS") == "YES" and (part := PARTS.get(attributes.get("LEWISSPLIT", ""))):
            topics = re.findall("<D>(.*?)</D>", _element(story, "TOPICS") or "")
            yield part, Document(_text(story), tuple(topics), attributes.get("NEWID"))


def _text(story: str) -> str:
    """Return title and body, or the whole story if it has neither element."""
    title, body = _element(story, "TITLE"), _element(story, "BODY")
    marked = [piece for piece in (title, body) if piece is not None]
    text = html.unescape("\n".join(marked) if marked else _element(story, "TEXT") or "")  # control characters vanish
    return CLOSING.sub("", text).strip()


def _element(story: str, name: str) -> str | None:
    found = re.search(f"<{name}[^>]*>(.*?)</{name}>", story, re.DOTALL)
    return found and found[1]

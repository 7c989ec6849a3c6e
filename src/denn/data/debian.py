"""Debian's packages as a corpus: descriptions with debtags, and the other half that is still untagged."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from denn.data.compressed import open_bytes, read_lines
from denn.data.corpus import read_documents, split_documents
from denn.data.rows import as_line
from denn.errors import DataError
from denn.types import Corpus, Document

FILE = "debian.jsonl"
SECONDS = 300
INSTEAD = "To train on a file of your own, run: denn train your.jsonl --out model"
EXTRA_INDEXES = (
    "CNF Contents-deb DEP-11 DEP-11-icons DEP-11-icons-small DEP-11-icons-hidpi DEP-11-icons-large "
    "DEP-11-icons-large-hidpi"
).split()


def load(folder: Path) -> Corpus:
    """Return the tagged packages, fetching them if necessary, with a tenth each as `valid` and `test`."""
    tagged, _ = load_debian(folder)
    rest, test = split_documents(tagged, 0.1)
    train, valid = split_documents(rest, 1 / 9)
    return Corpus(train, valid, test, name="debian")


def load_debian(cache: Path, min_count: int = 20) -> tuple[list[Document], list[Document]]:
    """Return the tagged and the untagged packages by name, one for each distinct description.

    Tags with fewer than `min_count` packages are dropped, and so are packages with no other tag.
    """
    documents, _ = read_documents(fetch(cache))
    counts = Counter(label for document in documents for label in document.labels)
    tagged, untagged = [], []
    for document in documents:
        labels = tuple(label for label in document.labels if counts[label] >= min_count)
        if labels:
            tagged.append(replace(document, labels=labels))
        elif not document.labels:
            untagged.append(document)
    return tagged, untagged


def fetch(cache: Path) -> Path:
    """Return the path of the corpus file in the cache; if it is missing, create it from apt's package lists."""
    path = Path(cache).resolve() / FILE  # apt takes relative paths from the root
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        lists = _update(Path(folder))
        documents = read_lists(lists)
        if not any(document.labels for document in documents):
            raise DataError(f"apt's package lists have no debtags; this needs those of Debian. {INSTEAD}")
        beside = Path(folder) / FILE
        beside.write_bytes(b"".join(map(as_line, documents)))
        beside.replace(path)
    return path


def read_lists(folder: Path) -> list[Document]:
    """Turn the package lists and translations in a folder into documents, sorted by name, without duplicates.

    Of packages with the same description, keep the first tagged one, or the first if none is tagged.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    descriptions: dict[str, str] = {}
    for path in (path for path in files if "_Translation-en" in path.name):
        for entry in paragraphs(path, {"Description-md5", "Description-en"}):
            descriptions.setdefault(entry.get("Description-md5", ""), _prose(entry.get("Description-en", "")))
    packages: dict[str, tuple[str, tuple[str, ...]]] = {}
    for path in (path for path in files if "_Packages" in path.name):
        for entry in paragraphs(path, {"Package", "Description", "Description-md5", "Tag"}):
            name, labels = entry["Package"], tags(entry.get("Tag", ""))
            # Security updates repeat packages without their tags.
            if name not in packages or (labels and not packages[name][1]):
                short = _prose(entry.get("Description", ""))
                packages[name] = (descriptions.get(entry.get("Description-md5", ""), short), labels)
    kept: dict[str, Document] = {}
    for name, (description, labels) in sorted(packages.items(), key=lambda item: (not item[1][1], item[0])):
        if description:
            kept.setdefault(description, Document(f"{name}: {description}", labels, name))
    return sorted(kept.values(), key=lambda document: str(document.id))


def paragraphs(path: Path, wanted: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the wanted fields of each paragraph of a deb822 file; continuation lines are stripped and joined."""
    entry: dict[str, list[str]] = {}
    field = ""
    with open_bytes(path) as stream:
        for line in (line.decode(errors="replace") for line in read_lines(stream, path)):
            if line[0] in " \t":
                if field in entry:
                    entry[field].append(line.strip())
            elif line != "\n":
                field, _, value = line.partition(":")
                if field in wanted:
                    entry[field] = [value.strip()]
            elif entry:
                yield _joined(entry)
                entry, field = {}, ""
    if entry:
        yield _joined(entry)


def _joined(entry: dict[str, list[str]]) -> dict[str, str]:
    return {field: "\n".join(lines) for field, lines in entry.items()}


def tags(field: str) -> tuple[str, ...]:
    """Return the tags of a Tag field with braces expanded, without `special::` and `::TODO` tags."""
    expanded: list[str] = []
    for tag in re.findall(r"[^\s,{}]+\{[^}]*\}|[^\s,{}]+", field):
        stem, _, inner = tag.rstrip("}").partition("{")
        expanded += [stem + end.strip() for end in inner.split(",")]
    return tuple(tag for tag in expanded if not tag.startswith("special::") and not tag.endswith("::TODO"))


def _prose(description: str) -> str:
    """Turn the deb822 form of a description into text: a lone dot is an empty line."""
    return "\n".join("" if line == "." else line for line in description.split("\n")).strip()


def _update(folder: Path) -> Path:
    """Run `apt-get update` with its own lists, caches and hooks, so that the system does not change."""
    apt = shutil.which("apt-get")
    if apt is None:
        raise DataError(f"apt-get is not installed; the descriptions come from a Debian system. {INSTEAD}")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    settings = {
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "en",
        "Acquire::GzipIndexes": "false",
        "APT::Sandbox::User": "root",  # no other user can write to the folder
    } | {f"Acquire::IndexTargets::deb::{name}::DefaultEnabled": "false" for name in EXTRA_INDEXES}
    config = folder / "apt.conf"
    cleared = [f"#clear APT::Update::{hook};" for hook in ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")]
    lines = ["#clear Acquire::Languages;", *cleared, *(f'{key} "{value}";' for key, value in settings.items())]
    config.write_text("\n".join(lines) + "\n")
    try:
        done = subprocess.run([apt, "update", "-c", config], capture_output=True, text=True, timeout=SECONDS)
        failure = done.stderr.strip() or done.stdout.strip()
    except subprocess.TimeoutExpired:
        failure = f"no answer within {SECONDS} seconds"
    if not any("_Packages" in path.name for path in (folder / "lists").iterdir()):
        raise DataError(f"apt-get update found no package lists ({failure[-500:]}). {INSTEAD}")
    return folder / "lists"

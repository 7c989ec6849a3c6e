"""Published corpora: the file layouts they come in, and checks against known sizes and digests."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from denn.data import compressed
from denn.data.compressed import open_bytes
from denn.data.corpus import read_corpus, split_documents
from denn.data.known import KNOWN, PARTS, Edition, Statistics, files_of
from denn.errors import DataError
from denn.types import Corpus, Document

log = logging.getLogger(__name__)

Split = Callable[[Sequence[Document]], tuple[list[Document], list[Document]]]


@dataclass(frozen=True)
class Layout:
    """The files of a corpus: the first one identifies the layout, and all but the optional ones must exist."""

    files: tuple[str, ...]  # in the corpus's folder; each may also end in .zst
    read: Callable[
        [Mapping[str, Path]], Mapping[str, object]
    ]  # files found, by name → splits as read_corpus takes them
    optional: tuple[str, ...] = ()


def jsonl(*parts: str, optional: Sequence[str] = ()) -> Layout:
    """Return the layout of denn's own JSON lines, one `<part>.jsonl` per split."""
    names = {f"{part}.jsonl": part for part in (*parts, *optional)}
    return Layout(
        tuple(f"{part}.jsonl" for part in parts),
        lambda found: {names[name]: path for name, path in found.items()},
        tuple(f"{part}.jsonl" for part in optional),
    )


def paired(text: str, label: str, parts: Mapping[str, str]) -> Layout:
    """Return a layout with two files per split, one document per line: texts, and labels separated by spaces.

    In `text` and `label`, {} stands for the name of a split in the file names.
    """
    names = {part: (text.format(called), label.format(called)) for part, called in parts.items()}
    return Layout(
        tuple(name for pair in names.values() for name in pair),
        lambda found: {part: _read_pair(found[texts], found[labels]) for part, (texts, labels) in names.items()},
    )


SGM = (
    paired("text_{}", "label_{}", {"train": "train", "valid": "val", "test": "test"}),
    paired("{}.src", "{}.tgt", {"train": "train", "valid": "valid", "test": "test"}),
)


def a_tenth(documents: Sequence[Document]) -> tuple[list[Document], list[Document]]:
    """Split off a stratified tenth of the documents."""
    return split_documents(documents, 0.1)


def read_published(folder: Path, name: str, layouts: Sequence[Layout], split: Split = a_tenth) -> Corpus:
    """Read a corpus in the first layout found, and warn of any difference from the published corpus.

    Without a validation split, `split` takes one from train.
    """
    corpus = read_corpus(_find(Path(folder), name, layouts), valid_share=0, name=name)
    warn_of_differences(corpus)
    if corpus.valid:
        return corpus
    train, valid = split(corpus.train)
    return replace(corpus, train=train, valid=valid)


def _find(folder: Path, name: str, layouts: Sequence[Layout]) -> Mapping[str, object]:
    """Read the splits in the first layout whose first file exists."""
    for layout in layouts:
        found = {file: path for file in (*layout.files, *layout.optional) if (path := find_file(folder, file))}
        if layout.files[0] in found:
            if missing := [file for file in layout.files if file not in found]:
                raise DataError(
                    f"{folder}: {layout.files[0]} of {name} is present, but {', '.join(missing)} is missing. Add it."
                )
            return layout.read(found)
    first = " or ".join(layout.files[0] for layout in layouts)
    raise DataError(f"{folder}: there is no {first}. Put the files of {name} there: {files_of(name)}.")


def find_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file or folder, or of its compressed form; None if neither exists."""
    return next((path for path in (folder / name, folder / f"{name}.zst") if path.exists()), None)


def read_lines(path: Path) -> list[str]:
    """Read the lines of a UTF-8 file; only \\n ends a line."""
    found = []
    with open_bytes(path) as stream:
        for number, line in enumerate(compressed.read_lines(stream, path), 1):
            try:
                found.append(line.decode().removesuffix("\n").removesuffix("\r"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: byte {line[error.start]:#04x} is not UTF-8. Save the file as UTF-8."
                ) from None
    return found


def _read_pair(text_path: Path, label_path: Path) -> list[Document]:
    texts, labels = read_lines(text_path), read_lines(label_path)
    check_equal(text_path, len(texts), label_path, len(labels))
    return [Document(text.strip(), tuple(names.split())) for text, names in zip(texts, labels, strict=True)]


def check_equal(first: Path, lines: int, second: Path, others: int) -> None:
    """Raise a DataError if two files that should have one line per document differ in length."""
    if lines != others:
        raise DataError(
            f"{first} has {lines:,} lines but {second} has {others:,}; expected one line per document in both. "
            "Download both files again."
        )


def digest(documents: Sequence[Document]) -> str:
    """Return the sha256 of texts and labels in document order, ignoring ids and the order of labels."""
    state = hashlib.sha256()
    for document in documents:
        state.update("\0".join((document.text, *sorted(document.labels), "", "")).encode())  # no text contains NUL
    return state.hexdigest()


def statistics(corpus: Corpus) -> Statistics:
    """Count documents, labels, labels per document and words per document over all splits; spaces separate words."""
    documents = [document for part in PARTS for document in getattr(corpus, part)]
    return Statistics(
        len(documents),
        len(corpus.labels),
        sum(len(document.labels) for document in documents) / len(documents),
        sum(len(document.text.split()) for document in documents) / len(documents),
    )


def warn_of_differences(corpus: Corpus) -> None:
    """Log one warning if a corpus, split as published, differs from what was published under its name."""
    known = KNOWN.get(corpus.name)
    if known is None:
        return
    parts: dict[str, Sequence[Document]] = {part: getattr(corpus, part) for part in PARTS}
    digests = {part: digest(documents) for part, documents in parts.items() if documents}
    sizes = {part: len(documents) for part, documents in parts.items()} | {"labels": len(corpus.labels)}
    difference = _difference(known.editions, sizes, digests)
    if difference:
        log.warning(f"{corpus.name}: {difference}.")


def _difference(editions: Sequence[Edition], sizes: Mapping[str, int], digests: Mapping[str, str]) -> str:
    published = editions[0]
    for edition in editions:
        if edition.digests == digests:
            return edition.difference
    for edition in editions:
        if edition.sizes == sizes:
            other = [part for part in digests if part in edition.digests and digests[part] != edition.digests[part]]
            wrong = other or [part for part in digests if part not in edition.digests]
            shown = ", ".join(f"{part} {digests[part][:12]}…" for part in wrong)
            what = "differ" if other else "could not be compared, because no digests are known"
            return f"the numbers of documents and labels are as published, but the contents {what} (sha256 of {shown})"
    counts = ", ".join(
        f"{sizes[key]:,} {'labels' if key == 'labels' else f'{key} documents'} instead of {size:,}"
        for key, size in published.sizes.items()
        if sizes[key] != size
    )
    return f"differs from the published corpus: {counts}"

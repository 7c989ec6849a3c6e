"""Read vocabularies from CSV, TSV, JSON and SKOS files, and turn the labels of documents into their ids."""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from denn.data.compressed import BOM, LONGEST_ROW, read_whole, uncompressed_suffix
from denn.data.rows import describe, parse_labels, short
from denn.errors import DataError, MissingExtraError
from denn.types import Corpus, Document
from denn.vocabulary import Vocabulary, VocabularyEntry
from denn.wording import counted

log = logging.getLogger(__name__)

LONGEST_GRAPH = 512 << 20  # bytes of a SKOS file
LANGUAGE = "en"
SHOWN = 3  # labels in a message
IDS, NAMES = ("id", "uri"), ("name", "label")  # columns and fields

Given = tuple[object, object, object]  # id, name, description


def read_vocabulary(source: object, *, language: str | None = None) -> Vocabulary:
    """Read the ids, names and descriptions of labels from a file or a mapping of ids to names.

    A CSV or TSV file has the columns id, name and optionally description; Annif's columns uri and label_en and its TSV
    files without a header are read as well. A JSON file maps ids to names, or lists objects with these fields. SKOS is
    read from Turtle (.ttl), N-Triples (.nt) and RDF/XML (.rdf, .xml). If there are several languages, English is the
    default.
    """
    if isinstance(source, Vocabulary):
        return source
    if isinstance(source, Mapping):
        return _vocabulary(((id, name, "") for id, name in source.items()), "the vocabulary")
    if not isinstance(source, str | Path):
        raise DataError(f"got {describe(source)} as a vocabulary, expected a file or a mapping of ids to names.")
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{path}: no such file. Check the path of the vocabulary.")
    suffix = uncompressed_suffix(path)
    if suffix not in FORMATS:
        raise DataError(f"{path}: unknown extension {suffix!r} of a vocabulary, expected {', '.join(FORMATS)}.")
    return _vocabulary(FORMATS[suffix](path, language), str(path))


def with_vocabulary(corpus: Corpus, vocabulary: Vocabulary) -> Corpus:
    """Return the corpus with a vocabulary, and with its ids as labels; other labels stay as they are."""
    if not vocabulary:
        return corpus
    parts = [with_ids(part, vocabulary) for part in (corpus.train, corpus.valid, corpus.test)]
    return Corpus(parts[0], parts[1], parts[2], name=corpus.name, vocabulary=vocabulary)


def with_ids(documents: Sequence[Document], vocabulary: Vocabulary) -> Sequence[Document]:
    """Return the documents with ids instead of the names of labels."""
    if not vocabulary:
        return documents
    return [replace(one, labels=vocabulary.ids(one.labels), rejected=vocabulary.ids(one.rejected)) for one in documents]


def check_known(documents: Iterable[Document], vocabulary: Vocabulary) -> None:
    """Warn of labels that are not in the vocabulary; raise a DataError if none of them is."""
    labels = dict.fromkeys(label for document in documents for label in document.labels)
    if unknown := [label for label in labels if label not in vocabulary]:
        shown = ", ".join(map(short, unknown[:SHOWN]))
        if len(unknown) == len(labels):
            raise DataError(
                f"no label of the corpus is in the vocabulary, neither by id nor by name: {shown}, … Labels must be "
                f"ids such as {short(vocabulary.entries[0].id)} or names such as {short(vocabulary.entries[0].name)}."
            )
        log.warning(f"{counted(len(unknown), 'label')} not in the vocabulary, kept without a name: {shown}")


def _vocabulary(rows: Iterable[Given], source: str) -> Vocabulary:
    """Check entries: ids must be valid labels and unique; the id is also the name of an entry without one."""
    entries: dict[str, VocabularyEntry] = {}
    for number, (id, name, description) in enumerate(rows, 1):
        try:
            cleaned = parse_labels([id])
            if not cleaned:
                raise DataError("there is no id, expected one for each entry")
            if cleaned[0] in entries:
                raise DataError(f"the id {short(cleaned[0])} occurs twice. Remove one of the two entries")
            entries[cleaned[0]] = VocabularyEntry(
                cleaned[0], _line(name, "name") or cleaned[0], _line(description, "description")
            )
        except DataError as error:
            raise DataError(f"{source}, entry {number}: {error}.") from None
    if not entries:
        raise DataError(f"{source}: the vocabulary has no entries, expected ids and names of labels.")
    return Vocabulary(tuple(entries.values()))


def _line(value: object, what: str) -> str:
    """Return a value on one line; None becomes an empty string."""
    if value is not None and not isinstance(value, str):
        raise DataError(f"the {what} is {describe(value)}, expected a string")
    return " ".join((value or "").replace("\0", " ").encode(errors="replace").decode().split())


def _text(path: Path) -> str:
    try:
        return read_whole(path).removeprefix(BOM).decode()
    except UnicodeDecodeError:
        raise DataError(f"{path}: it is not UTF-8. Save the file in UTF-8.") from None


def _csv(path: Path, language: str | None, delimiter: str = ",") -> Iterator[Given]:
    csv.field_size_limit(LONGEST_ROW)
    rows = csv.DictReader(io.StringIO(_text(path), newline=""), delimiter=delimiter, strict=True)
    try:
        found = list(rows.fieldnames or ())
        id = next((name for name in IDS if name in found), None)
        name = next((name for name in (*NAMES, *_of_languages(found, language)) if name in found), None)
        if id is None or name is None:
            raise DataError(f"{path}: found the columns {', '.join(map(short, found))}, expected id and name.")
        yield from ((row[id], row[name], row.get("description")) for row in rows)
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: not well-formed CSV ({error}).") from None


def _of_languages(columns: Sequence[str], language: str | None) -> list[str]:
    """Return Annif's name columns, with the requested language first."""
    found = [column for column in columns if column.startswith("label_")]
    return sorted(found, key=lambda column: column != f"label_{language or LANGUAGE}")


def _tsv(path: Path, language: str | None) -> Iterator[Given]:
    text = _text(path)
    if not text.lstrip().startswith("<"):
        yield from _csv(path, language, "\t")
        return
    for line in filter(str.strip, text.splitlines()):  # Annif's layout: URI, name and optionally a notation
        uri, name, *_ = *line.split("\t"), ""
        yield uri.strip().removeprefix("<").removesuffix(">"), name, ""


def _json(path: Path, language: str | None) -> Iterator[Given]:
    try:
        content = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error}), expected ids and names of labels.") from None
    if not isinstance(content, dict | list):
        raise DataError(f"{path}: got {describe(content)}, expected an object or a list.")
    rows = content.items() if isinstance(content, dict) else ((None, entry) for entry in content)
    for id, entry in rows:
        if isinstance(entry, str) and id is not None:
            yield id, entry, ""
        elif isinstance(entry, dict):
            fields = [next((entry[field] for field in some if field in entry), None) for some in (IDS, NAMES)]
            yield id or fields[0] or "", fields[1], entry.get("description")
        else:
            raise DataError(f"{path}: got {describe(entry)}, expected a name or an object with id and name.")


def _skos(format: str) -> Callable[[Path, str | None], Iterator[Given]]:
    """Return a reader of concepts in an RDF format; JSON-LD is not supported, because it may fetch other files."""

    def read(path: Path, language: str | None) -> Iterator[Given]:
        try:
            import rdflib
            from rdflib.namespace import OWL, RDF, RDFS, SKOS
        except ImportError as error:
            raise MissingExtraError("Reading SKOS files", "rdflib", "skos") from error
        graph = rdflib.Graph()
        try:
            graph.parse(data=read_whole(path, LONGEST_GRAPH), format=format)
        except DataError:
            raise
        except Exception as error:  # each of its parsers raises different errors
            reason = (str(error).splitlines() or ["?"])[0][:200]
            raise DataError(f"{path}: not a SKOS file in {format} ({reason}).") from None
        concepts = sorted(set(graph.subjects(RDF.type, SKOS.Concept)), key=str)
        names = (name for concept in concepts for name in graph.objects(concept, SKOS.prefLabel))
        languages = {getattr(name, "language", None) for name in names}
        if language and languages and not languages & {language, None}:
            found = ", ".join(sorted(filter(None, languages)))
            log.warning(f"{path}: no concept has a name in the language {language!r}; found: {found}.")
        for concept in concepts:
            if isinstance(concept, rdflib.URIRef) and (concept, OWL.deprecated, rdflib.Literal(True)) not in graph:
                name = _in_language(graph, concept, (SKOS.prefLabel, RDFS.label), language)
                yield str(concept), name, _in_language(graph, concept, (SKOS.definition, SKOS.scopeNote), language)

    return read


def _in_language(graph: Any, concept: Any, properties: Sequence[Any], language: str | None) -> str:
    """Return a text of a concept: in the requested language, else without a language, else in the first by its code."""
    for property in properties:
        texts = [text for text in graph.objects(concept, property) if hasattr(text, "language")]
        wanted = language or LANGUAGE
        if texts:
            return str(min(texts, key=lambda text: (text.language != wanted, text.language or "", str(text))))
    return ""


FORMATS: Mapping[str, Callable[[Path, str | None], Iterator[Given]]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".json": _json,
    ".ttl": _skos("turtle"),
    ".nt": _skos("nt"),
    ".rdf": _skos("xml"),
    ".xml": _skos("xml"),
}

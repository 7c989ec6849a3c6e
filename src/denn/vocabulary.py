"""A label vocabulary: names for the ids of labels. Ids are stored and predicted, names are shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from denn.errors import DataError


@dataclass(frozen=True, slots=True)
class VocabularyEntry:
    """A label: its id, such as a URI, its name for people, and what it means."""

    id: str
    name: str
    description: str = ""
    replaced_by: str = ""  # id of the label that this one was merged into
    replaced_in: int = 0  # number of the change of the datastore that did so; 0 until it is known


@dataclass(frozen=True)
class Vocabulary:
    """Labels by id. In an empty vocabulary, every label is its own name."""

    entries: tuple[VocabularyEntry, ...] = ()

    @cached_property
    def _entry(self) -> Mapping[str, VocabularyEntry]:
        return {entry.id: entry for entry in self.entries}

    @cached_property
    def _ids(self) -> Mapping[str, list[str]]:
        found = defaultdict(list)
        for entry in self.entries:
            found[entry.name].append(entry.id)
        return found

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[VocabularyEntry]:
        return iter(self.entries)

    def __contains__(self, id: object) -> bool:
        return id in self._entry

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} entries)"

    @cached_property
    def replaced(self) -> Mapping[str, str]:
        """Labels that were merged into others: id → id."""
        return {entry.id: entry.replaced_by for entry in self.entries if entry.replaced_by}

    def replaced_in(self, label: str) -> int:
        """Return the number of the change that merged a label; 0 if it is unknown."""
        entry = self._entry.get(label)
        return 0 if entry is None else entry.replaced_in

    def with_entry(self, label: str, **changes: Any) -> Vocabulary:
        """Return a vocabulary in which the entry of a label, new if it had none, has other values."""
        entry = replace(self._entry.get(label, VocabularyEntry(label, label)), **changes)
        if label in self._entry:
            return Vocabulary(tuple(entry if one.id == label else one for one in self.entries))
        return Vocabulary((*self.entries, entry))

    def name(self, label: str) -> str:
        """Return the name of a label; one that is not in the vocabulary is its own name."""
        entry = self._entry.get(label)
        return label if entry is None else entry.name

    def description(self, label: str) -> str:
        """Return the description of a label, or an empty string."""
        entry = self._entry.get(label)
        return "" if entry is None else entry.description

    def names(self, labels: Iterable[str]) -> dict[str, str]:
        """Return the names of the labels that are in the vocabulary, by id."""
        return {label: self._entry[label].name for label in labels if label in self._entry}

    def id(self, label: str) -> str:
        """Return the id of a label that is given by id or name; an unknown label is returned unchanged."""
        found = () if label in self._entry else self._ids.get(label, ())
        if len(found) > 1:
            raise DataError(
                f"the label {label[:60]!r} is the name of {len(found)} vocabulary entries: {found[0]}, {found[1]}"
                f"{', …' if len(found) > 2 else ''}. Use the id instead."
            )
        return found[0] if found else label

    def ids(self, labels: Iterable[str]) -> tuple[str, ...]:
        """Return the ids of labels that are given by id or name, each once."""
        return tuple(dict.fromkeys(map(self.id, labels)))

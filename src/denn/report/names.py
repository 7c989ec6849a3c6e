"""Replace label ids by names in the findings of a report."""

from __future__ import annotations

from dataclasses import replace

from denn.report.gather import Error, Findings
from denn.vocabulary import Vocabulary


def with_names(found: Findings, vocabulary: Vocabulary) -> Findings:
    """Return the findings with names instead of ids."""
    if not vocabulary:
        return found
    name, near = vocabulary.name, found.neighbourhood
    if near is not None:
        near = replace(near, map=replace(near.map, labels=tuple(map(name, near.map.labels))))
    return replace(
        found,
        evaluation=replace(found.evaluation, names=tuple(map(name, found.evaluation.names))),
        confusions=[
            {**pair, "missed": name(pair["missed"]), "given": name(pair["given"])} for pair in found.confusions
        ],
        errors=[_error(error, vocabulary) for error in found.errors],
        neighbourhood=near,
    )


def _error(error: Error, vocabulary: Vocabulary) -> Error:
    name = vocabulary.name
    return replace(
        error,
        right=tuple(map(name, error.right)),
        missed=[(name(label), score) for label, score in error.missed],
        wrong=[(name(label), score) for label, score in error.wrong],
        neighbours=[replace(one, labels=tuple(map(name, one.labels))) for one in error.neighbours],
        words={name(label): words for label, words in error.words.items()},
    )

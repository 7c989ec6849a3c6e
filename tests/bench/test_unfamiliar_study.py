"""The study of unfamiliar texts: what counts as a summary, and how labels and flags are counted."""

import pytest

from denn.prediction_types import Prediction
from denn.types import Document
from denn_bench.studies.unfamiliar import figures, summary


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("xed: an editor for X\nxed: edits", "an editor for X"),
        ("xed: C++: the book", "C++: the book"),
        ("no name here\nxed: later", ""),
        ("", ""),
    ],
)
def test_a_summary_is_the_first_line_without_the_package(text, expected):
    assert summary(text) == expected


def test_labels_and_flags_are_counted():
    predictions = [
        Prediction(("a", "b", "c"), {}, None, (), familiarity=0.001),
        Prediction((), {}, None, (), familiarity=0.7),
        Prediction(("a",), {}, None, (), familiarity=0.001, same_text="stored"),
        Prediction(("a",), {}, None, ()),
    ]
    found = figures([Document("t", ("a",)), Document("t", ("a",)), Document("t"), Document("t")], predictions)
    assert (found["labels given"], found["gold labels"], found["given / gold"]) == (1.25, 0.5, 2.5)
    assert (found["texts"], found["flagged, %"], found["median familiarity"]) == (4, 25.0, 0.001)

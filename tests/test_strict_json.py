"""JSON that every reader accepts: numbers that are not finite are rejected, with their location."""

import json

import pytest

from denn.errors import DataError, TrainingError
from denn.strict_json import dumps, loads, not_finite


def test_what_is_written_can_be_read():
    content = {"a": [1, 2.5, None, True, "NaN"], "b": {"c": (3e300,)}}
    assert (
        json.loads(dumps(content, "This")) == loads(dumps(content, "This", indent=1)) == json.loads(json.dumps(content))
    )


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (float("nan"), "the number is nan"),
        ({"a": 1.0, "b": {"c": [0, float("inf")]}}, "b.c.1 is inf"),
        ([{"x": (1, -float("inf"))}], "0.x.1 is -inf"),
    ],
)
def test_the_place_of_what_is_not_finite_is_said(content, place):
    assert not_finite(content) == place
    with pytest.raises(DataError, match=f"^The report was not written: {place}, expected a finite number. Train again"):
        dumps(content, "The report")
    with pytest.raises(TrainingError):
        dumps(content, "The model", TrainingError)


def test_other_mistakes_stay_what_they_are():
    with pytest.raises(ValueError, match="Exceeds the limit"):
        dumps({"x": 10**5000}, "This")
    with pytest.raises(TypeError):
        dumps({"x": object()}, "This")


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"x": -Infinity}', "{"])
def test_what_is_not_json_is_not_read(text):
    with pytest.raises(ValueError):
        loads(text)

"""A short run of what `make soak` does for ten minutes; see saturation.py."""

import os

import pytest
from saturation import saturate

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("DENN_SATURATION", "4"))


def test_every_answer_is_right_while_others_change_the_datastore(tiny_model):
    found = saturate(tiny_model, SECONDS, clients=16, writers=2, queue=64)
    checked, statuses = found["checked"], found["statuses"]
    assert found["changes"] > 10 and checked["texts"] > 50 and checked["scores"] > 100
    assert not found["first_wrong"]
    assert {status.rpartition(" ")[2] for status in statuses} <= {"200", "503", "504"}, statuses

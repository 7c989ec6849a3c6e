"""Statistics of predictions."""

from denn.prediction_types import Prediction
from denn.service.telemetry import Telemetry


def test_empty_and_unfamiliar_predictions_are_counted():
    telemetry = Telemetry()
    strange = Prediction(("a",), {"a": 0.9}, None, (), familiarity=0.0)
    telemetry.predicted([strange, strange, Prediction((), {}, None, (), familiarity=0.5), Prediction((), {}, None, ())])
    lines = telemetry.exposition().decode().splitlines()
    assert "denn_predictions_total 4.0" in lines
    assert "denn_empty_predictions_total 2.0" in lines
    assert "denn_unfamiliar_predictions_total 2.0" in lines

"""Callbacks: the events of a training run, and the examples of the documentation with their libraries."""

import os
import re
from pathlib import Path

import pytest

import denn
from denn.callbacks import Validation, Watched
from denn.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "callbacks.md"


class Listener:
    """Records all events."""

    def __init__(self) -> None:
        self.validations: list[Validation] = []
        self.models: list[denn.Model] = []

    def on_validation(self, validation: Validation) -> None:
        self.validations.append(validation)

    def on_end(self, model: denn.Model) -> None:
        self.models.append(model)


class OnlyEnd:
    """Handles only the end, and raises."""

    def on_end(self, model: denn.Model) -> None:
        raise RuntimeError("no room for a metric")


@pytest.fixture
def brief(tiny_settings) -> dict[str, object]:
    """Arguments for training three epochs of four steps each, validated every two steps."""
    return {**tiny_settings, "epochs": 3, "evaluate_every": 2, "allow_poor": True}


@pytest.fixture
def example(tiny_corpus, brief, tmp_path, monkeypatch):
    """Return a function that runs the code of a section of the page with a shortened `denn.train`."""
    monkeypatch.chdir(tmp_path)

    def run(title: str) -> dict[str, object]:
        (code,) = re.findall(rf"## {title}\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        names = {"denn": denn, "corpus": tiny_corpus, "brief": brief}
        exec(code.replace('out="model/"', 'out="model/", **brief'), names)
        names["model"].close()
        return names

    return run


@pytest.mark.slow
def test_callbacks_hear_every_validation_and_the_end(tiny_corpus, brief, tmp_path):
    listener = Listener()
    with denn.train(tiny_corpus, out=tmp_path / "model", callbacks=[listener], **brief) as model:
        assert listener.models == [model]
        history = model.card.training["history"]
    heard = listener.validations
    assert [one.step for one in heard] == [2, 4, 6, 8, 10, 12] == [entry["step"] for entry in history]
    assert [one.epoch for one in heard] == [0.5, 1, 1.5, 2, 2.5, 3]
    assert [one.metrics["micro_f1"] for one in heard] == [entry["micro_f1"] for entry in history]
    assert set(heard[0].metrics) >= {"micro_f1", "tuned_micro_f1"} and not {"score", "noise"} & set(heard[0].metrics)
    assert [one.seconds for one in heard] == sorted(one.seconds for one in heard)
    assert all(one.loss > 0 for one in heard)


@pytest.mark.slow
def test_an_error_of_a_callback_ends_the_call_and_leaves_the_model(tiny_corpus, brief, tmp_path):
    with pytest.raises(RuntimeError, match="no room for a metric"):
        denn.train(tiny_corpus, out=tmp_path / "model", callbacks=[OnlyEnd()], **brief)
    denn.load(tmp_path / "model").close()


@pytest.mark.parametrize("wrong", [print, Listener, "on_end"])
def test_what_hears_nothing_is_refused(wrong):
    with pytest.raises(ConfigError, match="expected an object with on_validation or on_end"):
        Watched(None, [wrong])


@pytest.mark.slow
def test_mlflow_keeps_what_the_example_of_the_page_logs(example, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more packages
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    model = example("MLflow")["model"]
    (run,) = mlflow.search_runs(output_format="list")
    assert run.data.params["combination"] == model.card.parameters["combination"]
    assert run.data.metrics["final_micro_f1"] == pytest.approx(model.card.metrics["micro_f1"])
    steps = [one.step for one in mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")]
    assert steps == [2, 4, 6, 8, 10, 12]


@pytest.mark.slow
def test_tensorboard_keeps_what_the_example_of_the_page_logs(example, tmp_path):
    from tensorboard.backend.event_processing import event_accumulator

    example("TensorBoard")
    events = event_accumulator.EventAccumulator(os.fspath(tmp_path / "runs" / "first")).Reload()
    assert [one.step for one in events.Scalars("micro_f1")] == [2, 4, 6, 8, 10, 12]
    assert {"loss", "tuned_micro_f1"} <= set(events.Tags()["scalars"])

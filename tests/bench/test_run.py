"""Runs: from a recipe to a result that can be checked by hand, resumed after an interruption, never mixed up."""

import fcntl
import gc
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import denn
from denn.clock import Clock
from denn.config import make_recipe, read_recipe
from denn.core.metrics import label_table, multilabel_scores
from denn.errors import ConfigError, DataError
from denn.progress import Silent
from denn.types import Stage
from denn_bench import machine as machine_module
from denn_bench import run as run_module
from denn_bench.machine import commit, machine, matrix_rate
from denn_bench.measure import _columns, _groups, rounded, utilisation
from denn_bench.result import read_all
from denn_bench.run import Run, clear, digest, finished, on_share, perform, plan, take_share, write
from denn_bench.timing import Stopwatch, measure_costs

pytestmark = pytest.mark.slow  # every test here trains

RECIPES = Path(__file__).parents[2] / "recipes"
KEYS = {
    "schema", "name", "corpus", "recipe", "seed", "commit", "created", "versions", "machine", "cost", "history",
    "thresholds", "test", "valid", "curves", "decisions",
}  # fmt: skip
COSTS = {
    "seconds", "training_seconds", "validation_seconds", "steps", "best_step", "epochs", "tokens", "tokens_per_second",
    "epoch_seconds", "matrix_rate", "mfu", "mfu_with_attention", "peak_memory_bytes", "inference_ms_per_text",
    "inference_ms_per_text_without_neighbours", "prediction_ms_per_text", "prediction_ms_per_text_with_evidence",
    "store_documents", "store_bytes", "parameters", "stopped_early",
}  # fmt: skip


class Notes(Silent):
    """Progress that records its notes and may interrupt."""

    def __init__(self, stop_at=None):
        self.notes, self.stop_at = [], stop_at

    def note(self, message):
        self.notes.append(message)
        if self.stop_at and message.startswith(self.stop_at):
            raise KeyboardInterrupt


def do(recipes, corpus, folder, name="denn", progress=None, settings=None, **options):
    (run,) = plan(recipes, ["tiny"], [name], [0], settings)
    return perform(
        run, corpus, digest(corpus), folder / "results", folder / "work", progress or Silent(), **options
    )  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.fixture
def result(shared, recipes, tiny_corpus):
    """One run of DENN with sweeps, made once; its model is kept."""
    if not (shared / "results").exists():
        do(recipes, tiny_corpus, shared, keep_model=True, sweeps=True)
    return read_all(shared / "results")[0]


def test_curves_pass_through_what_was_tuned(result):
    curves, grid = result.data["curves"], result.data["curves"]["threshold"]
    for part, threshold in result.data["thresholds"].items():
        at = grid.index(threshold)
        for corpus in ("valid", "test"):
            tuned = result.data[corpus]["systems"][part]["tuned"]
            for name in ("micro_f1", "macro_f1"):
                assert curves[corpus][part][name][at] == pytest.approx(tuned[name], abs=1e-6)
        assert max(curves["valid"][part]["micro_f1"]) == curves["valid"][part]["micro_f1"][at]


def test_a_result_has_all_that_is_promised(result, tiny_corpus):
    data = result.data
    assert data.keys() == KEYS | {"sweeps"}
    assert data["cost"].keys() == COSTS
    assert data["schema"] == 1
    sizes = {"name": "tiny", "train": 60, "valid": 60, "test": 20, "labels": 6}
    assert data["corpus"] == sizes | {"digest": digest(tiny_corpus)}
    assert data["recipe"]["name"] == data["recipe"]["method"] == "denn"
    assert data["recipe"]["parameters"]["k"] == 5
    assert data["recipe"]["parameters"]["warmup"] == 0.0  # what a constant schedule does by default
    assert data["machine"].keys() == {"cpu", "instructions", "cores", "memory", "gpu", "os"}
    assert set(data["sweeps"]) == {"k", "gamma", "datastore"}
    assert len(data["history"]) == 3
    test = data["test"]
    assert test.keys() == {"systems", "bands", "groups", "mean_confidence", "per_label", "empty_gamma"}
    assert 0 <= test["empty_gamma"] <= 1
    for part in ("classifier", "neighbours", "average", "final"):
        for systems in (test["systems"], data["valid"]["systems"]):
            assert list(systems[part]) == ["0.4", "0.45", "0.5", "tuned", "per_label"]
        assert systems[part]["tuned"]["threshold"] == data["thresholds"][part]
        assert len(test["per_label"][f"f1_{part}"]) == 6
    assert test["per_label"]["label"] == list(tiny_corpus.labels.names)
    assert test["per_label"]["train"][-1] == 1  # the rare one


def test_a_model_that_learnt_nothing_is_a_result_too(tmp_path):
    documents = [denn.Document("always the same", (label,)) for label in "aaab"]
    corpus = denn.Corpus(documents, documents, documents, name="tiny")
    run = Run("tiny", "br", 0, make_recipe("br", {"min_df": 1, "jobs": 1}))
    data = perform(run, corpus, digest(corpus), tmp_path / "results", tmp_path / "work", Silent()).data
    assert data["test"]["systems"]["final"]["tuned"]["micro_f1"] == 0.75


def test_a_number_that_is_not_finite_is_in_no_result(tmp_path):
    write(file := tmp_path / "result.json", {"loss": 0.5, "é": [1]})
    assert file.read_text() == '{\n"loss": 0.5,\n"é": [1]\n}\n'
    with pytest.raises(
        DataError, match=r"result\.json was not written: history\.1\.loss is nan, expected a finite number"
    ):
        write(file, {"loss": 0.25, "history": [{"loss": 1.0}, {"loss": float("nan")}]})
    assert json.loads(file.read_text())["loss"] == 0.5 and len(list(tmp_path.iterdir())) == 1


def test_decisions_give_the_scores_again(result, tiny_corpus):
    assert torch.equal(result.gold(), tiny_corpus.labels.matrix(tiny_corpus.test))
    for part in ("classifier", "neighbours", "average", "final"):
        again = multilabel_scores(result.decisions(part), result.gold())
        assert result.f1(part, "tuned") == pytest.approx((again["micro_f1"], again["macro_f1"]), abs=1e-6)
        f1 = label_table(result.decisions(part), result.gold()).f1.tolist()
        assert result.data["test"]["per_label"][f"f1_{part}"] == pytest.approx(f1, abs=1e-6)


def test_the_model_that_was_kept_scores_the_same(result, shared, tiny_corpus):
    with denn.load(shared / "work" / "tiny-denn-0") as model:
        assert model.evaluate(tiny_corpus.test).headline == pytest.approx(
            result.data["test"]["systems"]["final"]["tuned"], abs=1e-6
        )


def test_costs_agree_with_each_other(result):
    cost = result.data["cost"]
    assert cost["steps"] == 12  # 60 documents in four batches of 14 to 16, three times
    assert cost["epochs"] == 3
    assert cost["seconds"] > 0
    assert cost["store_bytes"] == 60 * 32 * 4
    assert cost["parameters"]["head"] == 6 * 32 + 6
    assert cost["parameters"]["extra"] == 0
    assert cost["store_documents"] == 60
    assert cost["inference_ms_per_text"] > 0
    assert cost["prediction_ms_per_text_with_evidence"] > 0 and cost["prediction_ms_per_text"] > 0
    assert cost["peak_memory_bytes"] > 10**7
    if cost["tokens"]:
        assert cost["tokens_per_second"] == pytest.approx(cost["tokens"] / cost["training_seconds"], rel=1e-3)
        assert cost["epoch_seconds"] == pytest.approx(cost["training_seconds"] / 3, rel=1e-3)
        # a layer: four 32×32 maps, 32→64→32, biases, two norms; and the norm of the embeddings
        layer = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 4 * 32
        expected = 6 * (2 * layer + 2 * 32) * cost["tokens_per_second"] / cost["matrix_rate"]
        assert cost["mfu"] == pytest.approx(expected, rel=1e-3, abs=1e-6)
        # two layers of width 32; a text attends to at most all its tokens
        longest = expected + 12 * 2 * 32 * 512 * cost["tokens_per_second"] / cost["matrix_rate"]
        assert expected <= cost["mfu_with_attention"] <= longest


def test_utilisation_by_hand():
    assert utilisation(6 * 85_000_000, 472_000, 790e12) == pytest.approx(0.3047, abs=1e-4)


def test_a_file_names_no_machine_path(result, shared, tiny_settings):
    text = (shared / "results" / "tiny-denn-0.json").read_text().replace(tiny_settings["encoder"], "")
    assert str(shared) not in text
    assert "NaN" not in text


@pytest.mark.parametrize("name", ["bert", "dummy"])
def test_methods_without_a_datastore_run_too(name, recipes, tiny_corpus, tmp_path):
    result = do(recipes, tiny_corpus, tmp_path, name, sweeps=True)
    assert result.data.keys() == KEYS
    assert result.data["cost"].keys() == COSTS
    assert result.data["cost"]["store_bytes"] is None
    assert list(result.data["decisions"]) == ["gold", "final"]
    assert (result.data["cost"]["parameters"] is None) == (name == "dummy")
    assert result.data["test"]["empty_gamma"] is None
    assert list((tmp_path / "work").iterdir()) == []  # models are deleted


def test_a_corpus_without_validation_or_without_test(recipes, tiny_corpus, tmp_path):
    result = do(recipes, replace(tiny_corpus, valid=()), tmp_path, "dummy")
    assert result.data["valid"] is None
    assert result.data["thresholds"] == {"final": 0.5}
    with pytest.raises(DataError, match="tiny has no test split"):
        do(recipes, replace(tiny_corpus, test=()), tmp_path / "other", "dummy")


def test_an_interrupted_run_is_taken_up_and_ends_the_same(recipes, tiny_corpus, tmp_path, result):
    settings = {"checkpoint_seconds": 0}
    with pytest.raises(KeyboardInterrupt):
        do(recipes, tiny_corpus, tmp_path, progress=Notes("step 8"), settings=settings)
    assert not list((tmp_path / "results").iterdir())
    diary = json.loads((tmp_path / "work" / "tiny-denn-0.run.json").read_text())
    assert diary["seconds"] > 0
    notes = Notes()
    again = do(recipes, tiny_corpus, tmp_path, progress=notes, settings=settings)
    assert any(note.startswith("resuming at step") for note in notes.notes)
    assert again.data["decisions"] == result.data["decisions"]
    assert again.data["cost"]["seconds"] >= round(diary["seconds"], 1)


def test_a_run_that_fails_gives_its_turn_back(recipes, tiny_corpus, tmp_path):
    class Failing(Silent):
        def start(self, stage):
            if stage.trains:
                raise RuntimeError

    gc.disable()  # the turn must not depend on it
    try:
        with pytest.raises(RuntimeError):
            do(recipes, tiny_corpus, tmp_path, progress=Failing(), take_turns=True)
        with (tmp_path / "work" / "turns.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        gc.enable()


@pytest.mark.parametrize(("shared", "waits"), [(False, 2), (True, 1)], ids=["alone", "shared"])
def test_only_times_of_its_own_wait_for_a_turn(recipes, tiny_corpus, tmp_path, shared, waits):
    stages = []

    class Listening(Silent):
        def start(self, stage):
            stages.append(stage.what)

    do(recipes, tiny_corpus, tmp_path, progress=Listening(), take_turns=True, shared=shared)
    assert stages.count("waiting for another run") == waits


def test_a_finished_model_is_evaluated_without_training(recipes, tiny_corpus, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "measure", broken)
        with pytest.raises(RuntimeError):
            do(recipes, tiny_corpus, tmp_path, "bert")
    monkeypatch.setattr(run_module, "train", broken)
    notes = Notes()
    assert do(recipes, tiny_corpus, tmp_path, "bert", notes).data["cost"]["steps"] == 12
    assert notes.notes[0].endswith("is already trained")


def test_a_corpus_can_use_the_recipes_of_another_one(recipes):
    (own,) = plan(recipes, ["tiny"], ["bert"], [0])
    (run,) = plan(recipes, ["reuters21578"], ["bert"], [0], recipes_of="tiny")
    assert run.name == "reuters21578-bert-0" and run.method == own.method
    with pytest.raises(ConfigError, match=r"There is no recipe 'brt' for tiny\. Did you mean 'bert'\?"):
        plan(recipes, ["reuters21578"], ["brt"], [0], recipes_of="tiny")


def test_what_is_done_is_known_by_recipe_and_documents(recipes, tiny_corpus, tmp_path):
    do(recipes, tiny_corpus, tmp_path, "bert")
    results, checksum = tmp_path / "results", digest(tiny_corpus)
    (run,) = plan(recipes, ["tiny"], ["bert"], [0])
    assert finished(run, checksum, results).name == "tiny-bert-0"
    (other_seed,) = plan(recipes, ["tiny"], ["bert"], [1])
    assert finished(other_seed, checksum, results) is None
    (other,) = plan(recipes, ["tiny"], ["bert"], [0], {"learning_rate": 0.25})
    with pytest.raises(ConfigError, match=r"tiny-bert-0.json has learning_rate = 0.005 instead of 0.25\. Move it"):
        finished(other, checksum, results)
    with pytest.raises(DataError, match="belongs to other documents of tiny"):
        finished(run, digest(replace(tiny_corpus, test=tiny_corpus.test[1:])), results)
    path = results / "tiny-bert-0.json"
    data = json.loads(path.read_text())
    del data["recipe"]["parameters"]["warmup"]  # as if it had come later
    path.write_text(json.dumps(data))
    assert finished(run, checksum, results) is not None
    path.write_text("{}")
    with pytest.raises(ConfigError, match="is not a result of"):
        finished(run, checksum, results)


def test_what_others_left_in_the_work_folder_is_refused(recipes, tiny_corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        do(recipes, tiny_corpus, tmp_path, "bert", Notes("step"))
    with pytest.raises(ConfigError, match=r"unfinished run .* has epochs = 3 instead of 5"):
        do(recipes, tiny_corpus, tmp_path, "bert", settings={"epochs": 5})
    (run,) = plan(recipes, ["tiny"], ["bert"], [0])
    clear(run, tmp_path / "work")
    (tmp_path / "work" / run.name).mkdir()
    with pytest.raises(ConfigError, match="is not a model of `denn bench run`"):
        do(recipes, tiny_corpus, tmp_path, "bert")


def test_plans_name_what_is_unknown(recipes):
    runs = plan(recipes, ["tiny"], ["bert", "dummy"], [3, 1])
    assert [run.name for run in runs] == ["tiny-bert-3", "tiny-dummy-3", "tiny-bert-1", "tiny-dummy-1"]
    assert runs[0].method.parameters.seed == 3
    with pytest.raises(ConfigError, match=r"no recipe 'den' for tiny\. Did you mean 'denn'"):
        plan(recipes, ["tiny"], ["den"], [0])
    with pytest.raises(ConfigError, match=r"Unknown corpus 'tini'.*Did you mean 'tiny'"):
        plan(recipes, ["tini"], ["denn"], [0])
    with pytest.raises(ConfigError, match="has no recipes"):
        plan(recipes, ["goemotions"], ["denn"], [0])
    with pytest.raises(ConfigError, match="no parameter 'kk'"):
        plan(recipes, ["tiny"], ["denn"], [0], {"kk": 1})


def test_the_digest_depends_on_every_document_and_its_part(tiny_corpus):
    moved = replace(tiny_corpus, valid=tiny_corpus.valid[:-1], test=[tiny_corpus.valid[-1], *tiny_corpus.test])
    relabelled = replace(tiny_corpus, test=[*tiny_corpus.test[:-1], replace(tiny_corpus.test[-1], labels=())])
    assert len({digest(corpus) for corpus in (tiny_corpus, moved, relabelled)}) == 3
    assert digest(replace(tiny_corpus, name="other")) == digest(tiny_corpus)


def test_groups_by_hand():
    gold = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1]], dtype=torch.bool)
    right = label_table(gold, gold)
    half = label_table(torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0]], dtype=torch.bool), gold)
    groups = _groups(torch.tensor([5000, 4500, 1701, 870]), {"classifier": half, "final": right})
    assert [(group["name"], group["labels"], group["macro_f1"]) for group in groups] == [
        (">4500", 1, 1.0), ("1701-4500", 2, 1.0), ("<=870", 1, 1.0),
    ]  # fmt: skip
    # F1 of the labels: 2/3, 0, 2/3, 2/3
    assert [group["parts"]["classifier"] for group in groups] == pytest.approx([2 / 3, 1 / 3, 2 / 3])


def test_columns_and_rounding():
    assert _columns(torch.tensor([[True, False, True], [False] * 3, [False, False, True]])) == [[0, 2], [], [2]]
    assert _columns(torch.zeros(2, 0, dtype=torch.bool)) == [[], []]
    assert rounded({"a": [0.12345678, 3, None], "b": 7.9e14, "c": ("x", True)}) == {
        "a": [0.123457, 3, None], "b": 790_000_000_000_000, "c": ["x", True],
    }  # fmt: skip


def test_the_machine_is_described_without_its_name(monkeypatch):
    described = machine()
    assert described["cores"] >= 1
    assert described["memory"] > 10**8
    assert matrix_rate("cpu") > 1e6
    monkeypatch.setenv("DENN_COMMIT", "abc")
    assert commit() == "abc"
    monkeypatch.delenv("DENN_COMMIT")
    monkeypatch.setattr(machine_module.denn, "__file__", "/nowhere/denn/__init__.py")
    assert commit() is None


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*/*.toml")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_recipe_is_valid_and_says_what_it_is(path):
    assert path.read_text().startswith("# ")
    method, parameters = read_recipe(path)
    assert make_recipe(method, parameters).method == method
    assert "seed" not in parameters


def test_shared_runs_take_their_times_from_costs_that_were_measured_alone(recipes, tiny_corpus, tmp_path):
    result = do(recipes, tiny_corpus, tmp_path, "bert", shared=True)
    assert result.data["cost"]["shared"] is True and result.data["cost"]["training_seconds"] > 0
    (read,) = read_all(tmp_path / "results")
    assert read.data["cost"]["training_seconds"] is None and read.data["cost"]["inference_ms_per_text"] is None
    assert read.data["cost"]["steps"] == result.data["cost"]["steps"]
    (run,) = plan(recipes, ["tiny"], ["bert"], [0])
    costs = tmp_path / "results" / "costs"
    written = measure_costs(run, tiny_corpus, digest(tiny_corpus), costs, 3.0, Silent())
    (read,) = read_all(tmp_path / "results")
    epochs = [written["cost"]["epoch_seconds"], result.data["cost"]["epoch_seconds"]]
    assert read.data["cost"]["epoch_seconds"] == min(epochs) > 0
    assert read.data["cost"]["training_seconds"] is None
    assert read.data["cost"]["inference_ms_per_text"] == written["cost"]["inference_ms_per_text"] > 0
    assert json.loads((costs / "tiny-bert-0.json").read_text())["corpus"] == result.data["corpus"]


def test_a_run_without_a_time_takes_it_from_a_run_alone_and_keeps_its_own(recipes, tiny_corpus, tmp_path):
    result = do(recipes, tiny_corpus, tmp_path, "bert")
    file = tmp_path / "results" / f"{result.name}.json"
    file.write_text(json.dumps(result.data | {"cost": result.data["cost"] | {"inference_ms_per_text": None}}))
    (run,) = plan(recipes, ["tiny"], ["bert"], [0])
    written = measure_costs(run, tiny_corpus, digest(tiny_corpus), tmp_path / "results" / "costs", 0.2, Silent())
    (read,) = read_all(tmp_path / "results")
    assert read.data["cost"]["inference_ms_per_text"] == written["cost"]["inference_ms_per_text"] > 0
    assert read.data["cost"]["epoch_seconds"] == result.data["cost"]["epoch_seconds"]


def test_shares_of_the_training_documents_lie_within_each_other(tiny_corpus):
    half, quarter = (take_share(tiny_corpus, share) for share in (0.5, 0.25))
    assert (len(half.train), len(quarter.train)) == (30, 15)
    assert {d.id for d in quarter.train} < {d.id for d in half.train} < {d.id for d in tiny_corpus.train}
    assert (half.valid, half.test, half.labels) == (tiny_corpus.valid, tiny_corpus.test, tiny_corpus.labels)
    assert take_share(tiny_corpus, 1.0) is tiny_corpus


def test_a_run_on_a_share_has_a_name_of_its_own(recipes):
    (run,) = plan(recipes, ["tiny"], ["bert"], [0])
    assert on_share(run, 0.125).name == "tiny-bert-12.5-0" and on_share(run, 1.0) is run


def test_the_pace_is_that_of_the_later_half(monkeypatch):
    watch = Stopwatch(Silent(), Clock(), 1.0)
    moments = iter([0.0, 8.0, 9.0, 10.0, 11.0, 12.0])
    watch.advance(1)  # before the training
    watch.start(Stage("training", trains=True))
    monkeypatch.setattr("denn_bench.timing.time", SimpleNamespace(monotonic=lambda: next(moments)))
    for done in (0, 100, 110, 120, 130, 140):
        watch.advance(done)
    assert watch.pace() == pytest.approx(10)
    watch.start(Stage("writing"))
    watch.advance(10**9)
    assert watch.pace() == pytest.approx(10)
    assert Stopwatch(Silent(), Clock(), 1.0).pace() is None


def test_a_last_step_that_takes_longest_has_a_pace_too():
    watch = Stopwatch(Silent(), Clock(), 1.0)
    watch.times = [(0.0, 0), (1.0, 10), (2.0, 20), (12.0, 30)]
    assert watch.pace() == pytest.approx(1)

"""Reading results: which files are results, their fields, and selecting some."""

import json

import pytest
import torch

from denn.errors import DataError
from denn_bench.result import Result, completed, read_all, select

DATA = {
    "schema": 1,
    "name": "aapd-denn-2",
    "corpus": {"name": "aapd"},
    "recipe": {"name": "denn"},
    "seed": 2,
    "test": {
        "systems": {"final": {"tuned": {"micro_f1": 0.75, "macro_f1": 0.5}}},
        "per_label": {"label": ["a", "b", "c"]},
    },
    "decisions": {"gold": [[0, 2], []], "final": [[1], [0, 1, 2]]},
}


def write(folder, name, **changes):
    (folder / f"{name}.json").write_text(json.dumps(DATA | {"name": name} | changes))


def test_a_result_gives_metrics_and_decisions(tmp_path):
    write(tmp_path, "aapd-denn-2")
    (result,) = read_all(tmp_path)
    assert (result.name, result.corpus, result.recipe, result.seed) == ("aapd-denn-2", "aapd", "denn", 2)
    assert result.metric("final", "tuned", "macro_f1") == 0.5
    assert result.f1("final", "tuned") == (0.75, 0.5)
    assert result.gold().tolist() == [[True, False, True], [False, False, False]]
    assert result.decisions("final").tolist() == [[False, True, False], [True, True, True]]
    assert result.gold().dtype == torch.bool


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("finale", "tuned", "micro_f1"), "aapd-denn-2 has no part 'finale'. Available: final"),
        (("final", "0.4", "micro_f1"), "no threshold '0.4'. Available: tuned"),
        (("final", "tuned", "f1"), "no metric 'f1'. Available: micro_f1, macro_f1"),
    ],
)
def test_what_a_result_does_not_have_is_said(tmp_path, asked, said):
    write(tmp_path, "aapd-denn-2")
    (result,) = read_all(tmp_path)
    with pytest.raises(DataError, match=said):
        result.metric(*asked)
    with pytest.raises(DataError, match="no part 'average'"):
        result.decisions("average")


def test_other_json_files_are_left_out_and_other_schemas_refused(tmp_path):
    write(tmp_path, "aapd-denn-2")
    (tmp_path / "search.json").write_text('{"milliseconds": 3}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "README.md").write_text("results")
    assert [result.name for result in read_all(tmp_path)] == ["aapd-denn-2"]
    write(tmp_path, "b", schema=2)
    with pytest.raises(DataError, match=r"b\.json has schema 2, but this version of denn reads 1"):
        read_all(tmp_path)
    for content in ("{", '{"schema": 1, "loss": NaN}', '{"loss": -Infinity}'):
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(DataError, match=r"b\.json is not a JSON"):
            read_all(tmp_path)
    with pytest.raises(DataError, match="There is no folder"):
        read_all(tmp_path / "nowhere")


def test_results_are_chosen_by_corpus_and_recipe_and_come_by_seed():
    results = [Result(f"{c}-{r}-{s}", c, r, s, {}) for c in ("x", "y") for r in ("p", "q") for s in (2, 10, 1)]
    assert [result.name for result in select(results, "y", "p")] == ["y-p-1", "y-p-2", "y-p-10"]
    assert len(select(results, corpus="x")) == len(select(results, recipe="q")) == 6
    assert [result.seed for result in select(results)] == [1] * 4 + [2] * 4 + [10] * 4
    assert select(results, "z") == []


def test_an_older_constant_run_had_no_warm_up_whatever_it_recorded():
    older = {"method": "bert", "parameters": {"schedule": "constant", "warmup": 0.05}}
    assert completed(older)["parameters"]["warmup"] == 0.0
    newer = {"method": "bert", "parameters": {"schedule": "constant", "warmup": 0.05, "epsilon": 1e-8}}
    assert completed(newer)["parameters"]["warmup"] == 0.05
    falling = {"method": "bert", "parameters": {"schedule": "linear", "warmup": 0.05}}
    assert completed(falling)["parameters"]["warmup"] == 0.05


def test_an_older_run_combined_by_confidence_before_that_was_a_parameter():
    assert completed({"method": "denn", "parameters": {}})["parameters"]["combination"] == "confidence"
    learnt = {"method": "denn", "parameters": {"combination": "learnt"}}
    assert completed(learnt)["parameters"]["combination"] == "learnt"

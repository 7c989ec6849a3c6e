"""`denn bench`: lists of runs, skipped and failing runs, and the commands that show results."""

import json
import shutil
from pathlib import Path

import pytest

import bench_runs
from denn import registry
from denn.data.corpus import read_corpus
from denn.progress import Plain
from denn_bench import machine

pytestmark = pytest.mark.slow  # most tests here train


def load(folder):
    """Read the corpus that these tests register."""
    return read_corpus(folder / "train.jsonl", folder / "valid.jsonl", folder / "test.jsonl", name="tiny")


@pytest.fixture
def bench(run, files, tmp_path, tiny_settings, monkeypatch):
    """Run `denn bench run` on corpora named tiny and tiny2 with recipes good, bad and dummy."""
    monkeypatch.setitem(machine.SIZES, "cpu", 64)
    recipes = tmp_path / "recipes"
    for corpus in ("tiny", "tiny2"):
        monkeypatch.setitem(registry.CORPORA.own, corpus, f"{__name__}:load")
        shutil.copytree(files, tmp_path / "data" / corpus)
        (recipes / corpus).mkdir(parents=True)
        settings = tiny_settings | {"epochs": 1}
        written = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        (recipes / corpus / "good.toml").write_text(f"[parameters]\n{written}")
        (recipes / corpus / "bad.toml").write_text('method = "denn"\n[parameters]\nencoder = "./nowhere"\n')
        (recipes / corpus / "dummy.toml").write_text('method = "dummy"\n')
    folders = ["--recipes", recipes, "--results", tmp_path / "results", "--work", tmp_path / "work"]

    def call(*arguments):
        return run("bench", "run", *arguments, *folders, "--data-dir", tmp_path / "data")

    return call


def test_every_recipe_on_every_corpus_with_every_seed(bench, tmp_path):
    ran = bench("tiny,tiny2", "dummy, good", "--seeds", "0,1")
    assert (ran.code, ran.out) == (0, "")
    names = {
        f"{corpus}-{recipe}-{seed}" for corpus in ("tiny", "tiny2") for recipe in ("dummy", "good") for seed in "01"
    }
    assert {path.stem for path in (tmp_path / "results").iterdir()} == names
    data = json.loads((tmp_path / "results" / "tiny2-good-1.json").read_text())
    micro, macro = (100 * data["test"]["systems"]["final"]["tuned"][name] for name in ("micro_f1", "macro_f1"))
    assert f"tiny2-good-1: micro/macro-F1 {micro:.1f}/{macro:.1f} on 20 test documents" in ran.err
    assert (data["seed"], data["recipe"]["parameters"]["seed"]) == (1, 1)
    assert not list((tmp_path / "work").iterdir())


def test_a_search_scores_combinations_on_validation_and_resumes(run, bench, tmp_path):
    out = tmp_path / "search.jsonl"
    folders = ["--recipes", tmp_path / "recipes", "--work", tmp_path / "work", "--data-dir", tmp_path / "data"]

    def search(*choices):
        return run("bench", "search", "tiny", "good", *choices, "--out", out, *folders)

    ran = search("--try", "alpha=0,0.1", "--try", "k=3")
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert ran.code == 0 and [line["settings"] for line in lines] == [{"alpha": 0, "k": 3}, {"alpha": 0.1, "k": 3}]
    assert all(0 < line["valid_micro_f1"] <= 1 for line in lines)
    best = max(lines, key=lambda line: line["valid_micro_f1"])
    assert ran.out.splitlines()[2].startswith(f"| alpha = {best['settings']['alpha']}, k = 3 | ")
    assert [line["recipe"]["parameters"]["alpha"] for line in lines] == [0.0, 0.1]
    more = search("--try", "alpha=0,0.1,0.2", "--try", "k=3")
    assert more.code == 0 and len(out.read_text().splitlines()) == 3  # the first two were known
    assert search("--try", "alpha").code == 2


def test_a_share_of_the_training_documents(bench, tmp_path):
    assert bench("tiny", "dummy", "--share", "0.5").code == 0
    (path,) = (tmp_path / "results").iterdir()
    data = json.loads(path.read_text())
    assert (path.stem, data["recipe"]["name"], data["corpus"]["train"]) == ("tiny-dummy-50-0", "dummy-50", 30)
    assert bench("tiny", "dummy", "--share", "0").code == 2


def test_what_is_done_is_skipped(bench, tmp_path):
    assert bench("tiny", "dummy", "--keep-models").code == 0
    path = tmp_path / "results" / "tiny-dummy-0.json"
    written = path.stat().st_mtime_ns
    assert (tmp_path / "work" / "tiny-dummy-0" / "bundle.json").exists()
    ran = bench("tiny", "dummy")
    assert ran.code == 0
    assert "tiny-dummy-0 is already in" in ran.err
    assert path.stat().st_mtime_ns == written
    assert not list((tmp_path / "work").iterdir())  # without the option that keeps it
    assert "tiny-dummy-0" not in bench("tiny", "dummy", "-q").err


def test_sweeps_that_a_result_lacks_are_said(bench):
    assert bench("tiny", "good,dummy").code == 0
    ran = bench("tiny", "good,dummy", "--sweeps")
    assert ran.code == 0
    said = [line.partition("results")[2] for line in ran.err.splitlines() if " already" in line]
    assert said == [", without sweeps; move it away to run them", ""]


def test_combinations_are_compared_on_the_scores_of_runs(bench, run, tmp_path):
    scores, out = tmp_path / "scores", tmp_path / "combine.json"
    assert bench("tiny", "good,dummy", "--seeds", "0,1", "--scores", scores).code == 0
    assert sorted(path.name for path in scores.iterdir()) == ["tiny-good-0", "tiny-good-1"]  # dummy has no witnesses
    ran = run("bench", "combine", scores, "--out", out)
    assert ran.code == 0 and "tiny-good-1, 3 witnesses: " in ran.err
    assert [row.split(" | ")[:2] for row in ran.out.splitlines()[2:]] == [["| tiny-good", "2"]] * 2
    for one in json.loads(out.read_text())["runs"]:
        result = json.loads((tmp_path / "results" / f"tiny-good-{one['seed']}.json").read_text())
        assert result["recipe"]["parameters"]["gamma"] == 0.5
        for name in one["witnesses"]:
            assert one["systems"][name]["threshold"] == result["thresholds"][name]
            expected = result["test"]["systems"][name]["tuned"]
            assert one["systems"][name]["micro_f1"] == pytest.approx(expected["micro_f1"], abs=0.01)


def test_scores_that_a_result_lacks_are_said(bench, tmp_path):
    assert bench("tiny", "good,dummy").code == 0
    ran = bench("tiny", "good,dummy", "--scores", tmp_path / "scores")
    assert ran.code == 0 and "tiny-good-0 has no scores in" in ran.err and "tiny-dummy-0 has no" not in ran.err


def test_combine_says_what_is_wrong_with_scores(run, tmp_path):
    ran = run("bench", "combine", tmp_path / "nowhere")
    assert ran.code == 2 and "has no witness scores" in ran.err
    (tmp_path / "scores" / "tiny-good-0").mkdir(parents=True)
    ran = run("bench", "combine", tmp_path / "scores")
    assert ran.code == 2 and "valid.npz cannot be read: No such file or directory" in " ".join(ran.err.split())


def test_another_recipe_under_the_name_of_a_result_is_an_error(bench):
    assert bench("tiny", "good").code == 0
    ran = bench("tiny", "good", "--set", "k=3")
    assert ran.code == 2
    assert "has k = 5 instead of 3" in ran.err


def test_a_run_that_fails_leaves_the_others_alone(bench, tmp_path):
    ran = bench("tiny", "bad,dummy")
    assert ran.code == 2
    assert "tiny-bad-0 failed: " in ran.err
    assert ran.err.splitlines()[-1] == "denn: 1 of 2 runs failed: tiny-bad-0. The others succeeded."
    assert [path.stem for path in (tmp_path / "results").iterdir()] == ["tiny-dummy-0"]


def test_a_corpus_that_cannot_be_read_leaves_the_others_alone(bench, tmp_path):
    shutil.rmtree(tmp_path / "data" / "tiny")
    ran = bench("tiny,tiny2", "dummy,good", "--seeds", "0")
    assert ran.code == 2
    assert "tiny failed: " in ran.err
    assert "denn: 2 of 4 runs failed: tiny-dummy-0, tiny-good-0. The others succeeded." in ran.err
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_a_fault_of_ours_ends_with_1(bench, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("denn_bench.run.measure", broken)
    ran = bench("tiny", "dummy")
    assert ran.code == 1
    assert "tiny-dummy-0 failed: ZeroDivisionError: oh" in ran.err
    assert "Traceback" not in ran.err
    assert "Traceback" in bench("tiny", "dummy", "-v").err


def test_an_interruption_can_be_taken_up(bench, monkeypatch, tmp_path):
    def stop(self, message):
        if message.startswith("step"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Plain, "note", stop)
        ran = bench("tiny", "dummy,good")
    assert ran.code == 130
    assert ran.err.splitlines()[-1] == "denn: interrupted; run the same command again to resume"
    assert [path.stem for path in (tmp_path / "results").iterdir()] == ["tiny-dummy-0"]
    ran = bench("tiny", "dummy,good")
    assert ran.code == 0
    assert "tiny-dummy-0 is already in" in ran.err
    assert len(list((tmp_path / "results").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny", "godo"], "no recipe 'godo' for tiny. Did you mean 'good'? Available: bad, dummy, good."),
        (["tini", "good"], "Unknown corpus 'tini'"),
        (["tiny", "good", "--seeds", "0,x"], "numbers such as 0,1,2"),
        (["tiny", "good", "--set", "kk=3"], "no parameter 'kk'"),
    ],
)
def test_wrong_names_are_said_before_anything_is_read(bench, tmp_path, arguments, said):
    ran = bench(*arguments)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())
    assert not (tmp_path / "results").exists()


def test_results_are_shown_by_name(run, bench, tmp_path):
    results = ["--results", tmp_path / "results"]
    assert run("bench", "table", "speed", *results).code == 2  # there is no such folder yet
    assert bench("tiny", "good", "--seeds", "0,1").code == 0
    pytest.importorskip("denn_bench.tables")
    ran = run("bench", "table", "speed", *results)
    assert ran.code == 0
    assert "tiny, good" in ran.out
    assert "main-aapd" in run("bench", "table", "nothing", *results).err
    ran = run("bench", "compare", "tiny", "good", "good:classifier", *results)
    assert ran.code == 0
    assert "good (final) minus good (classifier) on tiny" in ran.out
    ran = run("bench", "compare", "tiny", "good", "bert", *results)
    assert ran.code == 2
    assert "has no result of bert on tiny" in ran.err


def test_figures_say_where_they_are(run, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "aapd-denn-0.json").write_text(json.dumps(bench_runs.run("denn").data))
    ran = run("bench", "figure", "schedule", "--results", results, "--out", tmp_path / "figures")
    written = [Path(line) for line in ran.out.splitlines()]
    assert ran.code == 0 and [path.name for path in written] == [f"schedule.{kind}" for kind in ("svg", "png", "csv")]
    assert all(path.stat().st_size > 100 for path in written)


def test_a_page_is_filled_and_checked(run, tmp_path):
    results, page = tmp_path / "results", tmp_path / "page.md"
    results.mkdir()
    (results / "aapd-denn-0.json").write_text(json.dumps(bench_runs.run("denn").data))
    page.write_text("# Speed\n<!-- table: speed -->\n<!-- end -->\n")
    stale = run("bench", "page", page, "--check", "--results", results)
    assert stale.code == 2 and "is out of date" in stale.err
    assert run("bench", "page", page, "--results", results).code == 0
    assert "tokens" in page.read_text()
    assert run("bench", "page", page, "--check", "--results", results).code == 0
    assert run("bench", "page", tmp_path / "none.md").code == 2

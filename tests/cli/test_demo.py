"""The demo end to end on a small corpus, compared with a support vector machine."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest

import denn
from denn.cli import demo
from denn.core.metrics import multilabel_scores
from denn.data.corpus import read_documents
from denn.errors import DataError, TrainingError
from denn.prediction_types import Neighbour, Prediction
from denn_bench.systems.br import BR

pytestmark = pytest.mark.slow  # the demo from end to end

KINDS = {
    "sport": "goal match team referee stadium coach".split(),
    "food": "oven butter sauce recipe chef truffle".split(),
    "music": "violin chord melody concert drum tempo".split(),
}
FILLER = "the a of and in with to for on it was is this that by from at very old new".split()


def package(chance: random.Random, name: str, tagged: bool) -> denn.Document:
    """Create a package whose description determines its tags."""
    labels = chance.sample(list(KINDS), chance.choice((1, 1, 2)))
    words = [chance.choice(KINDS[label]) for label in labels for _ in range(8)] + chance.choices(FILLER, k=32)
    chance.shuffle(words)
    return denn.Document(f"{name}: {labels[0]}\n{' '.join(words)}", tuple(labels) if tagged else (), name)


def packages() -> tuple[list[denn.Document], list[denn.Document]]:
    chance = random.Random(5)
    tagged = [package(chance, f"tagged{number}", True) for number in range(150)]
    untagged = [package(chance, f"bare{number}", False) for number in range(12)]
    serving = [package(chance, name, False) for name in ("libbare1", "bare-dev", "bare-data")]
    return tagged, [*untagged, *serving, denn.Document("short: too short", (), "short")]


@pytest.fixture(scope="module")
def settings(tiny_settings: dict[str, object]) -> dict[str, object]:
    return {**tiny_settings, "epochs": 3, "head_start": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, object]) -> Path:
    """The output folder of the demo on the small corpus."""
    out = tmp_path_factory.mktemp("demo") / "new" / "out"
    demo.run(out, budget=600, documents=80, seed=3, quiet=True, packages=packages, settings=settings)
    return out


def test_the_model_is_one_to_work_with(folder: Path, tmp_path: Path) -> None:
    with denn.load(shutil.copytree(folder / "model", tmp_path / "model")) as model:
        assert set(model.labels.names) == set(KINDS)
        assert len(model.method.store) == 80
        model.add([denn.Document("a new kind of text", ("new",), "mine")])
        assert model.predict(["a new kind of text"])[0].neighbours[0].id == "mine"


def test_the_report_holds_what_is_shown(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    assert report["corpus"] == {"name": "debian", "untagged": 16, "train": 80, "valid": 15, "test": 30, "labels": 3}
    assert list(report["systems"])[:2] == list(demo.SVMS)
    assert {"classifier", "neighbours", "average", "confidence", "final"} <= set(report["systems"])
    assert report["settings"]["time_budget"] == 600
    assert report["seed"] == report["settings"]["seed"] == 3
    assert list(report["seconds"]) == ["corpus", "training", "comparison", "suggestions"]
    assert {"denn", "torch", "scikit-learn"} <= set(report["versions"])
    assert report["machine"]["cores"] >= 1
    for name in ("SVM tuned", "final"):
        assert sum(band["labels"] for band in report["bands"][name]) == 3


def test_reported_scores_are_those_of_the_model_on_the_drawn_test_part(folder: Path) -> None:
    report = json.loads((folder / "report.json").read_text())
    corpus = demo.parts(packages()[0], 80, seed=3)
    with denn.load(folder / "model") as model:
        found = model.evaluate(corpus.test)
    for part in found.systems:
        assert report["systems"][part]["micro_f1"] == pytest.approx(found.systems[part]["tuned"]["micro_f1"])
    words = [document.text for document in corpus.test]
    chosen = BR.decision_scores(corpus.train, words, corpus.labels) > report["systems"]["SVM tuned"]["threshold"]
    expected = multilabel_scores(chosen, corpus.labels.matrix(corpus.test))
    assert report["systems"]["SVM tuned"]["macro_f1"] == pytest.approx(expected["macro_f1"])
    assert expected["micro_f1"] > 0.8  # the words determine the tags


def test_the_test_part_can_be_reported_on(folder: Path) -> None:
    documents, _ = read_documents(folder / "test.jsonl")
    assert documents == list(demo.parts(packages()[0], 80, seed=3).test)
    assert {path.name for path in folder.iterdir()} == {"model", "report.json", "test.jsonl"}


def test_suggestions_are_for_untagged_packages_worth_showing_with_tagged_neighbours(folder: Path) -> None:
    tagged = {document.id: set(document.labels) for document in packages()[0]}
    suggestions = json.loads((folder / "report.json").read_text())["suggestions"]
    assert len(suggestions) == demo.SUGGESTED
    for suggestion in suggestions:
        assert suggestion["package"].startswith("bare") and not suggestion["package"].endswith(("dev", "data"))
        assert suggestion["description"].startswith(f"{suggestion['package']}: ")
        prediction = suggestion["prediction"]
        assert prediction["labels"] and set(prediction["labels"]) <= set(prediction["scores"])
        assert len(prediction["neighbours"]) == demo.EVIDENCE
        assert all(set(one["labels"]) == tagged[one["id"]] for one in prediction["neighbours"])


def test_a_second_run_trains_anew_and_shows_everything_within_80_columns(
    folder: Path, settings: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / "report.json").read_text()
    (folder / "model.training").mkdir()  # a run that was killed
    (folder / "model.training" / "run.json").write_text('{"fingerprint": "of another run"}')
    demo.run(folder, budget=600, documents=80, seed=3, quiet=False, packages=packages, settings=settings)
    lines = capsys.readouterr().out.split("\n")
    report = json.loads((folder / "report.json").read_text())
    assert report["systems"] == json.loads(before)["systems"]
    assert max(map(len, lines[: next(i for i, line in enumerate(lines) if line.startswith("Done in"))])) <= 80
    row = next(line for line in lines if re.match(r" *denn +\d", line))
    shown = [float(value) for value in row.split()[1:]]
    final = report["systems"]["final"]
    assert shown == [round(100 * final[metric], 1) for metric in demo.METRICS.values()]
    assert any(line.strip().startswith("λ (confidence) ") for line in lines)
    assert any(line.startswith("Witnesses: classifier") for line in lines)
    assert "λ" not in "".join(lines[next(i for i, line in enumerate(lines) if line.startswith("Suggestions for")) :])
    for suggestion in report["suggestions"]:
        assert suggestion["description"] in lines
        for number, one in enumerate(suggestion["prediction"]["neighbours"], 1):
            assert f" {number}  {one['similarity']:.2f}  {one['text'].splitlines()[0]}" in lines
    assert any("●" in line for line in lines)
    assert any(line.strip().startswith("denn store add") for line in lines)
    assert any(line.startswith(f"  denn report {folder / 'model'} {folder / 'test.jsonl'} ") for line in lines)


def test_only_the_model_of_an_earlier_demo_is_replaced_unasked(folder, settings, tiny_corpus, tmp_path) -> None:
    def again(out: Path, **options: bool) -> None:
        demo.run(out, budget=600, documents=80, seed=3, quiet=True, packages=packages, settings=settings, **options)

    taught, other = Path(shutil.copytree(folder, tmp_path / "taught")), tmp_path / "other"
    with denn.load(taught / "model") as model:
        model.add([denn.Document("a new kind of text", ("new",), "mine")])
    denn.train(tiny_corpus, out=other / "model", method="dummy").close()
    for out, reason in ((taught, "datastore has changed since training"), (other, "already contains a model")):
        before = (out / "model" / "bundle.json").read_bytes()
        with pytest.raises(TrainingError, match=rf"{reason}.*pass --replace"):
            again(out)
        assert (out / "model" / "bundle.json").read_bytes() == before
    again(taught, replace=True)
    with denn.load(taught / "model") as model:
        assert "mine" not in model.store.ids()


@pytest.mark.parametrize(
    "words", [{}, {"works-with-format::xml": (("xml", 2.1), ("parse xml", 1.2), ("dom", 0.3), ("a", 0.1))}]
)
def test_suggestions_show_witnesses_neighbours_and_words(
    words: dict[str, tuple[tuple[str, float], ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    near = (Neighbour("a", 0.8, ("works-with-format::xml",), "a: reads XML\nlong"), Neighbour("b", 0.5, (), "b: other"))
    parts = {
        "works-with-format::xml": {"classifier": 0.91, "neighbours": 0.72, "words": 0.66},
        "new": {"neighbours": 0.41},
    }
    prediction = Prediction(
        ("works-with-format::xml", "new"), {"works-with-format::xml": 0.88, "new": 0.41}, 0.3, near, parts, words
    )
    demo._show_suggestions([demo.Suggestion("p", "p: a parser", prediction)], 0.4)
    lines = capsys.readouterr().out.splitlines()
    known, new = (next(line.split() for line in lines if line.strip().startswith(tag)) for tag in prediction.labels)
    assert known == [
        "works-with-format::xml",
        "0.88",
        "0.91",
        "0.72",
        "0.66",
        "●",
        *(["xml,", "parse", "xml,", "dom"] if words else []),
    ]
    assert new == ["new", "0.41", "0.41"]
    header = next(line for line in lines if line.strip().startswith("suggested tag"))
    assert header.split()[:6] == ["suggested", "tag", "score", "classifier", "neighbours", "words"]
    assert ("supporting words" in header) == bool(words)
    assert max(map(len, lines)) <= 100


def test_what_comes_next_fits_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    demo._show_end(Path("demo"), 300)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("#")[0].strip() for line in lines[-3:]] == [
        "denn report demo/model demo/test.jsonl",
        "denn store add demo/model yours.jsonl",
        "denn serve demo/model --teach",
    ]
    assert max(map(len, lines)) <= 80


def test_without_apt_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DENN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"apt-get is not installed.*denn train your\.jsonl"):
        demo.run(tmp_path / "out", budget=1, documents=100, seed=0, quiet=True)
    assert not (tmp_path / "out").exists()


def test_parts_are_disjoint_drawn_by_the_seed_and_no_larger_than_asked() -> None:
    tagged, _ = packages()
    corpus = demo.parts(tagged, 1000, seed=1)
    names = [document.id for part in (corpus.train, corpus.valid, corpus.test) for document in part]
    assert sorted(names) == sorted(str(document.id) for document in tagged)
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (105, 15, 30)
    fewer = demo.parts(tagged, 40, seed=1)
    assert (fewer.test, fewer.valid, fewer.train) == (corpus.test, corpus.valid, corpus.train[:40])
    assert demo.parts(tagged, 1000, seed=2).test != corpus.test

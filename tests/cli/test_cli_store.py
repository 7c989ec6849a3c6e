"""`denn store`: add, change and remove documents of a model."""

import json
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import pytest

import denn
from denn.data.corpus import read_documents
from denn.stores.address import open_store

pytestmark = pytest.mark.slow  # whole commands on models


@pytest.fixture
def model(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


def info(run, model):
    return json.loads(run("store", "info", model, "--json").out)


def test_added_documents_speak_at_once_with_new_labels(run, model, tmp_path):
    before = info(run, model)
    text = "goal match team referee stadium"
    rows = [{"text": text, "labels": ["[/]", "sport"], "id": "mine"}, {"text": "x", "labels": []}]
    file = tmp_path / "more.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run("store", "add", model, file)
    assert ran.code == 0
    assert "added 2 of 2 documents" in ran.err
    assert "holds 62 documents; 0 of the added documents" in ran.err
    assert "New labels: [/]." in ran.err
    run("store", "add", model, file)  # the document without an id is added again, the other replaced
    after = info(run, model)
    assert after["documents"] == before["documents"] + 3
    assert after["new_labels"] == ["[/]"]
    assert after["label_counts"]["[/]"] == 1
    (row,) = run("predict", model, "--evidence", "--neighbours", 1, stdin=text.encode()).rows
    assert row["neighbours"][0]["id"] == "mine"
    assert "[/]" in row["scores"]
    shown = run("store", "info", model).out
    assert "63 documents, 7 labels" in shown
    assert "Labels added since the training: [/]" in shown


def test_new_labels_that_nobody_hears_of_are_warned_of(run, model, deaf_model, tmp_path):
    file = tmp_path / "more.jsonl"
    file.write_text(json.dumps({"text": "zeppelin", "labels": ["airships", "sport", "balloons"]}) + "\n")
    ran = run("store", "add", deaf_model, file)
    assert ran.code == 0
    assert "warning: The model cannot predict the new label 'airships' (and 1 more) yet, because it does not" in ran.err
    assert "cannot predict" not in run("store", "add", model, file).err
    file.write_text(json.dumps({"text": "a goal", "labels": ["sport"]}) + "\n")
    assert "cannot predict" not in run("store", "add", deaf_model, file).err


def test_documents_to_add_need_a_column_of_labels(run, model, tmp_path):
    (tmp_path / "bare.jsonl").write_text('{"text": "x"}\n')
    ran = run("store", "add", model, tmp_path / "bare.jsonl")
    assert ran.code == 2
    assert "there is no column 'labels'" in ran.err


def test_removing_is_all_or_nothing(run, model, tmp_path):
    ran = run("store", "remove", model, "train-1", "nobody")
    assert ran.code == 2
    assert "no document with the id 'nobody'" in ran.err
    assert info(run, model)["documents"] == 60
    (tmp_path / "ids.txt").write_text("train-2\r\ntrain-3\n")
    ran = run("store", "remove", model, "train-1", "--from", tmp_path / "ids.txt")
    assert ran.code == 0
    assert "removed 3 documents; the datastore holds 57" in ran.err


def test_relabelling_replaces_the_labels(run, model):
    assert run("store", "relabel", model, "train-4", "music", "brand new").code == 0
    with denn.load(model) as loaded:
        assert loaded.method.store.get(["train-4"])[0].labels == ("music", "brand new")
    assert run("store", "relabel", model, "train-4", "two\nlines").code == 2
    assert run("store", "relabel", model, "nobody", "music").code == 2


def test_rejected_labels_are_added_changed_and_shown(run, model, tmp_path):
    text, file = "goal match team referee stadium", tmp_path / "more.csv"
    file.write_text(f"id,text,labels,rejected\nmine,{text},sport,music|war\n")
    assert run("store", "add", model, file).code == 0
    ran = run("store", "relabel", model, "mine", "--reject", "sport", "--drop", "war")
    assert ran.code == 0 and "mine has no labels; rejected: music, sport" in ran.err
    ran = run("store", "relabel", model, "mine", "--add", "sport", "--reject", "sport")
    assert ran.code == 2 and "'sport' is both given and rejected" in ran.err
    assert run("store", "relabel", model, "mine", "--reject", " ").code == 2
    assert json.loads(run("store", "list", model, "mine").out) == {
        "id": "mine", "labels": [], "text": text, "rejected": ["music", "sport"],
    }  # fmt: skip
    near = run("predict", model, "--evidence", "--neighbours", 2, stdin=text.encode()).rows[0]["neighbours"]
    assert near[0]["rejected"] == ["music", "sport"] and "rejected" not in near[1]
    assert info(run, model)["rejections"] == 2
    exported = tmp_path / "all.jsonl"
    exported.write_text(run("store", "list", model).out)
    (document,) = (one for one in read_documents(exported)[0] if one.id == "mine")
    assert document.rejected == ("music", "sport") and document.labels == ()


@pytest.mark.parametrize("command", [["info"], ["remove", "x"], ["relabel", "x", "y"]])
def test_a_method_without_datastore_says_so(run, dummy, command):
    ran = run("store", command[0], dummy, *command[1:])
    assert ran.code == 2
    assert "has no datastore, because its method 'dummy'" in ran.err


def listed(run, model, *options):
    return [json.loads(line)["id"] for line in run("store", "list", model, *options).out.splitlines()]


def test_documents_are_chosen_by_what_they_are_like(run, model):
    everything = listed(run, model)
    assert len(everything) == 60
    assert listed(run, model, "--limit", 2) == everything[:2] and run("store", "list", model, "--limit", 0).code == 2
    label = next(iter(info(run, model)["label_counts"]))
    some = listed(run, model, "--label", label)
    assert 0 < len(some) < 60
    shown = run("store", "remove", model, "--label", label, "--dry-run").out.splitlines()
    assert [json.loads(line)["id"] for line in shown] == some and listed(run, model) == everything
    renamed = ("relabel", model, "--label", label, "--add", "renamed", "--drop", label, "--by", "me")
    ran = run("store", *renamed)
    assert ran.code == 2 and f"would relabel {len(some)} documents" in ran.err and "--yes" in ran.err
    assert listed(run, model, "--label", label) == some
    ran = run("store", *renamed, "--yes")
    assert f"relabelled {len(some)} documents" in ran.err and "New labels: renamed." in ran.err
    assert listed(run, model, "--label", "renamed") == listed(run, model, "--source", "me") == some
    assert f"removed {len(some)} documents" in run("store", "remove", model, "--source", "me", "-y").err
    assert listed(run, model, "--before", "2000-01-01") == []


def test_saying_nothing_or_too_much_is_an_error(run, model):
    for command, said in (
        (["remove"], "no documents selected"),
        (["forget"], "no documents selected"),
        (["remove", "train-1", "--label", "music"], "not both"),
        (["relabel", "train-1"], "no labels given"),
    ):
        ran = run("store", command[0], model, *command[1:])
        assert ran.code == 2 and said in ran.err
    assert info(run, model)["documents"] == 60


@pytest.mark.parametrize("command", ["remove", "forget", "relabel"])
def test_an_empty_value_changes_nothing(run, model, tmp_path, command):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    labels = ["--add", "x"] if command == "relabel" else []
    before = listed(run, model)
    for filters in (["--text", ""], ["--source", ""], ["--label", ""], [""]):
        ran = run("store", command, model, *filters, *labels, "--yes")
        assert ran.code == 2 and "is empty" in ran.err
    ran = run("store", command, model, "--from", empty, *labels)
    assert ran.code == 0 and " 0 documents" in ran.err
    assert listed(run, model) == before and len(run("store", "history", model).out.splitlines()) == 1
    assert run("store", "list", model, "--text", "").code == 2


def test_many_documents_by_a_file_of_ids_need_consent(run, model, tmp_path):
    named = listed(run, model)[:7]  # more than a tenth of 60
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(named))
    ran = run("store", "forget", model, "--from", ids)
    assert ran.code == 2 and "would forget 7 documents" in ran.err and info(run, model)["documents"] == 60
    ran = run("store", "forget", model, named[0], "--from", ids)
    assert ran.code == 2 and info(run, model)["documents"] == 60, "an id beside the file is no consent to the file"
    ids.write_text("\n".join([*named[:6], *named[:6], ""]))  # duplicates count once
    assert run("store", "forget", model, "--from", ids).code == 0 and info(run, model)["documents"] == 54
    assert run("store", "remove", model, *listed(run, model)[:7]).code == 0, "documents named one by one"


def test_a_file_of_ids_may_begin_with_a_mark_and_must_be_utf8(run, model, tmp_path):
    ids = tmp_path / "ids.txt"
    ids.write_text("train-1\ntrain-2\n", encoding="utf-8-sig")
    assert listed(run, model, "--from", ids) == ["train-1", "train-2"]
    ids.write_bytes("train-1\nümlaut\n".encode("latin-1"))
    ran = run("store", "remove", model, "--from", ids)
    assert ran.code == 2 and "ids.txt is not encoded in UTF-8" in " ".join(ran.err.split())


@pytest.mark.parametrize(
    "command",
    [
        ("undo", 10**20),
        ("undo", 0),
        ("history", "--limit", 10**20),
        ("list", "--limit", 10**20),
        ("list", "--since", "0001-01-01"),
    ],
)
def test_numbers_and_times_out_of_range_are_refused(run, model, command):
    ran = run("store", command[0], model, *command[1:])
    assert ran.code == 2 and ("Input should be" in ran.err or "the years 2 to 9998" in ran.err), ran.err


@pytest.mark.parametrize("labels", [[""], ["  "], ["music", ""], ["--add", ""], ["--drop", " "]])
def test_an_empty_label_takes_none_away(run, model, labels):
    before = run("store", "list", model, "train-4").out
    ran = run("store", "relabel", model, "train-4", *labels)
    assert ran.code == 2 and "is empty" in ran.err and run("store", "list", model, "train-4").out == before


@pytest.mark.parametrize("answer, left", [("n", 60), ("y", 0)])
def test_a_terminal_is_asked(model, answer, left, answer_on_terminal):
    """On a real terminal, the user answers with the keyboard."""
    command = [sys.executable, "-m", "denn", "store", "remove", str(model), "--since", "2000-01-01"]
    code, said = answer_on_terminal(command, "Continue?", answer)
    assert "would remove 60 documents" in " ".join(said.split())
    assert code == (0 if answer == "y" else 2)
    with open_store(model) as store:
        assert len(store) == left


@pytest.mark.parametrize("days", ["nan", "-1", "-0.001", "inf", "1e300"])
def test_an_age_that_is_none_is_refused(run, model, days):
    ran = run("store", "vacuum", model, "--keep", days)
    assert ran.code == 2 and "must be a number of days" in ran.err


def test_history_and_undo(run, model):
    run("store", "relabel", model, "train-4", "music", "--by", "alice")
    run("store", "remove", model, "train-5", "--by", "bob")
    rows = [json.loads(line) for line in run("store", "history", model, "--json").out.splitlines()]
    assert [(row["action"], row["documents"], row["source"]) for row in rows[:2]] == [
        ("remove", 1, "bob"), ("relabel", 1, "alice"),
    ]  # fmt: skip
    shown = run("store", "history", model, "--id", "train-4").out
    assert "relabel" in shown and "by alice" in shown and "remove" not in shown
    assert run("store", "undo", model, rows[0]["number"]).code == 0
    assert info(run, model)["documents"] == 60
    ran = run("store", "undo", model, 1)
    assert ran.code == 2 and "would revert a change to 60 documents" in ran.err
    ran = run("store", "undo", model, 1, "--yes")
    assert ran.code == 2 and "Undo that first" in ran.err


def test_labels_are_confirmed_and_unlabelled_documents_listed(run, model):
    assert "confirmed 1 document" in run("store", "relabel", model, "train-4", "--confirm").err
    assert json.loads(run("store", "history", model, "--json").out.splitlines()[0])["action"] == "confirm"
    run("store", "relabel", model, "train-5", "--drop", "sport", "--drop", "music", "--yes")
    blank = [json.loads(line) for line in run("store", "list", model, "--unlabelled").out.splitlines()]
    assert blank and all(row["labels"] == [] for row in blank)
    assert run("store", "list", model, "train-4", "--unlabelled").code == 2


def test_a_forgotten_document_is_in_no_file(run, model, tmp_path):
    (tmp_path / "one.jsonl").write_text('{"text": "the unspeakable", "labels": ["hush"], "id": "gone"}\n')
    run("store", "add", model, tmp_path / "one.jsonl")
    ran = run("store", "forget", model, "gone")
    assert "forgot 1 document;" in ran.err and "store vacuum" in ran.err
    assert run("store", "vacuum", model, "--keep", 30).code == 0
    left = b"".join(file.read_bytes() for file in model.rglob("*") if file.is_file())
    assert b"unspeakable" not in left and b"hush" not in left
    ran = run("store", "add", model, tmp_path / "one.jsonl")
    assert ran.code == 2 and "was forgotten on" in ran.err


def test_a_copy_can_be_used_in_the_place_of_the_original(run, model, tmp_path):
    copy = tmp_path / "copy.sqlite"
    assert "copied and verified 60 documents and the history" in run("store", "copy", model, copy).err
    assert run("store", "history", copy).out == run("store", "history", model).out != ""
    ran = run("store", "copy", model, copy)
    assert ran.code == 2 and "already" in ran.err
    assert run("store", "use", model, copy).code == 0
    run("store", "remove", model, "train-1")
    assert info(run, model)["documents"] == info(run, copy)["documents"] == 59
    with denn.load(model) as loaded:
        assert len(loaded.store) == 59
    assert run("store", "use", model, "own").code == 0
    assert info(run, model)["documents"] == 60


def test_a_copy_in_a_database_has_no_labels_of_removed_documents(run, model, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "stores")
    import postgres_server

    with denn.load(model) as loaded:
        trained = loaded.store.labels
        loaded.add([denn.Document("a", ("hush",), "gone"), denn.Document("b", ("later", "sport"), "stays")])
        loaded.store.forget("gone")
    address = postgres_server.address_of(tmp_path / "address", fresh=True)
    assert "copied and verified 61 documents" in run("store", "copy", model, address).err
    assert run("store", "use", model, address).code == 0
    with denn.load(model) as loaded:
        assert loaded.store.labels == (*trained, "later")
        loaded.store.remove("stays")
        loaded.store.vacuum(timedelta())
        assert loaded.store.labels == trained


def test_nothing_is_copied_into_memory(run, model):
    ran = run("store", "copy", model, "memory:")
    assert ran.code == 2 and "memory: would not outlive this command" in ran.err


def test_a_store_that_does_not_fit_is_not_used(run, model, tmp_path):
    from denn.stores.embedded.store import EmbeddedStore

    EmbeddedStore.create(tmp_path / "narrow.sqlite", 3).close()
    ran = run("store", "use", model, tmp_path / "narrow.sqlite")
    assert ran.code == 2 and "dimension 3" in ran.err
    with EmbeddedStore.open(model / "store" / "store.sqlite") as own:
        EmbeddedStore.create(tmp_path / "others.sqlite", own.dimension, ["other"]).close()
    ran = run("store", "use", model, tmp_path / "others.sqlite")
    assert ran.code == 2 and "does not begin with the model's labels" in ran.err
    assert info(run, model)["documents"] == 60


def test_an_address_of_no_kind_is_an_error(run):
    ran = run("store", "info", "ftp://example.org/store")
    assert ran.code == 2 and "expected a path, postgresql://" in ran.err


def test_an_index_is_built_when_asked_for(run, model):
    assert info(run, model)["search"] == "exact"
    ran = run("store", "index", model)
    assert ran.code == 0 and "search approximate" in ran.err and "recall" in ran.err
    assert info(run, model)["documents"] == 60
    ran = run("store", "index", "memory:")
    assert ran.code == 2

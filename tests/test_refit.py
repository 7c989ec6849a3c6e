"""Refit: new labels get a classifier and words, corrections generalise, and nothing is tuned on training documents."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch

import denn
from denn import bundle
from denn.errors import BundleError, ConfigError, ConflictError, DataError, TrainingError
from denn.methods.denn import DENN
from denn.refit_documents import FEWEST, ONE_IN
from denn.validation import Kept, changing, digests_of

NEW = "chess: opening"
MOVES = "gambit bishop knight rook pawn castling".split()


@pytest.fixture
def model(tiny_model, tmp_path):
    """A copy of the tiny model."""
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


@pytest.fixture
def older(model):
    """A model that keeps no validation documents, as earlier versions wrote them."""
    card = json.loads((model / "bundle.json").read_text(encoding="utf-8"))
    shutil.rmtree(model / card.pop("validation"))
    card["digests"] = {name: digest for name, digest in card["digests"].items() if not name.startswith("validation/")}
    (model / "bundle.json").write_text(json.dumps(card), encoding="utf-8")
    return model


class Hook:
    """Progress that calls a function when a stage begins, and records the notes."""

    def __init__(self, stage="", action=lambda: None):
        self.stage, self.action, self.notes, self.stages = stage, action, [], []

    def start(self, stage):
        self.stages.append(stage.what)
        if self.stage and stage.what.startswith(self.stage):
            self.action()

    def advance(self, done, **values):
        pass

    def note(self, message):
        self.notes.append(message)


def taught(count, labels=(NEW,), words=MOVES, part="later", rejected=()):
    """Documents with labels that are added after training."""
    texts = (" ".join(words[(n + i) % len(words)] for i in range(4)) + f" the {n}" for n in range(count))
    return [denn.Document(text, labels, f"{part}-{n}", rejected) for n, text in enumerate(texts)]


def teach(folder, documents):
    with denn.load(folder) as model:
        model.add(documents)


def is_held_out(id):
    return int(digests_of([id])) % ONE_IN == 0


def content(folder):
    """Return all files of a model but those of its datastore."""
    files = (path for path in folder.rglob("*") if path.is_file() and "store" not in path.relative_to(folder).parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_new_label_gets_a_classifier_and_words(model):
    teach(model, taught(30))
    with denn.load(model) as before:
        assert before.predict(["gambit bishop"])[0].parts[NEW].keys() == {"neighbours"}
    with denn.refit(model) as after:
        (prediction,) = after.predict(["gambit bishop knight and a rook"])
        assert prediction.parts[NEW].keys() == {"classifier", "neighbours", "words"}
        assert all(score > 0.5 for score in prediction.parts[NEW].values())
        assert NEW in prediction.labels
        assert {word for word, _ in prediction.words[NEW]} & set(MOVES)
        assert after.labels.names == after.store.labels
        held = sum(is_held_out(document.id) for document in taught(30))
        assert after.card.refitted["documents"] == 90 - held
        assert after.card.refitted["held_out"] == 60 + held
        assert after.card.corpus["label_counts"][-1] == 30 - held
    assert not (model / "head.safetensors").exists() and not (model / "witnesses").exists()


def test_a_correction_generalises(model):
    text = "referee stadium at the coach"
    with denn.load(model) as before:
        assert before.predict([text])[0].labels == ("sport",)
    teach(model, taught(60, ("music",), "goal match team referee stadium coach".split(), rejected=("sport",)))
    with denn.refit(model, force=True) as after:  # the kept validation documents contradict it
        parts = after.predict([text])[0].parts
        assert parts["music"]["classifier"] > parts["sport"]["classifier"]
        assert parts["music"]["words"] > parts["sport"]["words"]


def test_held_out_documents_vote_but_teach_nothing(model):
    ids = [id for id in (f"held-{n}" for n in range(400)) if is_held_out(id)][:20]
    assert len(ids) == 20
    teach(model, [denn.Document(one.text, one.labels, id) for one, id in zip(taught(20), ids, strict=True)])
    with denn.refit(model, force=True) as after:
        parts = after.predict(["gambit bishop knight rook"])[0].parts[NEW]
        assert parts["neighbours"] > 0.5
        assert parts["words"] < 0.2 and parts["classifier"] < 0.2
        assert after.card.refitted["held_out"] == 80
        assert after.card.corpus["label_counts"][-1] == 0


def test_a_validation_document_that_is_stored_is_not_learnt_from(model, tiny_corpus):
    stored = [denn.Document(one.text, one.labels, f"again-{n}") for n, one in enumerate(tiny_corpus.valid[:40])]
    teach(model, stored)
    with denn.refit(model, force=True) as after:
        assert after.card.refitted["documents"] == 60
        assert after.card.refitted["held_out"] == 60


def test_no_document_judges_by_itself(model, monkeypatch):
    """A text stored under two ids, unlike all others: neither copy may find itself, but each finds the other."""
    ids = [id for id in (f"held-{n}" for n in range(100)) if is_held_out(id)][:2]
    teach(model, [denn.Document("ryokan osaka oven drum", (f"own {id}",), id) for id in ids])
    searched, search = [], DENN.search

    def spy(self, embeddings, k, own_ids=None, exclude=()):
        found = search(self, embeddings, k, own_ids, exclude)
        if own_ids:
            searched.append((own_ids, found))
        return found

    monkeypatch.setattr(DENN, "search", spy)
    denn.refit(model, force=True).close()
    [(own_ids, found)] = searched  # one search, for the refit and for the model so far
    for one, other in (ids, ids[::-1]):
        row = own_ids.index(one)
        voters = zip(found.ids[row], found.similarity[row].tolist(), strict=False)
        heard = {id for id, similarity in voters if similarity > float("-inf")}
        assert one not in heard and other in heard


def test_a_refit_of_the_same_documents_is_as_good_as_the_one_before(model):
    with denn.load(model) as before:
        for n, id in enumerate(before.store.ids()):
            if n % 3:
                before.store.relabel(id, [before.labels.names[n % len(before.labels)]])
    denn.refit(model, force=True).close()
    with denn.refit(model) as again:  # the combination of the first was tuned on the documents that judge the second
        found = again.card.refitted
    assert (found["before"], found["standard_error"]) == (found["after"], 0.0)


def test_a_label_of_two_lines_from_an_older_store_can_be_relabelled(model, monkeypatch):
    monkeypatch.setattr("denn.stores.rules.check_labels", lambda names: None)  # as it was
    teach(model, [denn.Document("gambit and pawn", ("two\nlines",), "older")])
    with pytest.raises(DataError, match="contains a line break"):
        denn.refit(model, force=True)
    with denn.load(model) as opened:
        opened.store.relabel("older", [opened.labels.names[0]])
    denn.refit(model, force=True).close()


def test_a_refit_that_learnt_from_a_forgotten_document_is_not_taken(model):
    teach(model, taught(30))

    def forget():
        with denn.load(model) as opened:
            opened.store.forget(opened.store.ids()[-1])

    with pytest.raises(ConflictError, match="forgotten while the refit learnt"):
        denn.refit(model, force=True, progress=Hook("training the head", forget))
    assert not list(model.glob("learnt-*"))
    denn.refit(model, force=True).close()


def test_a_folder_that_takes_no_lock_is_named_in_a_sentence(model):
    (model / bundle.LOCK).mkdir()
    with pytest.raises(BundleError, match=r"cannot be locked: Is a directory\. Make its folder writable"):
        denn.refit(model)


NOBODY = 65534
CHANGE = """
import os, sys
import denn

def change(folder):
    denn.refit(folder, force=True).close()
    with denn.load(folder) as model:
        model.rename_label("sport", "Sports")
        assert model.forget("valid-1") == 1

change(sys.argv[1])  # imports everything while this process can read it
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
change(sys.argv[2])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_model_can_be_changed_though_its_parent_folder_is_not_writable(model):
    """As in a container that mounts only the model's folder."""
    with tempfile.TemporaryDirectory() as parent:  # not pytest's own, which only root can enter
        Path(parent).chmod(0o755)
        folder = Path(shutil.copytree(model, Path(parent) / "model"))
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        ran = subprocess.run([sys.executable, "-c", CHANGE, model, folder], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        card = bundle.read_card(folder)
        assert (card.learnt, card.validation) == ("learnt-1", "validation-1")
        assert not list(folder.rglob("*.lock"))


def test_what_is_not_a_model_is_not_locked(tmp_path):
    with pytest.raises(BundleError, match=r"none is not a model: no such folder\. Train one"):
        denn.refit(tmp_path / "none")
    with pytest.raises(BundleError, match=r"is not a model: no bundle\.json"):
        denn.refit(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_worse_refit_is_not_taken(model, tiny_corpus):
    with denn.load(model) as before:
        ids, labels = before.store.ids(), before.labels.names
        for n, id in enumerate(ids):
            before.store.relabel(id, [labels[n % len(labels)]])
    files, shown = content(model), Hook()
    with denn.refit(model, progress=shown) as after:
        assert after.card.refitted is None
    assert "The model was not changed" in shown.notes[-1]
    assert content(model) == files
    with denn.refit(model, force=True) as after:
        assert after.card.refitted["after"] < after.card.refitted["before"]


def test_an_older_model_says_what_is_missing(older, tiny_corpus):
    with pytest.raises(DataError, match=r"keeps no validation documents, and only 0 .* --valid FILE"):
        denn.refit(older)
    with denn.refit(older, valid=tiny_corpus.valid) as after:
        assert after.card.refitted["held_out"] == 60
        assert after.card.validation
    teach(older, taught(30))
    with denn.refit(older) as after:  # they are kept from now on
        assert after.card.refitted["documents"] > 80
        assert NEW in after.labels


def test_an_older_model_validates_on_later_documents(older):
    ids = [id for id in (f"held-{n}" for n in range(1000)) if is_held_out(id)]
    teach(older, [denn.Document(one.text, one.labels, id) for one, id in zip(taught(24), ids, strict=False)])
    with pytest.raises(DataError, match="and only 24 of the documents"):
        denn.refit(older)
    teach(older, [denn.Document("gambit and pawn", (NEW,), ids[24])])
    with denn.refit(older, force=True) as after:
        assert after.card.refitted["held_out"] == FEWEST
        assert after.card.refitted["documents"] == 60


def test_training_documents_judge_nothing(older, tiny_corpus):
    with pytest.raises(DataError, match="can be held out; a refit needs at least"):
        denn.refit(older, valid=tiny_corpus.train[:40])


def test_refits_follow_each_other(model):
    for number in (1, 2, 3):
        teach(model, taught(12, (f"label {number}",), [f"w{number}{c}" for c in "abcde"], f"part{number}"))
        with denn.refit(model, force=True) as after:
            assert after.card.learnt == f"learnt-{number}"
            assert f"label {number}" in after.labels
            assert after.labels.names == after.store.labels
            assert (model / after.card.learnt / "familiarity.json").is_file() and not (
                model / "familiarity.json"
            ).exists()
            assert after.predict(["zyx"])[0].familiarity is not None
    assert [path.name for path in model.glob("learnt*")] == ["learnt-3"]
    assert len((model / "labels.txt").read_text(encoding="utf-8").splitlines()) == 6


def test_the_same_documents_give_the_same_model(tiny_model, tmp_path):
    files = []
    for name in ("one", "other"):
        folder = Path(shutil.copytree(tiny_model, tmp_path / name))
        teach(folder, taught(15))
        denn.refit(folder).close()
        files.append({path: data for path, data in content(folder).items() if path != "bundle.json"})
    assert files[0] == files[1]


def test_documents_that_come_during_a_refit_wait_for_the_next(model):
    teach(model, taught(20))

    def write():
        teach(model, taught(10, ("latest",), ["yacht", "harbour", "mast", "sail", "anchor"], "latest"))

    with denn.refit(model, progress=Hook("learning the words of labels", write)) as after:
        assert NEW in after.labels and "latest" not in after.labels
        (prediction,) = after.predict(["yacht harbour mast sail"])
        assert prediction.parts["latest"].keys() == {"neighbours"}
        assert len(after.store) == 90
    with denn.refit(model, force=True) as after:
        assert after.labels.names == after.store.labels


def test_a_label_that_leaves_the_datastore_after_a_refit(model):
    """A vacuum renumbers the labels of the datastore; those of the witnesses keep their columns."""
    teach(model, taught(20))
    teach(model, taught(20, ("sailing",), ["yacht", "harbour", "mast", "sail", "anchor"], "sea"))
    with denn.refit(model) as running:
        before = running.predict(["yacht harbour mast and a sail"])[0]
        with denn.load(model) as other:
            other.remove(denn.Where(labels=(NEW,)))
            other.store.vacuum(keep=timedelta())
            assert NEW not in other.store.labels
        for one in (running, denn.load(model)):
            found = one.predict(["yacht harbour mast and a sail"])[0]
            assert found.labels == before.labels == ("sailing",)
            assert found.parts["sailing"] == pytest.approx(before.parts["sailing"], abs=0.05)
        one.close()
    with denn.refit(model, force=True) as after:
        assert NEW not in after.labels and "sailing" in after.labels


def test_a_cancelled_refit_changes_nothing(model):
    teach(model, taught(20))
    files = content(model)
    for stage in ("reading the datastore", "training the head", "scoring", "comparing", "writing"):

        def cancel():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            denn.refit(model, progress=Hook(stage, cancel))
        assert content(model) == files, stage
    denn.refit(model).close()


def test_leftovers_of_a_killed_refit_go_with_the_next(model):
    for path in (model / "learnt-7" / "head.safetensors", model / "bundle.json.part", model / "validation-4" / "x"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("left")
    with denn.refit(model) as after:
        assert after.card.learnt == "learnt-1"
    assert not (model / "learnt-7").exists() and not (model / "validation-4").exists()
    assert not (model / "bundle.json.part").exists()


def test_a_time_budget_that_is_not_a_time_is_refused(model):
    with pytest.raises(ConfigError, match="time_budget: 'soon' is not a time"):
        denn.refit(model, time_budget="soon")


def test_one_refit_at_a_time(model):
    with changing(model), pytest.raises(ConflictError, match="Training or a refit is changing"):
        denn.refit(model)


def test_digests_are_checked(model):
    denn.refit(model).close()
    for name in ("learnt-1/head.safetensors", "learnt-1/labels.txt", "validation/documents.jsonl"):
        damaged = model / name
        good = damaged.read_bytes()
        damaged.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(BundleError, match="has changed since it was written"):
            denn.load(model)
        damaged.write_bytes(good)
    denn.load(model).close()


@pytest.mark.parametrize(("field", "value"), [("learnt", "../learnt-1"), ("learnt", "store"), ("validation", "/etc")])
def test_a_card_names_no_other_folder(model, field, value):
    card = json.loads((model / "bundle.json").read_text(encoding="utf-8"))
    (model / "bundle.json").write_text(json.dumps(card | {field: value}), encoding="utf-8")
    with pytest.raises(BundleError, match=f"'{field}' has an invalid value"):
        denn.load(model)


@pytest.mark.parametrize("line", ["[]", "{", '{"id": "a", "text": 1, "labels": []}', '{"text": "x", "labels": []}'])
def test_damaged_validation_documents_are_refused(model, line):
    file = model / "validation" / "documents.jsonl"
    file.write_text("\n".join([line, *file.read_text(encoding="utf-8").split("\n")[1:]]), encoding="utf-8")
    bundle.write_card(model, bundle.read_card(model).model_copy(update={"digests": bundle.digests(model)}))
    with pytest.raises(BundleError, match=r"documents\.jsonl is damaged"):
        denn.refit(model)


def test_methods_without_documents_cannot_be_refitted(tiny_corpus, tmp_path):
    denn.train(tiny_corpus, method="br", out=tmp_path / "br", min_df=1, jobs=1).close()
    with pytest.raises(ConflictError, match="keeps no datastore"):
        denn.refit(tmp_path / "br")


def test_kept_documents_are_those_of_the_validation(model, tiny_corpus):
    kept = Kept.load(model / "validation")
    assert list(kept.documents) == list(tiny_corpus.valid)
    with denn.load(model) as loaded:
        assert torch.equal(kept.vectors, loaded.embed([document.text for document in tiny_corpus.valid]))
        assert torch.equal(kept.trained, digests_of(loaded.store.ids()))


def test_forget_reaches_the_validation_documents(model, tiny_corpus):
    gone, other = tiny_corpus.valid[3], tiny_corpus.valid[4]
    with denn.load(model) as loaded:
        assert loaded.forget([str(gone.id)]) == 1
        loaded.add([denn.Document(other.text, other.labels, str(other.id))])
        assert loaded.forget(str(other.id)) == 1
        assert len(loaded.store) == 60
        assert loaded.store.history(1)[0].action == "forget"
    held = b"".join(content(model).values())
    assert json.dumps(gone.text).encode() not in held and json.dumps(other.text).encode() not in held
    denn.load(model).close()
    with denn.refit(model) as after:
        assert after.card.refitted["held_out"] == 58


def test_forget_by_a_filter_reaches_the_validation_documents(model, tiny_corpus):
    wanted = [one for one in tiny_corpus.valid if "barometer" in one.text]
    with denn.load(model) as loaded:
        stored = loaded.store.select(denn.Where(text="barometer"))
        assert loaded.forget(denn.Where(text="barometer")) == len(stored) + len(wanted) > len(stored)
    assert not any("barometer" in one.text for one in Kept.load(next(model.glob("validation*"))).documents)


@pytest.mark.parametrize("metric", ["macro_f1", "precision_at_k"])
def test_a_refit_is_judged_by_what_the_model_is_optimised_for(model, metric):
    card = json.loads((model / "bundle.json").read_text(encoding="utf-8"))
    card["parameters"]["optimise"] = metric
    (model / "bundle.json").write_text(json.dumps(card), encoding="utf-8")
    teach(model, taught(20))
    with denn.refit(model) as after:
        assert after.card.refitted["metric"] == metric
        assert after.card.thresholds["final"].decides == ("per_label" if metric == "macro_f1" else "tuned")
        assert 0 < after.card.refitted["before"] <= after.card.refitted["after"] <= 1


def test_a_model_that_does_not_hear_the_neighbours_learns_new_labels(deaf_model):
    teach(deaf_model, taught(30))
    with denn.refit(deaf_model) as after:
        (prediction,) = after.predict(["gambit bishop knight and a rook"])
        assert prediction.parts[NEW].keys() == {"classifier", "words"}
        assert NEW in prediction.labels


def test_labels_of_given_validation_documents_that_are_not_stored_are_not_learnt(model, tiny_corpus):
    valid = [denn.Document(f"{one.text} yacht", (*one.labels, "sailing")) for one in tiny_corpus.test]
    with denn.refit(model, valid=valid, force=True) as after:
        assert "sailing" not in after.labels
        assert [one.id for one in Kept.load(model / after.card.validation).documents][:2] == ["valid-1", "valid-2"]


def test_validation_documents_without_ids_are_kept_under_new_ones(tiny_corpus, tiny_settings, tmp_path):
    train = [replace(tiny_corpus.train[0], id="valid-3"), *tiny_corpus.train[1:]]
    valid = [replace(one, id="valid-2" if number == 5 else None) for number, one in enumerate(tiny_corpus.valid)]
    settings = {**tiny_settings, "epochs": 1, "allow_poor": True}
    denn.train(denn.Corpus(train=train, valid=valid), out=tmp_path / "model", **settings).close()
    kept = [one.id for one in Kept.load(tmp_path / "model" / "validation").documents]
    assert kept[:7] == ["valid-1", "valid-4", "valid-5", "valid-6", "valid-7", "valid-2", "valid-8"]
    with denn.refit(tmp_path / "model", force=True) as after:
        assert after.card.refitted["held_out"] == len(set(kept)) == 60


def test_texts_without_common_words_are_named_as_a_reason(model):
    with denn.load(model) as loaded:
        loaded.remove(loaded.store.ids())
        loaded.add([denn.Document(f"only{number}", ("music",), str(number)) for number in range(30)])
    with pytest.raises(TrainingError, match=r"could not learn from .* documents: there is too little time or text"):
        denn.refit(model)


def test_vectors_of_another_width_are_refused(model):
    kept = Kept.load(model / "validation")
    shutil.rmtree(model / "validation")
    Kept(kept.documents, kept.vectors[:, :-1], kept.trained).save(model / "validation")
    bundle.write_card(model, bundle.read_card(model).model_copy(update={"digests": bundle.digests(model)}))
    with pytest.raises(BundleError, match="have 31 dimensions, those of the datastore have 32"):
        denn.refit(model)


def test_a_model_that_is_refitted_while_it_is_loaded(model, monkeypatch):
    """The card's files are deleted before they are read, so the card is read again."""
    reads, read = [], bundle.read

    def slow(folder):
        found = read(folder)
        reads.append(folder)
        if len(reads) == 1:
            denn.refit(model, force=True).close()
        return found

    monkeypatch.setattr("denn.loading.read", slow)
    with denn.load(model) as loaded:
        assert loaded.card.learnt == "learnt-1"

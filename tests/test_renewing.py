"""Renewing: a model in memory is updated to its refit, and keeps its encoder and datastore."""

import json
import shutil
from pathlib import Path

import pytest

import denn
from denn.errors import BundleError
from denn.model import Model
from denn.renewing import renew

NEW = "chess: opening"
TEXTS = ["gambit bishop knight rook", "violin chord and a drum", "goal match the team"]


@pytest.fixture
def folder(tiny_model, tmp_path) -> Path:
    """A copy of the tiny model that was taught a label."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    later = [denn.Document(f"gambit bishop knight rook pawn {n}", (NEW,), f"later-{n}") for n in range(20)]
    with denn.load(folder) as model:
        model.add(later)
    return folder


def rewrite(folder: Path, **facts: object) -> None:
    """Change bundle.json."""
    card = json.loads((folder / "bundle.json").read_text(encoding="utf-8"))
    (folder / "bundle.json").write_text(json.dumps(card | facts), encoding="utf-8")


def test_a_renewed_model_answers_as_one_that_is_loaded(folder):
    with denn.load(folder) as old:
        before = old.predict(TEXTS)
        denn.refit(folder).close()
        new = renew(old)
        assert isinstance(new, Model) and NEW in new.labels and NEW not in old.labels
        assert new.method.network.encoder is old.method.network.encoder
        assert new.store is old.store
        with denn.load(folder) as loaded:
            assert new.predict(TEXTS) == loaded.predict(TEXTS) != before
            assert new.card == loaded.card
        assert old.predict(TEXTS) == before  # both can be used
        old.retire()
        new.add([denn.Document("gambit and rook", (NEW,), "latest")])
        assert "latest" in old.store.ids()
        assert renew(new) is None


def test_renewals_follow_each_other(folder):
    with denn.load(folder) as model:
        current = model
        for number in (1, 2, 3):
            denn.refit(folder, force=True).close()
            current = renew(current)
            assert current.card.learnt == f"learnt-{number}"
        with denn.load(folder) as loaded:
            assert current.predict(TEXTS) == loaded.predict(TEXTS)


def test_without_a_refit_there_is_nothing_to_renew(folder):
    with denn.load(folder) as model:
        assert renew(model) is None
        model.forget("valid-1")  # writes bundle.json, and learns nothing
        assert renew(model) is None


def test_another_model_in_the_folder_is_refused(folder):
    with denn.load(folder) as model:
        rewrite(folder, created="2020-02-02T00:00:00+00:00")
        with pytest.raises(BundleError, match="now contains another model, trained at 2020-02-02"):
            renew(model)


def test_damage_is_found(folder):
    with denn.load(folder) as model:
        denn.refit(folder).close()
        head = folder / "learnt-1" / "head.safetensors"
        good = head.read_bytes()
        head.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with pytest.raises(BundleError, match="has changed since it was written"):
            renew(model)
        head.write_bytes(good)
        assert renew(model) is not None


def test_a_refit_during_a_renewal(folder, monkeypatch):
    """The card's files are deleted before they are read, so the card is read again."""
    from denn import bundle

    with denn.load(folder) as model:
        denn.refit(folder).close()
        reads, read = [], bundle.read

        def slow(path, known=None):
            found = read(path, known)
            reads.append(path)
            if len(reads) == 1:
                denn.refit(folder, force=True).close()
            return found

        monkeypatch.setattr("denn.renewing.read", slow)
        assert renew(model).card.learnt == "learnt-2"

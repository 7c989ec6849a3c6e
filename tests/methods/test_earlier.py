"""A model in the bundle format before witnesses: it loads unchanged and gives the same scores."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import denn

pytestmark = pytest.mark.slow
EARLIER = Path(__file__).parent / "earlier"  # trained and scored by denn 0.1.0 with bundle format 2
THEN = json.loads((EARLIER / "scores.json").read_text(encoding="utf-8"))


@pytest.fixture
def model(tmp_path):
    shutil.copytree(EARLIER / "model", tmp_path / "model")
    with denn.load(tmp_path / "model") as loaded:
        yield loaded


def test_the_papers_system_gives_the_scores_that_it_gave_before(model):
    scores = model.scores(THEN["texts"])
    assert list(scores.names) == THEN["names"]
    found = {"final": scores.final, "confidence": scores.confidence, **scores.parts, **scores.alternatives}
    for name in ("final", "confidence", "classifier", "neighbours", "average"):
        torch.testing.assert_close(found[name], torch.tensor(THEN[name]), atol=1e-6, rtol=0)


def test_without_stored_documents_the_average_is_the_classifier(model):
    """Earlier versions counted missing neighbours as half a no."""
    model.remove(model.store.ids())
    scores = model.scores(THEN["texts"])
    torch.testing.assert_close(scores.alternatives["average"], scores.parts["classifier"])


def test_it_gives_the_same_labels(model):
    assert [list(one.labels) for one in model.predict(THEN["texts"])] == THEN["labels"]


def test_it_hears_the_two_witnesses_of_the_paper(model):
    assert model.card.parameters["witnesses"] == ("classifier", "neighbours")
    (one,) = model.predict(THEN["texts"][:1])
    assert all(set(heard) == {"classifier", "neighbours"} for heard in one.parts.values())


def test_it_says_how_to_get_more(tmp_path, caplog):
    shutil.copytree(EARLIER / "model", tmp_path / "model")
    with caplog.at_level("INFO", "denn"):
        denn.load(tmp_path / "model").close()
    assert "train again" in caplog.text


def test_it_can_be_refitted(model, tmp_path, tiny_corpus):
    model.add([denn.Document(f"zeppelin over the {n}", ("airships",), f"new-{n}") for n in range(20)])
    with denn.refit(tmp_path / "model", valid=tiny_corpus.valid, force=True) as refitted:
        assert refitted.card.format == 4
        (one,) = refitted.predict(["zeppelin over the sea"])
        assert set(one.parts["airships"]) == {"classifier", "neighbours"}


def test_it_learns_documents_and_labels_as_before(model):
    model.add([denn.Document("zeppelin over the stadium", ("airships",), "new")])
    (one,) = model.predict(["zeppelin over the stadium"])
    assert one.labels[0] == "airships"
    assert set(one.parts["airships"]) == {"neighbours"}

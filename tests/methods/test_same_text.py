"""A stored text that is asked for again: what counts as the same, and that its labels are the answer."""

import shutil
from dataclasses import replace

import pytest
import torch

import denn
from denn.methods.same_text import is_nearly_same, is_typo, words_of
from denn.types import Document, Where

STORED = "The referee stopped the match after the goal, because a dog had run across the field of the stadium."


def is_same(text, stored=STORED):
    own, other = words_of(text), words_of(stored)
    return own == other or is_nearly_same(own, other)


@pytest.mark.parametrize(
    "text",
    [
        STORED,
        STORED.upper(),
        "\n".join(STORED.split()),
        STORED.replace("because", "be-\n  cause"),
        STORED.replace("stopped", "stoped"),
        STORED.replace("across", "acorss"),
        STORED.replace("the field", "thefield"),
        STORED.replace("stadium", "sta dium"),
        STORED[:70],
        STORED[:60].replace("match", "mach"),
        STORED + " Late.",
    ],
)
def test_writing_makes_no_difference(text):
    assert is_same(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The referee",
        STORED[:40],
        STORED.replace("dog", "cat"),
        STORED.replace("referee", "audience"),
        STORED.replace("the goal", "the second goal"),
        STORED.replace("The", "Teh").replace("goal", "gaol").replace("field", "feild"),
        f"{STORED} The game went on an hour later and ended without another goal for either side.",
        " ".join(reversed(STORED.split())),
    ],
)
def test_other_words_make_another_text(text):
    assert not is_same(text)


@pytest.mark.parametrize("text", ["Python 3 bindings of the library", "fonts of the city of ar"])
def test_numbers_and_short_words_are_no_typos(text):
    changed = text.replace("3", "2").replace(" ar", " as")
    assert not is_same(changed, text)


def test_texts_of_no_words_are_not_the_same():
    assert not is_nearly_same(words_of("…"), words_of("!"))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("match", "mtach", True), ("match", "natch", True), ("match", "matchh", True), ("match", "watched", False),
     ("match", "mcath", False), ("v2ab", "v3ab", False), ("en", "es", False), ("", "a", False)],
)  # fmt: skip
def test_a_typo_is_one_letter(one, other, expected):
    assert is_typo(one, other) is expected and is_typo(other, one) is expected


@pytest.fixture
def model(tiny_model, tmp_path):
    with denn.load(shutil.copytree(tiny_model, tmp_path / "model")) as loaded:
        yield loaded


def predicted(model, text):
    [prediction] = model.predict([text])
    return prediction


def test_what_was_taught_is_the_answer(model):
    """The labels contradict all that the words say, none is left over, and one is new."""
    text = "goal match team referee stadium coach in the old stadium with the new team"
    before = predicted(model, text)
    assert before.same_text is None and before.labels != ("music",)
    model.add([Document(text, ("music", "brand new"), "taught")])
    after = predicted(model, text.replace("referee", "refree"))
    assert set(after.labels) == {"music", "brand new"} and after.same_text == "taught"
    model.add([Document(text, (), "nothing")])
    assert predicted(model, text).labels == () and predicted(model, text).same_text == "nothing"
    model.remove(["taught", "nothing"])
    assert predicted(model, text) == before


def test_a_document_is_not_its_own_answer(model):
    """Where stored documents are evaluated, their own labels are left out."""
    text = "goal match team referee stadium coach in the old stadium with the new team"
    model.add([Document(text, ("music",), "own")])
    assert model.scores([text]).same_text == ["own"]
    assert model.scores([text], ["own"]).same_text == [None]


def test_scores_keep_their_order_below_the_decision(model):
    text = "goal match team referee stadium coach in the old stadium with the new team"
    before = model.scores([text]).final[0]
    model.add([Document(text, ("music",), "own")])
    after = model.scores([text]).final[0]
    music = model.scores([text]).names.index("music")
    others = [column for column in range(len(before)) if column != music]
    assert float(after[music]) >= 0.999 and float(after[others].max()) <= 0.001
    assert torch.equal(after[others].argsort(), model.method.scores([text], ["own"]).final[0][others].argsort())


def test_the_paper_s_own_system_has_no_memory_for_texts(model):
    text = "goal match team referee stadium coach in the old stadium with the new team"
    model.add([Document(text, ("music",), "own")])
    model.method.parameters = replace(model.method.parameters, combination="confidence")
    assert not model.method.scores([text]).same_text


def test_a_rejection_weighs_more_than_absence(model):
    """Of a text that is merely similar: the label falls where a neighbour lacks it, and further where it rejects it."""
    *words, _ = model.store.get([model.store.select(Where(labels=("sport",)))[0]])[0].text.split()
    text, similar = " ".join([*words, "violin"]), " ".join([*words, "truffle"])
    before = float(model.scores([text]).final[0, model.labels.names.index("sport")])
    model.add([Document(similar, (), "taught")])
    lacking = model.scores([text])
    model.add([Document(similar, (), "taught", ("sport",))])
    rejecting = model.scores([text])
    sport = model.labels.names.index("sport")
    assert lacking.same_text == rejecting.same_text == [None]
    assert rejecting.parts["neighbours"][0, sport] < lacking.parts["neighbours"][0, sport]
    assert float(rejecting.final[0, sport]) < float(lacking.final[0, sport]) <= before

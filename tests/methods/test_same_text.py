"""Predicting a stored text: what counts as the same text, and that its labels are returned."""

import shutil
import time
from dataclasses import replace

import pytest
import torch

import denn
from denn.analysis.sweeps import Searched
from denn.methods.same_text import Compared, Likeness, Stored, decide_by_same_text, is_typo, likeness_of, words_of
from denn.prediction_types import Scores
from denn.stores.embedded.temporary import MemoryStore
from denn.types import Document, Where

STORED = (
    "The referee stopped the match after the goal, because a dog had run across the field of the stadium, and nobody "
    "knew whose it was."
)
KNOWN = {*words_of(STORED), "now", "not", "cat"}


def likeness(text, stored=STORED):
    return likeness_of(Compared(text), Stored(Document(stored)), KNOWN.__contains__)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STORED, Likeness.SAME),
        ("\n\n".join(STORED.split()), Likeness.SAME),
        (STORED.upper(), Likeness.SAME_WORDS),
        (STORED.replace("because", "be-\n  cause"), Likeness.SAME_WORDS),
        (STORED.replace(",", " -"), Likeness.SAME_WORDS),
        (STORED.replace("stopped", "stoped"), Likeness.NEARLY_SAME),
        (STORED.replace("across", "acorss"), Likeness.NEARLY_SAME),
        (STORED.replace("The", "Teh"), Likeness.NEARLY_SAME),
        (STORED.replace("the field", "thefield"), Likeness.NEARLY_SAME),
        (STORED.replace("stadium", "sta dium"), Likeness.NEARLY_SAME),
        (STORED[:80], Likeness.NEARLY_SAME),
        (STORED[:70], Likeness.NEARLY_SAME),
        (STORED[:70].replace("match", "mach"), Likeness.NEARLY_SAME),
    ],
)
def test_writing_makes_no_difference(text, expected):
    assert likeness(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The referee",
        STORED[:40],
        STORED.replace("dog", "cat"),
        STORED.replace("dog", "dogma"),
        STORED.replace("referee", "audience"),
        STORED.replace("the goal", "the second goal"),
        STORED.replace("The", "Teh").replace("goal", "gaol"),
        STORED[:70].replace("match", "mach").replace("because", "becuase"),
        f"{STORED} The game went on an hour later and ended without another goal for either side.",
        " ".join(reversed(STORED.split())),
    ],
)
def test_other_words_make_another_text(text):
    assert likeness(text) == Likeness.OTHER


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("Python 3 bindings of the library", "Python 2 bindings of the library"),
        ("A compiler for the language C#", "A compiler for the language C++"),
        ("We expect a profit of -5 % in May", "We expect a profit of 5 % in May"),
        ("I am here all the time 😀", "I am here all the time 😡"),
        (f"{STORED} It was not safe.", f"{STORED} It was now safe."),
        (f"{STORED} Ask Meiera.", f"{STORED} Ask Meierb."),
        (f"{STORED} Ask Mueller.", f"{STORED} Ask Muellers."),
        (f"{STORED} Buy GLDC.", f"{STORED} Buy GDC."),
        ("Nobody knew whose stadium it was after the", "Nobody knew whose stadum it was after the"),
        ("Please cancel my order number 12", "Please cancel my order number 1"),
        ("Release notes of the kernel 2.6.32", "Release notes of the kernel 2"),
        ("A driver for the older networks", "A driver for the older net"),
        (f"{STORED} It shows asymmetric forms.", f"{STORED} It shows a symmetric forms."),
        (".NET library", "net library"),
        ("It is cold (-5)", "It is cold (5)"),
        ("version 1.5", "version 1 5"),
        ("they won 3:2", "they won 3-2"),
    ],
)
def test_numbers_signs_names_and_other_words_are_no_typos(stored, text):
    assert likeness(text, stored) == Likeness.OTHER


@pytest.mark.parametrize("name", ["Rbubermaid", "Ruubbermaid", "Rubermaid"])
def test_a_slip_in_a_name_is_a_typo(name):
    assert likeness(f"{STORED} Ask {name}.", f"{STORED} Ask Rubbermaid.") == Likeness.NEARLY_SAME


def test_texts_of_no_words_are_not_the_same():
    assert likeness("…", "!") == likeness(" ", " ") == Likeness.OTHER


@pytest.mark.parametrize("blank", ["\n", " ", "\r", "- \n"])
def test_no_text_takes_long(blank):
    """A hundred thousand characters, the limit of the service, on which a regular expression could backtrack."""
    begun = time.process_time()
    likeness(f"{STORED} a-{blank * (100_000 // len(blank))}!", STORED + "x" * 60_000)
    assert time.process_time() - begun < 1


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("match", "mtach", True), ("match", "natch", True), ("match", "matchh", True), ("match", "watched", False),
     ("match", "mcath", False), ("v2ab", "v3ab", False), ("now", "not", False),
     ("cayuga", "cyauga", True), ("cayuga", "caygua", True), ("cayuga", "bayuga", False), ("cayu", "cyau", False)],
)  # fmt: skip
def test_a_typo_is_one_letter(one, other, expected):
    for first, second in ((one, other), (other, one)):
        assert is_typo(first, second, KNOWN.__contains__) is expected


def test_the_nearest_texts_are_compared_though_a_typo_moved_the_embedding():
    """The text is among the three nearest documents or very close."""
    for cosine, others, expected in ((0.6, 2, "own"), (0.6, 3, None), (0.9, 3, "own"), (0.4, 0, None)):
        store = MemoryStore.create("memory:", 2)
        near = [Document(f"Another text, number {number}.", (), f"other{number}") for number in range(others)]
        vectors = [[one, (1 - one**2) ** 0.5] for one in (*[0.95] * others, cosine)]
        store.add([*near, Document(STORED, ("dogs",), "own")], torch.tensor(vectors))
        scores = Scores(torch.zeros(1, 1), store.labels, neighbours=store.search(torch.tensor([[1.0, 0.0]]), 30))
        decided = decide_by_same_text(scores, [STORED.replace("across", "acorss")], store, KNOWN.__contains__)
        assert (decided.same_text or [None])[0] == expected
        assert bool(decided.final[0, 0] > 0.99) == (expected is not None)


@pytest.fixture
def model(tiny_model, tmp_path):
    with denn.load(shutil.copytree(tiny_model, tmp_path / "model")) as loaded:
        yield loaded


def predicted(model, text):
    [prediction] = model.predict([text])
    return prediction


def test_what_was_taught_is_the_answer(model):
    """The labels contradict the words, none is missing, and one is new."""
    text = "goal match team referee stadium coach in the old stadium with the new team"
    before = predicted(model, text)
    assert before.same_text is None and before.labels != ("music",)
    model.add([Document(text, ("music", "brand new"), "taught")])
    after = predicted(model, text.upper())
    assert set(after.labels) == {"music", "brand new"} and after.same_text == "taught"
    model.add([Document(text, (), "nothing")])
    assert predicted(model, text).labels == () and predicted(model, text).same_text == "nothing"
    model.remove(["taught", "nothing"])
    assert predicted(model, text) == before


def test_a_document_is_not_its_own_answer(model):
    """When stored documents are evaluated, their own labels are excluded."""
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
    """For a merely similar text, the score falls if a neighbour lacks the label, and further if it rejects it."""
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


def test_of_equal_texts_the_last_that_was_changed_decides(model):
    text = "goal match team referee stadium coach in the old stadium with the new team"
    model.add([Document(text, ("music",), f"copy{number}") for number in range(4)])
    model.store.relabel("copy1", ["sport"])
    assert predicted(model, text).labels == ("sport",)
    model.add([Document(text.upper(), ("haute cuisine",), "loud")])
    assert predicted(model, text).same_text == "copy1" and predicted(model, text.upper()).same_text == "loud"


def test_a_report_and_an_evaluation_agree_on_stored_texts(model):
    text = "goal match team referee stadium coach in the old stadium with the new team"
    model.add([Document(text, ("music",), "own")])
    asked = Document(text, ("music",))
    searched = Searched(model.method, [asked], model.embed([text]))
    assert torch.equal(searched.scores.final, model.scores([text]).final)


def test_it_can_be_turned_off(model):
    text = "goal match team referee stadium coach in the old stadium with the new team"
    model.add([Document(text, ("music",), "own")])
    model.method.parameters = replace(model.method.parameters, remember=False)
    assert not model.method.scores([text]).same_text


def test_a_long_text_that_differs_early_is_told_apart_without_reading_all_of_it():
    long = " ".join(f"paragraph {place} of the regulation" for place in range(5000))
    asked, stored = Compared(f"No 17 {long}"), Stored(Document(f"No 18 {long}"))
    assert likeness_of(asked, stored, KNOWN.__contains__) == Likeness.OTHER
    assert "words" not in vars(asked) and "words" not in vars(stored)


def test_other_line_breaks_behind_hyphens_are_the_same_text():
    stored = "fonts in JIS- X0201 and more, " * 30
    assert likeness(stored.replace(" ", "\n"), stored) == Likeness.SAME

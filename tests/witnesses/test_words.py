"""The word witness: what it learns, its scores and supporting words, calibration, time limits and files."""

import json
import random
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from denn.errors import BundleError, DataError, TrainingError
from denn.types import Document, LabelSpace
from denn.witnesses.sparse_linear import Learner
from denn.witnesses.words import NUMBERS, TERMS, Words

TOPICS = {
    "sport": "goal match team league player referee".split(),
    "food": "bread soup kitchen recipe butter baking".split(),
    "law": "court judge appeal statute lawyer verdict".split(),
}
FILLER = "the a of and very then house street morning paper".split()


class Seen:
    def __init__(self):
        self.notes, self.stages = [], []

    def start(self, stage):
        self.stages.append(stage.what)

    def advance(self, done, **values):
        pass

    def note(self, message):
        self.notes.append(message)


def documents(count, seed):
    drawn = random.Random(seed)
    found = []
    for _ in range(count):
        labels = drawn.sample(list(TOPICS), drawn.choice((1, 1, 2)))
        words = [drawn.choice(TOPICS[label]) for label in labels for _ in range(3)] + drawn.choices(FILLER, k=8)
        found.append(Document(" ".join(drawn.sample(words, len(words))), tuple(labels)))
    return found


TRAIN, TEST = documents(300, 1), documents(100, 2)
LABELS = LabelSpace(("sport", "food", "law", "never"))


def trained_on(labels):
    """The part of a method that a witness needs when it is loaded."""
    return SimpleNamespace(names=tuple(map(str, range(labels))))


def fitted(train=TRAIN, left=lambda: None, seen=None, labels=LABELS, **options):
    return Words.learn(train, labels, seed=0, progress=seen or Seen(), seconds_left=left, **options)


@pytest.fixture(scope="module")
def words():
    return fitted()


def texts(part):
    return [document.text for document in part]


def test_it_finds_the_labels_of_new_texts(words):
    scores = words.scores(texts(TEST))
    assert scores.dtype == torch.float32 and scores.shape == (100, 4)
    assert bool(((scores >= 0) & (scores <= 1)).all())
    assert ((scores > 0.5) == LABELS.matrix(TEST)).float().mean() > 0.97
    assert float(scores[:, 3].max()) < 0.05  # no document has it


def test_scores_mean_what_they_say():
    held = noisy(TEST, 4)
    scores, gold = fitted(noisy(TRAIN, 5)).scores(texts(held))[:, :3], LABELS.matrix(held)[:, :3].float()
    assert abs(float(scores.mean() - gold.mean())) < 0.05
    sure = scores > 0.5
    assert abs(float(gold[sure].mean() - scores[sure].mean())) < 0.1
    assert float(scores.max()) < 0.97


def test_the_words_that_speak_for_a_label_are_named_with_their_part(words):
    text = "the goal of the court"
    sport, law = words.support([text], [[0, 2]])[0]
    assert sport[0][0] == "goal" and law[0][0] == "court"
    for found in (sport, law):
        parts = [part for _, part in found]
        assert parts == sorted(parts, reverse=True) and min(parts) > 0
    assert words.support([text, ""], [[0], [0, 1]], most=1) == [[sport[:1]], [[], []]]


def test_the_parts_of_all_words_add_up_to_the_decision(words):
    for text in texts(TEST[:10]):
        row = words.ngrams.rows(_tokens(text))
        decision = (row @ words.weights).toarray()[0]
        negated = Words(words.ngrams, -words.weights, words.bias, words.calibration)
        for label in range(3):
            gains = sum(part for _, part in words.support([text], [[label]], most=999)[0][0])
            losses = sum(part for _, part in negated.support([text], [[label]], most=999)[0][0])
            assert gains - losses == pytest.approx(float(decision[label]), abs=1e-5)


def test_an_unknown_word_counts_by_its_beginning(words):
    [[[(name, _), *_]]] = words.support(["baker goalless"], [[0]])
    assert name == "goalless"


def test_pairs_are_named_as_pairs():
    train = [Document(f"new york {n}", ("city",)) for n in "abcdefgh"]
    train += [Document(text, ()) for n in "abcdefgh" for text in (f"new {n}", f"york {n}", f"york or new {n}")]
    found = fitted(train, labels=LabelSpace(("city",))).support(["in new york today"], [[0]])
    assert found[0][0][0][0] == "new york"


def noisy(part, seed):
    """Give a third of the labels to another topic."""
    drawn, other = random.Random(seed), dict(zip(TOPICS, ("food", "law", "sport"), strict=True))
    return [Document(d.text, tuple(other[x] if drawn.random() < 1 / 3 else x for x in d.labels)) for d in part]


def test_the_cost_is_chosen_by_held_out_documents():
    """If labels are randomly wrong, a high cost memorises them."""
    seen, train = Seen(), noisy(documents(600, 3), 3)
    found = fitted(train, seen=seen).scores(texts(TEST))
    assert "choosing the cost of words" in seen.stages
    assert torch.equal(found, fitted(train, cost=0.1).scores(texts(TEST)))
    assert not torch.equal(found, fitted(train, cost=1.0).scores(texts(TEST)))


def test_costs_are_tried_on_some_of_many_documents_and_all_are_learnt(monkeypatch):
    read, learn = [], Learner.learn

    def spy(self, labels, report):
        read.append((self.cost, self.rows.shape[0]))
        return learn(self, labels, report)

    monkeypatch.setattr(Learner, "learn", spy)
    monkeypatch.setattr(sys.modules[Words.__module__], "TRIED", 100)
    found = fitted()
    *tried, last = read
    assert {rows for _, rows in tried} == {100} and last[1] == len(TRAIN)
    assert [cost for cost, _ in tried] in ([1.0, 0.3], [1.0, 0.3, 0.1])  # until a lower one is worse
    assert (found.scores(texts(TEST)) > 0.5).any()


def test_one_seed_gives_one_model(words):
    assert torch.equal(fitted().scores(texts(TEST)), words.scores(texts(TEST)))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.text(alphabet="goalmtch bredé電-", max_size=60), max_size=5))
def test_what_is_saved_scores_the_same(words, tmp_path_factory, drawn):
    folder = tmp_path_factory.mktemp("saved") / "words"
    words.save(folder)
    again = Words.load(folder, trained_on(len(LABELS)))
    some = [*drawn, *texts(TEST[:3])]
    assert torch.equal(again.scores(some), words.scores(some))
    asked = [[0, 1, 2]] * len(some)
    assert again.support(some, asked) == words.support(some, asked)
    assert words.scores([]).shape == (0, len(LABELS))


def test_few_documents_and_few_words_still_give_scores():
    few = fitted([Document("goal goal", ("sport",)), Document("goal bread", ("food",))])
    assert bool(few.scores(["goal", "bread", ""]).isfinite().all())


def test_documents_without_a_common_word_are_refused():
    with pytest.raises(DataError, match="No word occurs in 2 of the 2 training documents"):
        fitted([Document("one", ("sport",)), Document("two", ("food",))])


def test_no_time_at_all_is_refused():
    with pytest.raises(TrainingError, match="Time ran out"):
        fitted(left=lambda: 0.0)


@pytest.mark.parametrize(("looks", "stage"), [(1, "reading words"), (12, "weighing words"), (22, "weighing words")])
def test_the_clock_is_read_before_anything_is_learnt(monkeypatch, looks, stage):
    monkeypatch.setattr("denn.witnesses.ngrams.CHUNK", 30)  # ten passes over 300 documents
    seen, left = Seen(), iter([1.0] * looks)
    with pytest.raises(TrainingError, match="Time ran out"):
        fitted(left=lambda: next(left, 0.0), seen=seen)
    assert seen.stages[-1] == stage


def test_the_choice_of_the_cost_leaves_time_to_learn():
    left = iter(range(36, 0, -1))  # looks: each of three costs takes nine, and all labels take twelve
    assert fitted(left=lambda: float(next(left, 0))).is_complete


def test_in_a_short_time_words_alone_are_terms(monkeypatch):
    monkeypatch.setattr("denn.witnesses.words.EVERY_KIND_SECONDS", 1.0)  # a token, of which there are thousands
    short, long = fitted(left=lambda: 100.0), fitted(left=lambda: 1e6)
    assert (len(short.ngrams.endings), len(short.ngrams.pairs)) == (0, 0) and short.is_complete
    assert len(long.ngrams.endings) and len(long.ngrams.pairs)


def cut_short(seen):
    """Learn with time for one label."""
    calls = iter(range(10**6))

    def left():
        enough = seen.stages[-1] != "learning the words of labels" or next(calls) < 1
        return 1.0 if enough else 0.0

    return fitted(left=left, seen=seen)


def test_labels_without_time_are_unknown_and_that_is_said(tmp_path):
    seen = Seen()
    model = cut_short(seen)
    scores = model.scores(texts(TEST))
    assert any("no time to learn the words of the rarest labels, 3 of 4" in note for note in seen.notes)
    assert scores.isnan().all(0).tolist() == scores.isnan().any(0).tolist() == (~found_by(model)).tolist()
    assert int(found_by(model).sum()) == 1 and float(scores.nan_to_num(0).max()) > 0.5
    model.save(tmp_path / "words")
    again = Words.load(tmp_path / "words", trained_on(len(LABELS)))
    torch.testing.assert_close(again.scores(texts(TEST)), scores, equal_nan=True, atol=0, rtol=0)
    assert again.support(["goal court bread"], [[0, 1, 2, 3]]) == model.support(["goal court bread"], [[0, 1, 2, 3]])


def found_by(model):
    """Return which labels have weights."""
    return torch.from_numpy(model.weights.getnnz(axis=0) > 0)


def _tokens(text):
    from denn.witnesses.ngrams import WordTokens

    return WordTokens.of([text])


def change(folder, **tensors):
    save_file(load_file(folder / NUMBERS) | tensors, folder / NUMBERS)


DAMAGE = {
    "a pair of unknown words": lambda f, a: change(f, pairs=a["pairs"] + 10**9),
    "pairs out of order": lambda f, a: change(f, pairs=a["pairs"].flip(0).contiguous()),
    "a label that is not there": lambda f, a: change(f, labels=a["labels"] + 4),
    "a negative label": lambda f, a: change(f, labels=a["labels"] - 5),
    "ends that jump": lambda f, a: change(f, ends=a["ends"] * 7),
    "ends that go back": lambda f, a: change(f, ends=a["ends"].flip(0).contiguous()),
    "values that are missing": lambda f, a: change(f, values=a["values"][:-1].contiguous()),
    "a value that is not finite": lambda f, a: change(f, bias=a["bias"] * torch.nan),
    "weights of 0": lambda f, a: change(f, idf=a["idf"] * 0),
    "a huge weight": lambda f, a: change(f, idf=a["idf"] * 1e30),
    "no word on what was learnt": lambda f, a: save_file({k: v for k, v in a.items() if k != "learnt"}, f / NUMBERS),
    "a huge slope": lambda f, a: change(f, curves=a["curves"] * 1e30),
    "weights of another type": lambda f, a: change(f, values=a["values"].double()),
    "weights of another rank": lambda f, a: change(f, idf=a["idf"][None].contiguous()),
    "no dimension": lambda f, a: change(f, pairs=torch.tensor(1)),
    "a tensor too many": lambda f, a: change(f, more=a["bias"].clone()),
    "terms of another number": lambda f, a: (f / TERMS).write_text("goal"),
    "terms in disorder": lambda f, a: (f / TERMS).write_text("\n".join((f / TERMS).read_text().split("\n")[::-1])),
    "terms not in UTF-8": lambda f, a: (f / TERMS).write_bytes(b"\xff"),
    "no terms": lambda f, a: (f / TERMS).unlink(),
    "no numbers": lambda f, a: (f / NUMBERS).unlink(),
    "half a file": lambda f, a: (f / NUMBERS).write_bytes((f / NUMBERS).read_bytes()[:-100]),
    "not a file": lambda f, a: (f / NUMBERS).write_bytes(b"x" * 40),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_sentence(words, tmp_path, damage):
    words.save(tmp_path / "words")
    DAMAGE[damage](tmp_path / "words", load_file(tmp_path / "words" / NUMBERS))
    with pytest.raises(BundleError, match="Restore the folder"):
        Words.load(tmp_path / "words", trained_on(len(LABELS)))


def test_another_number_of_labels_is_refused(words, tmp_path):
    words.save(tmp_path / "words")
    with pytest.raises(BundleError, match="expected 5 of float32"):
        Words.load(tmp_path / "words", trained_on(5))


@pytest.mark.slow
def test_the_module_does_not_import_scikit_learn_until_it_is_used():
    code = "import sys, json, denn.witnesses.words; print(json.dumps([*{'sklearn', 'scipy'} & {*sys.modules}]))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(said) == []


def test_texts_without_a_known_term_have_no_supporting_words(words):
    assert words.support(["", "q" * 30], [[0], [0, 1]]) == [[[]], [[], []]]

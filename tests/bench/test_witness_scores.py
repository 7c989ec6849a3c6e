"""Files of witness scores: a round trip, and one sentence for each invalid file."""

import numpy as np
import pytest
import torch

from denn.errors import DataError
from denn.prediction_types import Context
from denn_bench.witness_scores import HIGHEST, WitnessScores

TEXTS, LABELS = 12, 400


def make(labels=LABELS, seed=0, **parts):
    draw = torch.Generator().manual_seed(seed)
    classifier = torch.rand(TEXTS, labels, generator=draw)
    votes = torch.where(torch.rand(TEXTS, labels, generator=draw) < 0.1, classifier.roll(1, 0), 0.0)
    votes[0], votes[1] = 0.0, 0.0
    votes[1, 2] = 1.0
    gold = torch.rand(TEXTS, labels, generator=draw) < 0.02
    similarity = torch.rand(TEXTS, 5, generator=draw).sort(descending=True).values
    similarity[0] = -torch.inf
    counts = torch.randint(0, 50, (labels,), generator=draw)
    return WitnessScores(
        "tiny", 3, parts or {"classifier": classifier, "neighbours": votes}, gold, Context(counts, similarity, 0.6, 0.1)
    )


@pytest.fixture
def arrays(tmp_path):
    make().save(tmp_path / "valid.npz")
    with np.load(tmp_path / "valid.npz") as file:
        return {key: file[key] for key in file.files}


def test_what_is_written_is_read_again(tmp_path):
    written = make()
    written.save(tmp_path / "run" / "valid.npz")
    read = WitnessScores.load(tmp_path / "run" / "valid.npz")
    assert (read.corpus, read.seed, list(read.parts)) == ("tiny", 3, ["classifier", "neighbours"])
    assert read.has_same_texts(written) and not read.has_same_texts(make(seed=1))
    assert (read.context.gamma, read.context.temperature) == (0.6, 0.1)
    torch.testing.assert_close(read.context.similarity, written.context.similarity, atol=1e-3, rtol=0)
    votes = written.parts["neighbours"]
    torch.testing.assert_close(read.parts["neighbours"], votes, atol=1e-3, rtol=0)
    assert torch.equal(read.parts["neighbours"] == 0, votes == 0)  # exactly: no vote is no vote
    assert read.parts["neighbours"][1, 2] == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["valid.npz"]


def test_labels_that_are_not_kept_get_the_lowest_score_that_is(tmp_path):
    written = make()
    written.save(tmp_path / "valid.npz")
    read, all_of_it = WitnessScores.load(tmp_path / "valid.npz").parts["classifier"], written.parts["classifier"]
    lowest = all_of_it.topk(HIGHEST).values[:, -1:]
    torch.testing.assert_close(read, all_of_it.maximum(lowest), atol=1e-3, rtol=0)


def test_words_have_no_neighbours(tmp_path):
    words = WitnessScores("tiny", 0, {"words": torch.rand(4, 3)}, torch.eye(4, 3).bool(), Context(torch.arange(3)))
    words.save(tmp_path / "valid.npz")
    assert WitnessScores.load(tmp_path / "valid.npz").context.similarity is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": np.array(2)}, "its format is 2, expected 1"),
        ({"gold": None}, "it has no 'gold'"),
        ({"classifier.label": None}, "it has no 'classifier.label'"),
        ({"classifier.logit": None, "neighbours.logit": None}, "it has no witness"),
        ({"gold": np.array([[0, LABELS]])}, "'gold' has an index out of range"),
        ({"gold": np.array([[-1, 0]])}, "'gold' has an index out of range"),
        ({"classifier.label": np.full((TEXTS, HIGHEST), LABELS)}, "'classifier.label' has an index"),
        ({"classifier.logit": np.full((TEXTS, HIGHEST), np.nan)}, "'classifier.logit' contains values that are not"),
        ({"similarity": np.zeros((TEXTS - 1, 5))}, "expected 'f' of 12×any"),
        ({"label_counts": np.zeros(LABELS)}, "'label_counts' is float64 of shape .400,., expected 'i' of any"),
        ({"seed": np.array("x")}, "'seed' is <U1"),
        ({"corpus": np.array([{}])}, "[Oo]bject array"),  # would be a pickle
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(arrays, tmp_path, change, reason):
    changed = {key: value for key, value in (arrays | change).items() if value is not None}
    np.savez(tmp_path / "bad.npz", **changed)
    with pytest.raises(DataError, match=rf"bad\.npz is not a file of witness scores: .*{reason}.*Create it again"):
        WitnessScores.load(tmp_path / "bad.npz")


def test_what_is_no_archive_is_refused(arrays, tmp_path):
    path = tmp_path / "valid.npz"
    with pytest.raises(DataError, match=r"nowhere\.npz cannot be read: No such file"):
        WitnessScores.load(tmp_path / "nowhere.npz")
    content = path.read_bytes()
    for broken in (b"", b"text", content[: len(content) // 2], content[:100] + b"\xff" * 64 + content[164:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"valid\.npz is not a file of witness scores: "):
            WitnessScores.load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(DataError, match="it is not an npz archive"):
        WitnessScores.load(path)


def test_labels_that_a_witness_cannot_know_stay_unknown(tmp_path):
    words = torch.rand(4, 5)
    words[:, 2] = torch.nan
    WitnessScores("tiny", 0, {"words": words}, torch.eye(4, 5).bool(), Context(torch.arange(5))).save(
        tmp_path / "a.npz"
    )
    read = WitnessScores.load(tmp_path / "a.npz").parts["words"]
    torch.testing.assert_close(read, words, atol=1e-3, rtol=0, equal_nan=True)

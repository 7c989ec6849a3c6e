"""Variations of corpora: what they keep, the same for the same seed, and the figure of their runs."""

from collections import Counter
from dataclasses import replace

import pytest

import denn
from denn.errors import ConfigError, DataError
from denn_bench.peers.runs import Run, run_of
from denn_bench.peers.table import render
from denn_bench.peers.variations import parse, varied


def ids(documents):
    return {document.id for document in documents}


def test_fewer_documents_are_divided_like_a_users(tiny_corpus):
    found = varied(tiny_corpus, "documents=50", seed=1)
    assert (len(found.train), len(found.valid)) == (45, 5)
    assert ids(found.train) | ids(found.valid) <= ids(tiny_corpus.train) | ids(tiny_corpus.valid)
    assert found.test == tiny_corpus.test and found.labels == tiny_corpus.labels
    assert varied(tiny_corpus, "documents=50", seed=1) == found != varied(tiny_corpus, "documents=50", seed=2)
    assert len(varied(tiny_corpus, "documents=1000", seed=0).train) == 108  # all there are


def test_fewer_labels_are_the_most_frequent(tiny_corpus):
    found = varied(tiny_corpus, "labels=2", seed=0)
    counts = Counter(label for document in tiny_corpus.train for label in document.labels)
    assert set(found.labels) == {label for label, _ in counts.most_common(2)}
    assert {label for part in (found.train, found.valid, found.test) for it in part for label in it.labels} == set(
        found.labels
    )
    assert [it.text for it in found.train] == [it.text for it in tiny_corpus.train]


def test_shorter_texts(tiny_corpus):
    found = varied(tiny_corpus, "words=2", seed=0)
    for part in ("train", "valid", "test"):
        pairs = list(zip(getattr(found, part), getattr(tiny_corpus, part), strict=True))
        assert all(it.text.split() == whole.text.split()[:2] for it, whole in pairs)
        assert all(it.labels == whole.labels for it, whole in pairs)


def test_labels_are_flipped_except_those_of_the_test(tiny_corpus):
    documents = [denn.Document("a", ("sport", "music"), str(number)) for number in range(1000)]
    found = varied(replace(tiny_corpus, train=[*tiny_corpus.train, *documents]), "flipped=0.2", seed=0)
    pairs = list(zip(found.train, [*tiny_corpus.train, *documents], strict=True))
    assert all(len(it.labels) == len(whole.labels) for it, whole in pairs)
    kept = [label in it.labels for it, whole in pairs for label in whole.labels]
    assert 0.77 < sum(kept) / len(kept) < 0.83
    assert found.test == tiny_corpus.test and found.valid != tiny_corpus.valid
    everything = replace(tiny_corpus, train=[denn.Document("all", tuple(tiny_corpus.labels), "0")])
    assert varied(everything, "flipped=1", seed=0).train == everything.train  # there is no other label


def test_names_and_values():
    assert parse("documents=100,1000,100") == ["documents=100", "documents=1000"]
    assert parse("flipped=0.05") == ["flipped=0.05"]
    for text in ("documents", "documents=", "documents=0", "documents=1.5", "words=inf", "labels=few", "flipped=20"):
        with pytest.raises(ConfigError, match=r"Got '.*' for --vary, expected .* after"):
            parse(text)
    with pytest.raises(ConfigError, match=r"There is no variation 'document'\. Did you mean 'documents'"):
        parse("document=3")


def row_of(peer, variation, micro, minutes=1.0, seed=0, device="cpu", failure=None):
    return {
        "peer": peer, "corpus": "reuters21578", "minutes": minutes, "seed": seed, "device": device,
        "variation": variation, "machine": {"cpu": "any"}, "failure": failure, "micro_f1": micro, "macro_f1": micro / 2,
    }  # fmt: skip


@pytest.mark.slow
def test_the_figure_has_a_line_for_each_system(tmp_path):
    from denn_bench.figures import write
    from denn_bench.peers.curves import curves

    rows = [
        row_of("svm", "documents=100", 0.5),
        row_of("svm", "documents=100", 0.7, seed=1),
        row_of("svm", "documents=1000", 0.8),
        row_of("denn", "documents=100", 0.6),
        row_of("denn", "documents=100", 0.65, minutes=5.0),  # takes the place of the one before
        row_of("denn", "documents=100", 0.9, device="NVIDIA H200"),
        row_of("denn", "documents=1000", 0.0, failure="crashed"),
        row_of("denn", "flipped=0.1", 0.1),
    ]
    assert run_of(rows[0]) == Run("svm", "reuters21578", 1.0, 0, "cpu", "any", "documents=100")
    drawn = {}

    def draw():
        drawn["it"] = curves(rows, "documents")
        return drawn["it"]

    assert [path.name for path in write("by-documents", draw, tmp_path)] == [
        "by-documents.svg", "by-documents.png", "by-documents.csv",
    ]  # fmt: skip
    (micro, _) = drawn["it"].figure.axes
    lines = {line.get_label(): line[0].get_xydata().tolist() for line in micro.containers}
    assert lines == {
        "TF-IDF + linear SVM (scikit-learn)": [[100, pytest.approx(60)], [1000, 80]],
        "denn": [[100, 65]],
        "denn, GPU": [[100, 90]],
    }
    assert len(drawn["it"].rows) == 5
    with pytest.raises(DataError, match=r"no run with a variation of words\. Run `denn bench peers run --vary` first"):
        curves(rows, "words")
    with pytest.raises(DataError, match="There are no runs of peers"):  # the table is for whole corpora
        render(rows)

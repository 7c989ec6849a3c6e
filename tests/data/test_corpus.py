"""Corpora: splits, reports, ids, separators, and errors."""

import json
import logging

import pytest

from denn.data.corpus import read_corpus, read_documents, split_documents
from denn.errors import DataError
from denn.types import Document

PAIRS = [(f"text {number}", ["a", "b"] if number % 2 else ["a"]) for number in range(40)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_corpus_is_read_from_its_files(tmp_path):
    parts = [write(tmp_path / f"{part}.jsonl", [{"text": part, "labels": [part]}]) for part in ("train", "v", "t")]
    corpus = read_corpus(str(parts[0]), valid=parts[1], test=parts[2])
    assert corpus.train == [Document("train", ("train",), "train-1")]
    assert corpus.valid == [Document("v", ("v",), "valid-1")]
    assert corpus.test == [Document("t", ("t",), "test-1")]
    assert corpus.labels.names == ("train", "t", "v")
    assert corpus.name == "train"
    assert read_corpus(parts[0], valid=parts[1], name="mine").name == "mine"


@pytest.mark.parametrize("key", ["valid", "validation", "dev"])
def test_a_corpus_is_read_from_a_mapping(key):
    corpus = read_corpus({"train": PAIRS, key: PAIRS[:3], "test": PAIRS[:2]})
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [40, 3, 2]


def test_a_mapping_needs_train_and_stands_alone(caplog):
    with pytest.raises(DataError, match="train: got NoneType; expected a path"):
        read_corpus(None)
    with pytest.raises(DataError, match="mapping with 'text', 'labels'; expected train"):
        read_corpus({"text": ["x"], "labels": ["y"]})
    with pytest.raises(DataError, match="Put all splits into the mapping"):
        read_corpus({"train": PAIRS}, test=PAIRS)
    with pytest.raises(DataError, match="both 'validation' and 'dev', which name the same split; expected one"):
        read_corpus({"train": PAIRS, "dev": PAIRS[:2], "validation": PAIRS[:3]})
    assert len(read_corpus({"train": PAIRS, "valid": None, "dev": PAIRS[:2]}).valid) == 2
    read_corpus({"train": PAIRS, "unsupervised": PAIRS})
    assert "ignored the splits 'unsupervised'" in caplog.text


def test_without_valid_a_share_of_train_becomes_it():
    corpus = read_corpus(PAIRS, valid_share=0.25, seed=1)
    assert (len(corpus.train), len(corpus.valid)) == (30, 10)
    assert {document.text for document in (*corpus.train, *corpus.valid)} == {text for text, _ in PAIRS}
    assert sum("b" in document.labels for document in corpus.valid) == 5
    assert corpus == read_corpus(PAIRS, valid_share=0.25, seed=1)
    assert corpus != read_corpus(PAIRS, valid_share=0.25, seed=2)
    assert len(read_corpus(PAIRS, valid_share=0).valid) == 0
    with pytest.raises(DataError, match=r"valid_share is 1\.0"):
        read_corpus(PAIRS, valid_share=1.0)


def test_documents_are_split_with_their_labels():
    documents = [Document(text, tuple(labels)) for text, labels in PAIRS]
    first, second = split_documents(documents, 0.1)
    assert sorted([*first, *second], key=lambda document: document.text) == sorted(
        documents, key=lambda document: document.text
    )
    assert len(second) == 4


def test_duplicate_ids_within_a_part_name_both_rows(tmp_path):
    rows = [{"text": "x", "labels": ["a"], "id": identity} for identity in (7, "8", "7")]
    path = write(tmp_path / "train.jsonl", rows)
    with pytest.raises(DataError, match=r"train\.jsonl, line 3: the id '7' is already used in line 1"):
        read_corpus(path)
    documents, report = read_documents(path, skip_bad=True)
    assert [document.id for document in documents] == ["7", "8"]
    assert report.bad == 1
    assert read_corpus(rows[:2], valid=rows[:2]).valid == read_corpus(rows[:2], valid=rows[:2]).train


def test_an_id_that_denn_assigns_is_never_one_that_is_given():
    ids = ("train-1", "train-4", "train-7", None, "train-8", None, None)
    documents, _ = read_documents([{"text": "x", "labels": ["a"], "id": id} for id in ids], part="train")
    assert [one.id for one in documents] == [
        "train-1",
        "train-4",
        "train-7",
        "train-9",
        "train-8",
        "train-6",
        "train-10",
    ]


def test_all_bad_rows_are_counted_and_the_first_are_shown_in_order():
    rows = [{"text": "x", "labels": ["a"], "id": 1}, {"text": "y", "labels": ["a"], "id": 1}]
    rows += [{"text": number, "labels": []} for number in range(5)] + [{"text": "z", "labels": "[oops"}]
    with pytest.raises(DataError) as caught:
        read_corpus(rows)
    message = str(caught.value)
    assert message.startswith("train, row 2: the id '1' is already used in row 1")
    assert "train, row 3: the text is a number (0)" in message and "row 7" not in message
    assert "Bad rows: 7 of 8." in message and "skip_bad=True" in message
    with pytest.raises(DataError, match="All rows are bad"):
        read_corpus(rows[2:], skip_bad=True)


def test_reports_are_logged(caplog):
    rows = [("x", ["a"]), ("", ["a"]), ("z", []), (3, [])]
    read_corpus(rows, test=[("x", ["new"])], skip_bad=True, valid_share=0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * len(caplog.records)
    said = caplog.text
    assert "train: skipped 1 of 4 rows as bad: train, row 4: the text is a number (3)" in said
    assert "train: documents without labels: 1" in said
    assert "train: documents with empty text: 1" in said
    assert "train: there is only one label" in said
    assert "test: labels that do not occur in train and cannot be learnt: 1 ('new')" in said


def test_a_clean_corpus_is_read_in_silence(caplog):
    read_corpus(PAIRS)
    assert caplog.text == ""


def test_train_without_labels_is_refused_and_test_is_not():
    with pytest.raises(DataError, match="train: no document has a label, so there is nothing to learn"):
        read_corpus([("x", []), ("y", [])])
    assert read_corpus(PAIRS, test=[("x", [])]).test[0].labels == ()


def test_empty_texts_are_kept():
    documents, report = read_documents([("", ["a"]), ("x", ["a"])])
    assert documents[0].text == "" and report.empty == 1


def test_what_train_is_split_at_holds_for_all_parts():
    train = [{"text": "x", "labels": "wine, red|beer"}]
    test = [{"text": "x", "labels": "wine, red"}, {"text": "y", "labels": '["beer"]'}]
    corpus = read_corpus(train, test=test, valid_share=0)
    assert corpus.labels.names == ("beer", "wine, red")
    assert [document.labels for document in corpus.test] == [("wine, red",), ("beer",)]


def test_a_given_separator_wins(caplog):
    rows = [{"text": "x", "labels": "a|b/c"}]
    assert read_corpus(rows, separator="/", valid_share=0).train[0].labels == ("a|b", "c")
    assert caplog.text == ""
    assert read_corpus(rows, valid_share=0).train[0].labels == ("a", "b/c")
    assert "train: split label strings at '|'" in caplog.text
    with pytest.raises(DataError, match="separator is empty"):
        read_corpus(rows, separator="")


def test_columns_can_be_named_otherwise():
    rows = [{"body": "x", "topics": ["a"], "key": 5}]
    corpus = read_corpus(rows, text_column="body", labels_column="topics", id_column="key", valid_share=0)
    assert corpus.train == [Document("x", ("a",), "5")]


def test_labels_may_be_missing_where_they_are_not_needed():
    assert read_documents([{"text": "x"}], needs_labels=False)[0] == [Document("x", (), "document-1")]
    with pytest.raises(DataError, match="no column 'labels'; found: 'text'"):
        read_documents([{"text": "x"}])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"labels": ["a"], "rejected": ["b", " a "]}, "row 2: the label 'a' is both given and rejected"),
        ({"labels": "a|b", "rejected": "c|b"}, "row 2: the label 'b' is both given and rejected"),
        ({"labels": ["a"], "rejected": {"b": 1}}, "row 2: the rejected column has the wrong type: got an object"),
        ({"labels": ["a"], "rejected": ["x\ny"]}, "row 2: the label .* contains a line break"),
    ],
)
def test_a_row_whose_rejected_labels_are_wrong_is_bad(row, said):
    good = {"text": "one", "labels": ["a"], "rejected": ["b", "b", ""]}
    with pytest.raises(DataError, match=said) as refused:
        read_documents([good, {"text": "two"} | row])
    assert ".. " not in str(refused.value)
    (document,), report = read_documents([good, {"text": "two"} | row], skip_bad=True)
    assert document.rejected == ("b",) and report.bad == 1


@pytest.mark.parametrize("other", [True, False, 0, 1.5, None])
def test_a_column_of_that_name_that_means_something_else_is_ignored(other):
    assert read_documents([{"text": "one", "labels": ["a"], "rejected": other}])[0][0].rejected == ()


def test_rejected_labels_are_split_at_the_separator_of_the_labels():
    rows = [{"text": "one", "labels": "a", "rejected": "b;c, d"}, {"text": "two", "labels": "a, b"}]
    documents, report = read_documents(rows)
    assert [document.rejected for document in documents] == [("b", "c, d"), ()] and report.separator == ";"
    assert documents[1].labels == ("a, b",)


def test_a_column_called_rejected_may_hold_something_else():
    rows = [{"text": "one", "rejected": ["a"]}]
    (document,), _ = read_documents(rows, labels_column="rejected")
    assert (document.labels, document.rejected) == (("a",), ())


def test_rejected_labels_are_not_to_be_learnt():
    corpus = read_corpus([Document("one", ("a",), "1", ("b",)), Document("two", ("c",), "2")], valid_share=0)
    assert corpus.labels.names == ("a", "c") and corpus.train[0].rejected == ("b",)

"""Columns of 0 and 1, one per label: the same documents from every source."""

import json

import pandas as pd
import polars as pl
import pytest

from denn.data.corpus import read_corpus, read_documents
from denn.errors import DataError
from denn.types import Document

DOCUMENTS = [
    Document("one", ("sports", "world news"), "1"),
    Document("two", (), "2"),
    Document("three", ("sports",), "3"),
]
COLUMNS = {"id": ["1", "2", "3"], "text": ["one", "two", "three"], "sports": [1, 0, 1], "world news": [1, 0, 0]}


def write(kind, tmp_path, columns):
    frame, path = pd.DataFrame(columns), tmp_path / f"a.{kind}"
    if kind == "pandas":
        return frame
    if kind == "polars":
        return pl.DataFrame(columns)
    if kind == "dicts":
        return frame.to_dict("records")
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    elif kind == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    return path


PARQUET = pytest.param("parquet", marks=pytest.mark.slow)  # a process decodes it
KINDS = ["csv", "tsv", PARQUET, "jsonl", "pandas", "polars", "dicts"]


@pytest.mark.parametrize("named", ["*", "sports,world news", ["sports", "world news"]])
@pytest.mark.parametrize("kind", KINDS)
def test_every_source_gives_the_labels_whose_columns_hold_a_one(tmp_path, kind, named):
    assert read_documents(write(kind, tmp_path, COLUMNS), label_columns=named)[0] == DOCUMENTS


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_takes_columns_by_their_beginning_which_is_no_part_of_the_label(tmp_path, kind):
    columns = {"topic_sports": [1, 0, 1], "topic_world news": [1.0, 0.0, 0.0], "year": [1999, 2000, 2001]}
    source = write(kind, tmp_path, {**columns, "body": COLUMNS["text"], "key": COLUMNS["id"]})
    found = read_documents(source, label_columns="topic_*", text_column="body", id_column="key")[0]
    assert found == DOCUMENTS


@pytest.mark.parametrize(
    "values", [[True, False, True], [1.0, 0.0, 1.0], ["1", "0", " 1 "], ["TRUE", "", "true"], [1, None, 1]]
)
@pytest.mark.parametrize("kind", ["csv", PARQUET, "pandas", "polars"])
def test_true_and_one_are_set_and_nothing_is_not(tmp_path, kind, values):
    documents = read_documents(write(kind, tmp_path, COLUMNS | {"sports": values}), label_columns=["sports"])[0]
    assert [document.labels for document in documents] == [("sports",), (), ("sports",)]


def test_columns_of_a_frame_may_be_numbers():
    frame = pd.DataFrame({"text": ["one", "two"], 7: [1, 0], 8: [0, 1]})
    for named in ("*", [7, 8]):
        assert [document.labels for document in read_documents(frame, label_columns=named)[0]] == [("7",), ("8",)]


@pytest.mark.parametrize("kind", KINDS)
def test_other_values_are_a_bad_row_and_a_missing_column_is_named(tmp_path, kind):
    source = write(kind, tmp_path, COLUMNS | {"year": [0, 1, 1999]})
    with pytest.raises(DataError, match=r"(row|line) [34]: the label column 'year' contains .*1999.*, expected 0 or 1"):
        read_documents(source, label_columns="*")
    with pytest.raises(DataError, match=r"there is no column 'politics'; found: .*'sports'"):
        read_documents(source, label_columns="sports,politics")
    with pytest.raises(DataError, match=r"there is no column 'topic_\*'"):
        read_documents(source, label_columns="topic_*")


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_column_of_labels_other_columns_are_pointed_at(tmp_path, kind):
    with pytest.raises(
        DataError, match=r"no column 'labels'.* If each label has a column of 0 and 1, .*--label-columns"
    ):
        read_documents(write(kind, tmp_path, COLUMNS))
    with pytest.raises(DataError, match=r"no column 'labels'[^*]*$"):
        read_documents(write(kind, tmp_path, {"text": ["one"], "id": ["1"]}))


def test_an_empty_name_is_refused_and_a_corpus_takes_the_columns_in_all_parts(tmp_path):
    with pytest.raises(DataError, match="the label columns are empty"):
        read_corpus(pd.DataFrame(COLUMNS), label_columns=" , ")
    corpus = read_corpus(pd.DataFrame(COLUMNS), test=pd.DataFrame(COLUMNS), label_columns="*", valid_share=0)
    assert list(corpus.train) == list(corpus.test) == DOCUMENTS

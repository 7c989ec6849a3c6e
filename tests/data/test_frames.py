"""Frames, datasets and lists: the same documents from each."""

from dataclasses import asdict

import pandas as pd
import polars as pl
import pytest

from denn.data.corpus import read_corpus, read_documents
from denn.errors import DataError
from denn.types import Document

DOCUMENTS = [Document("one", ("a", "b"), "1"), Document("two", (), "2", ("a", "c")), Document("three", ("b",), "3")]
LISTS = {"text": ["one", "two", "three"], "labels": [["a", "b"], [], ["b"]], "id": ["1", "2", "3"]}
LISTS["rejected"] = [[], ["a", "c"], []]
JOINED = LISTS | {"labels": ["a|b", "", "b"], "rejected": ["", "a|c", None]}
MISSING = LISTS | {"labels": [["a", "b"], None, ["b"]], "rejected": [None, ["a", "c"], None]}


@pytest.mark.parametrize("columns", [LISTS, JOINED, MISSING])
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pl.LazyFrame])
def test_frames_give_the_documents_of_their_rows(frame, columns):
    assert read_documents(frame({**columns, "other": [1, 2, 3]}))[0] == DOCUMENTS


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_whole_numbers_are_ids(frame):
    assert read_documents(frame(LISTS | {"id": [1, 2, 3]}))[0] == DOCUMENTS


def test_frames_read_from_parquet_hold_arrays_of_labels(tmp_path):
    pd.DataFrame(LISTS).to_parquet(tmp_path / "a.parquet")
    assert read_documents(pd.read_parquet(tmp_path / "a.parquet"))[0] == DOCUMENTS
    assert read_documents(pl.read_parquet(tmp_path / "a.parquet"))[0] == DOCUMENTS
    assert read_documents(tmp_path / "a.parquet")[0] == DOCUMENTS


@pytest.mark.parametrize("nothing", [float("nan"), None, pd.NA])
def test_a_missing_text_is_a_bad_row_and_missing_labels_are_none(nothing):
    frame = pd.DataFrame({"text": ["one", nothing], "labels": ["a", "b"]})
    with pytest.raises(DataError, match="train, row 2: the text is null, expected a string"):
        read_documents(frame, part="train")
    frame = pd.DataFrame({"text": ["one", "two"], "labels": ["a", nothing]})
    assert [document.labels for document in read_documents(frame)[0]] == [("a",), ()]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, pl.LazyFrame])
def test_number_labels_and_missing_columns_are_refused(frame):
    with pytest.raises(DataError, match="row 1: the label column has the wrong type"):
        read_documents(frame(LISTS | {"labels": [[1, 2], [], [2]]}))
    with pytest.raises(DataError, match="no column 'text'; found: 'body', 'labels'"):
        read_documents(frame({"body": ["x"], "labels": ["y"]}))
    with pytest.raises(DataError, match="there are no rows"):
        read_documents(frame({"text": [], "labels": []}))


def test_lists_hold_documents_dicts_or_pairs():
    rows = [asdict(document) for document in DOCUMENTS]
    pairs = [(document.text, list(document.labels)) for document in DOCUMENTS]
    assert read_documents(DOCUMENTS)[0] == DOCUMENTS
    assert read_documents(rows)[0] == DOCUMENTS
    assert [document.id for document in read_documents(pairs, part="test")[0]] == ["test-1", "test-2", "test-3"]
    assert [document.labels for document in read_documents(pairs)[0]] == [("a", "b"), (), ("b",)]
    assert read_documents(DOCUMENTS, text_column="body", labels_column="topics", id_column="key")[0] == DOCUMENTS


def test_other_items_and_other_sources_are_refused():
    with pytest.raises(DataError, match=r"train, row 2: got a string \('two'\); expected a Document, a dict or a"):
        read_documents([("one", ["a"]), "two"], part="train")
    with pytest.raises(DataError, match="got int; expected a path"):
        read_documents(7)
    with pytest.raises(DataError, match="got Series; expected a path"):
        read_documents(pd.Series(["one"]))


@pytest.mark.slow
def test_hugging_face_datasets_are_read():
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    dataset = datasets.Dataset.from_dict(LISTS | {"other": [1, 2, 3]})
    assert read_documents(dataset)[0] == read_documents(dataset.to_iterable_dataset())[0] == DOCUMENTS
    corpus = read_corpus(datasets.DatasetDict({"train": dataset, "validation": dataset, "test": dataset}))
    assert list(corpus.train) == list(corpus.valid) == list(corpus.test) == DOCUMENTS
    with pytest.raises(DataError, match="no column 'body'"):
        read_documents(dataset, text_column="body")


@pytest.mark.slow
@pytest.mark.parametrize("form", [None, "numpy"])
def test_class_labels_of_datasets_are_read_by_name(form):
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    names = datasets.ClassLabel(names=["a", "b", "c, d"])
    text = datasets.Value("string")
    lists = datasets.Sequence(names)
    several = datasets.Features({"text": text, "labels": lists, "rejected": lists})
    columns = {"text": ["one", "two"], "labels": [[2, 0], []], "rejected": [[], [1]]}
    dataset = datasets.Dataset.from_dict(columns, features=several)
    for given in (dataset.with_format(form), dataset.to_iterable_dataset()):
        first, second = read_documents(given)[0]
        assert (first.labels, second.labels, second.rejected) == (("c, d", "a"), (), ("b",))
    one = datasets.Features({"text": text, "label": names})
    dataset = datasets.Dataset.from_dict({"text": ["1", "2", "3"], "label": [2, -1, None]}, features=one)
    assert [found.labels for found in read_documents(dataset, labels_column="label")[0]] == [("c, d",), (), ()]


@pytest.mark.slow
def test_a_class_number_without_a_name_is_a_bad_row():
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    features = datasets.Features({"text": datasets.Value("string"), "labels": datasets.ClassLabel(names=["a", "b"])})
    dataset = datasets.Dataset.from_dict({"text": ["1", "2"], "labels": [0, 1]}, features=features)
    narrower = dataset.to_iterable_dataset()
    narrower.info.features["labels"].names.pop()
    with pytest.raises(DataError, match=r"train, row 2: the label is a number \(1\), expected a class number"):
        read_documents(narrower, part="train")

"""Cells that a spreadsheet would treat as formulas are written as text, and read back unchanged."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denn.data.corpus import read_documents
from denn.data.files import iterate_texts
from denn.data.spreadsheets import ADDED, protect, restore, write_table

CELLS = st.text(st.sampled_from("=+-@\t\r\n'＝1.e|a")) | st.text()


@pytest.mark.parametrize(
    "cell", ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "'=1", "＝1", "-"]
)
def test_a_formula_gets_an_apostrophe(cell):
    assert protect(cell) == "'" + cell


@pytest.mark.parametrize("cell", ["", "a", "a=b", "'a'", "0", "-0.5", "+3", "-1.5e-7", "10 = 5 + 5"])
def test_anything_else_stays_as_it_is(cell):
    assert protect(cell) == restore(cell) == cell


@given(CELLS)
def test_what_is_protected_can_be_restored(cell):
    assert restore(protect(cell)) == cell
    assert protect(cell)[:1] not in "=+-@\t\r\n" or not cell or protect(cell) == cell


def test_numbers_of_a_table_stay_numbers():
    rows = [["label", "score"], ["=a", -0.5], ["b", "-0.25"]]
    assert write_table(rows) == b"label,score\n'=a,-0.5\nb,-0.25\n"
    assert write_table(rows, "\t").startswith(b"label\tscore\n'=a\t-0.5\n")


@given(
    st.lists(st.text("=+-@'ab ", min_size=1).map(str.strip).filter(bool), min_size=1),
    st.sampled_from(["labels", "predicted_labels"]),
    st.sampled_from([[], ["familiarity", "unfamiliar"]]),  # none in files of earlier versions
)
def test_only_a_file_of_the_page_is_restored(tmp_path_factory, labels, name, more):
    path = tmp_path_factory.mktemp("files") / "a.csv"
    rows = (["'=x", label, "0.5", *("" for _ in more)] for label in labels)
    path.write_bytes(write_table([["text", name, "scores", *more], *rows]))
    documents, _ = read_documents(path, labels_column=name)
    assert [document.labels for document in documents] == [(label,) for label in labels]
    assert {document.text for document in documents} == {"'=x"}


@given(st.lists(CELLS, min_size=1), st.sampled_from([",", "\t"]))
def test_what_is_written_is_read_back(tmp_path_factory, texts, separator):
    path = tmp_path_factory.mktemp("files") / ("a.csv" if separator == "," else "a.tsv")
    path.write_bytes(write_table([["text", *ADDED], *([text, None, 0.5, None, True] for text in texts)], separator))
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter=separator, strict=True))
    assert rows == [["text", *ADDED], *([protect(text), "", "0.5", "", "True"] for text in texts)]
    storable = [text for text in texts if "\0" not in text]
    path.write_bytes(write_table([["text", *ADDED], *([text, *[""] * len(ADDED)] for text in storable)], separator))
    assert [text for text, _ in iterate_texts(path)] == storable


def test_an_apostrophe_of_another_file_means_itself(tmp_path):
    path = tmp_path / "a.csv"
    text = io.StringIO()
    csv.writer(text).writerows([["text", "labels"], ["'@home' is a word", "'=x"]])
    path.write_text(text.getvalue())
    [document], _ = read_documents(path)
    assert (document.text, document.labels) == ("'@home' is a word", ("'=x",))

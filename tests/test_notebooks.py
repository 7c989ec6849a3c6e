"""Predictions in notebooks, as HTML and as a frame, and the example notebook."""

import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

import denn
from denn.encoders.weights import is_installed
from denn.errors import DataError, MissingExtraError
from denn.vocabulary import Vocabulary, VocabularyEntry

NEIGHBOURS = tuple(
    denn.Neighbour(f"n{number}", 0.9 - number / 10, ("a", "<b>"), f"{'long ' * 50}<script>") for number in range(5)
)
PREDICTION = denn.Prediction(
    ("<b>",),
    {"<b>": 0.91, "a": 0.2},
    0.5,
    NEIGHBOURS,
    parts={"<b>": {"classifier": 0.8, "words": 0.7}, "a": {"classifier": 0.1}},
    words={"<b>": (("goal & co", 1.5), ("match", 0.5))},
    familiarity=0.001,
)


class Cells(HTMLParser):
    """The texts of the cells of each row; tags that are left open are an error."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def test_a_prediction_is_a_table_in_a_notebook():
    html = PREDICTION._repr_html_()
    cells = Cells()
    cells.feed(html)
    assert cells.open == []
    assert cells.rows[:4] == [
        ["label", "score", "classifier", "words", "supporting words"],
        ["✓ <b>", "0.910", "0.800", "0.700", "goal & co, match"],
        ["a", "0.200", "0.100", "–", ""],
        ["similarity", "labels", "id", "similar document"],
    ]
    assert [row[2] for row in cells.rows if row[2][0] == "n"] == ["n0", "n1", "n2", "n3", "n4"]
    assert len(cells.rows[4][3]) == 160 and "<summary>2 more</summary>" in html
    assert "Unfamiliar text: no stored document is similar, so these labels are less reliable." in html
    assert "<script>" not in html and "<b>" not in html and "color" not in html


def test_a_prediction_without_labels_or_evidence_says_so():
    html = denn.Prediction((), {}, None, (), same_text="<7>")._repr_html_()
    assert "No label is above its threshold." in html and "Document &lt;7&gt; has the same text" in html


def test_predictions_become_a_frame():
    frame = denn.to_frame([PREDICTION] * 2, ids=["x", "y"], texts=iter(["one", "two"]))
    assert list(frame.columns[:5]) == ["id", "text", "labels", "names", "scores"]
    assert frame.loc[1, ["id", "text"]].tolist() == ["y", "two"]
    assert frame["labels"].explode().tolist() == ["<b>", "<b>"]
    assert frame["scores"].str["a"].tolist() == [0.2, 0.2] and frame["unfamiliar"].all()
    named = replace(PREDICTION, vocabulary=Vocabulary((VocabularyEntry("<b>", "bold"),)))
    assert denn.to_frame([named])["names"].tolist() == [["bold"]] and frame["names"][0] == ["<b>"]
    assert frame["words"][0] == {"<b>": ["goal & co", "match"]}
    assert frame["neighbours"][0] == ["n0", "n1", "n2", "n3", "n4"]
    assert isinstance(frame, pd.DataFrame) and list(denn.to_frame([]).columns) == list(frame.columns[2:])


def test_a_frame_needs_an_id_for_each_prediction():
    with pytest.raises(DataError, match="Got 1 ids for 2 predictions, expected one for each"):
        denn.to_frame([PREDICTION] * 2, ids=["x"])
    with pytest.raises(DataError, match=r"Got one Prediction, expected a list. Write to_frame\(\[prediction\]\)"):
        denn.to_frame(PREDICTION)


def test_without_pandas_the_install_line_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"to_frame needs the package 'pandas'.* pip install 'denn\[frames\]'"):
        denn.to_frame([PREDICTION])


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("minilm"), reason="the example uses the encoder minilm")
def test_the_example_runs(tmp_path, monkeypatch):
    """The notebook is stored without outputs, and its cells print what the text around them describes."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(Path(__file__).parents[1] / "examples" / "denn.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for model in tmp_path.iterdir():
        shutil.rmtree(model)  # with an encoder of 90 MB
    shown = ["".join(str(one.get("data", "")) for one in cell.outputs) for cell in cells]
    assert "✓ damaged" in shown[2] and "✓ refund" in shown[2] and "similar document" in shown[2]
    assert "Where is my parcel?" in shown[3] and "micro_f1" in shown[4]
    assert "✓ gift card" in shown[5] and "bundle.json" in shown[6]

"""The data types at a Python prompt."""

import subprocess
import sys

import denn
from denn.types import LabelSpace


def test_tab_completion_finds_public_names_before_they_are_imported():
    code = "import denn, sys; print(*dir(denn)); print('torch' in sys.modules)"
    names, imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.splitlines()
    assert set(denn.__all__) <= set(names.split())
    assert imported == "False"
    assert {name for name in names.split() if not name.startswith("__")} == {*denn.__all__, "sklearn"} - {"__version__"}


def test_a_label_space_reads_like_a_tuple():
    labels = LabelSpace(("earn", "acq", "grain"))
    assert list(labels) == ["earn", "acq", "grain"]
    assert labels[0] == "earn" and labels[-1] == "grain" and labels[1:] == ("acq", "grain")
    assert "acq" in labels and len(labels) == 3


def test_long_collections_have_a_short_repr():
    labels = LabelSpace(tuple(f"label {number}" for number in range(1234)))
    assert repr(labels) == "LabelSpace(1,234 labels: 'label 0', 'label 1', 'label 2', 'label 3', 'label 4', …)"
    assert repr(LabelSpace(())) == "LabelSpace(0 labels)"
    documents = [denn.Document("some text", (f"label {number % 7}",)) for number in range(2000)]
    corpus = denn.Corpus(documents, test=documents[:10], name="inbox")
    assert repr(corpus) == "Corpus('inbox': 2,000 training, 0 validation, 10 test documents, 7 labels)"
    one = denn.Corpus([denn.Document("some text", ("sport",))], name="inbox")
    assert repr(one) == "Corpus('inbox': 1 training, 0 validation, 0 test documents, 1 label)"
    assert repr(one.labels) == "LabelSpace(1 label: 'sport')"

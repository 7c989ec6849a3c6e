"""Progress in Python: shown in terminals and notebooks, silent elsewhere, and as asked."""

import io
import sys
from types import SimpleNamespace

import pytest

import denn
from denn.progress import Bar, Plain, Silent, displayed
from denn.types import Stage


class Stream(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def place(monkeypatch):
    """Return a function that sets whether stderr is a terminal and whether a notebook runs, and returns stderr."""

    def put(where: str) -> Stream:
        stream = Stream(where == "terminal")
        shell = object() if where == "notebook" else None  # IPython may be imported without running this code
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        return stream

    return put


@pytest.mark.parametrize(
    ("where", "progress", "kind"),
    [
        ("terminal", None, Bar),
        ("notebook", None, Plain),
        ("script", None, Silent),
        ("terminal", False, Silent),
        ("notebook", False, Silent),
        ("terminal", True, Bar),
        ("script", True, Plain),
    ],
)
def test_the_display_suits_the_place(place, where, progress, kind):
    stream = place(where)
    with displayed(progress) as shown:
        assert type(shown) is kind
        shown.start(Stage("embedding", 2))
        shown.note("a note")
    assert ("a note" in stream.getvalue()) == (kind is not Silent)


def test_a_display_of_the_user_is_used_as_it_is(place):
    place("terminal")
    own = Silent()
    with displayed(own) as shown:
        assert shown is own


def test_nothing_is_shown_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with displayed(None) as shown:
        assert type(shown) is Silent


@pytest.mark.slow
@pytest.mark.parametrize(("progress", "is_shown"), [(None, True), (False, False)])
def test_training_and_refitting_in_a_notebook_show_their_stages(
    place, tiny_corpus, tiny_settings, tmp_path, progress, is_shown
):
    stream = place("notebook")
    denn.train(
        tiny_corpus, out=tmp_path / "m", progress=progress, **{**tiny_settings, "epochs": 1}, allow_poor=True
    ).close()
    trained = stream.getvalue()
    assert ("writing the model\n" in trained) == is_shown
    denn.refit(tmp_path / "m", progress=progress).close()
    refitted = stream.getvalue().removeprefix(trained)
    assert ("training the head" in refitted) == is_shown

"""Debian's lists: paragraphs, tags, descriptions, and a cache that needs no network."""

import gzip
import json
import lzma
from pathlib import Path

import pytest

from denn.data import debian
from denn.errors import DataError

PACKAGES = """\
Package: zeta
Description: last of all
Description-md5: 3
Tag: role::program

Package: alpha
Version: 1
Description: first of all
Homepage: https://example.org/
Description-md5: 1
Tag: role::program, use::{editing,
 viewing}, special::not-yet-tagged,
 works-with::TODO

Package: beta
Description: same as alpha
Description-md5: 1
Tag: role::data

Package: gamma
Description: no tags, no translation
Description-md5: 9

Package: delta
Description: first of all
Description-md5: 1
"""
UPDATES = """\
Package: alpha
Description: first of all
Description-md5: 2

"""
TRANSLATIONS = """\
Package: alpha
Description-md5: 1
Description-en: first of all
 It is the first.
 .
  An indented line, naïve.

Package: zeta
Description-md5: 3
Description-en: last of all
"""


@pytest.fixture
def lists(tmp_path):
    folder = tmp_path / "lists"
    (folder / "partial").mkdir(parents=True)
    (folder / "a_main_binary-amd64_Packages").write_text(UPDATES)
    (folder / "b_main_binary-amd64_Packages.xz").write_bytes(lzma.compress(PACKAGES.encode()))
    (folder / "b_main_i18n_Translation-en.gz").write_bytes(gzip.compress(TRANSLATIONS.encode()))
    (folder / "b_InRelease").write_text("Package: none\n")
    return folder


def test_documents_join_tags_and_descriptions(lists):
    alpha, gamma, zeta = debian.read_lists(lists)
    assert alpha.id == "alpha"
    assert alpha.text == "alpha: first of all\nIt is the first.\n\nAn indented line, naïve."
    assert alpha.labels == ("role::program", "use::editing", "use::viewing")
    assert (gamma.text, gamma.labels) == ("gamma: no tags, no translation", ())
    assert (zeta.text, zeta.labels) == ("zeta: last of all", ("role::program",))


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("a::b, c::d", ("a::b", "c::d")),
        ("a::{b,c}, d::e", ("a::b", "a::c", "d::e")),
        ("a::b,\n c::{d, e}", ("a::b", "c::d", "c::e")),
        ("a::TODO, special::x, a::b", ("a::b",)),
        ("", ()),
    ],
)
def test_tags_are_expanded_and_filtered(field, expected):
    assert debian.tags(field) == expected


def cached(folder, rows):
    lines = (json.dumps({"id": name, "text": name, "labels": labels}) for name, labels in rows)
    (folder / debian.FILE).write_text("\n".join(lines))


def test_rare_tags_go_and_take_their_packages_with_them(tmp_path):
    cached(tmp_path, [("a", ["x", "y"]), ("b", ["x"]), ("c", ["y"]), ("d", ["z"]), ("e", [])])
    tagged, untagged = debian.load_debian(tmp_path, min_count=2)
    assert [(document.id, document.labels) for document in tagged] == [("a", ("x", "y")), ("b", ("x",)), ("c", ("y",))]
    assert [document.id for document in untagged] == ["e"]


def fake_apt(folder, monkeypatch, script):
    """Put a program called apt-get first in the PATH."""
    program = folder / "bin" / "apt-get"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


def test_fetching_asks_apt_once_and_leaves_one_file(tmp_path, lists, monkeypatch):
    copied = f'cp {lists}/*_* "$(dirname "$3")/lists/" && echo once >> {tmp_path}/asked'
    fake_apt(tmp_path, monkeypatch, copied)
    cache = tmp_path / "new" / "cache"
    path = debian.fetch(cache)
    assert debian.fetch(cache) == path
    assert (tmp_path / "asked").read_text() == "once\n"
    assert [entry.name for entry in cache.iterdir()] == [debian.FILE]
    tagged, untagged = debian.load_debian(cache, min_count=1)
    assert [document.id for document in (*tagged, *untagged)] == ["alpha", "zeta", "gamma"]


def test_apt_is_told_to_keep_to_its_own_folder(tmp_path, lists, monkeypatch):
    fake_apt(tmp_path, monkeypatch, f'cp {lists}/*_* "$(dirname "$3")/lists/"; cp "$3" {tmp_path}/kept.conf')
    monkeypatch.chdir(tmp_path)
    debian.fetch(Path("cache"))
    kept = (tmp_path / "kept.conf").read_text()
    assert f'Dir::State::Lists "{tmp_path.resolve()}/cache/' in kept
    assert f'Dir::Cache "{tmp_path.resolve()}/cache/' in kept
    assert "#clear APT::Update::Post-Invoke-Success;" in kept


def test_a_failing_apt_says_why_and_what_to_do_instead(tmp_path, monkeypatch):
    fake_apt(tmp_path, monkeypatch, "echo 'E: no route to host' >&2; exit 100")
    with pytest.raises(
        DataError, match=r"no package lists \(E: no route to host\).*denn train your\.jsonl --out model"
    ):
        debian.fetch(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_system_without_apt_or_without_tags_is_told_what_to_do_instead(tmp_path, lists, monkeypatch):
    (lists / "b_main_binary-amd64_Packages.xz").unlink()
    fake_apt(tmp_path, monkeypatch, f'cp {lists}/*_* "$(dirname "$3")/lists/"')
    with pytest.raises(DataError, match="have no debtags"):
        debian.fetch(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"apt-get is not installed.*denn train your\.jsonl"):
        debian.fetch(tmp_path)


def test_the_corpus_is_split_in_tenths_and_always_alike(tmp_path):
    cached(tmp_path, [(f"p{i}", [f"t{i % 3}", "all"][: i % 4]) for i in range(400)])
    corpus = debian.load(tmp_path)
    parts = (corpus.train, corpus.valid, corpus.test)
    assert [len(part) for part in parts] == [240, 30, 30]
    ids = [{document.id for document in part} for part in parts]
    assert ids[0] | ids[1] | ids[2] == {f"p{i}" for i in range(400) if i % 4}
    assert sum(map(len, ids)) == 300
    assert set(corpus.labels.names) == {"t0", "t1", "t2", "all"}
    assert debian.load(tmp_path) == corpus

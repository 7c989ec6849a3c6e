"""Documents in Annif's formats: folders of texts with subject files, and lines of text and URIs."""

import gzip

import pytest

from denn.data.corpus import read_corpus, read_documents
from denn.data.files import iterate_texts
from denn.errors import DataError
from denn.types import Document


def write(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_a_folder_gives_a_document_for_each_text_with_its_subjects(tmp_path):
    folder = write(
        tmp_path,
        {
            "b.txt": "\ufeffTwo lines\nof text",
            "b.key": "\ufeffcats\r\n\r\n dogs \n",
            "a.txt": "Uris",
            "a.tsv": "<http://example.org/c1>\tcats\n<urn:x:2>\n\tonly a label\n",
            "a.key": "not read, as there is a .tsv file\n",
            "c.txt": "without subjects",
            "notes.md": "not read",
        },
    )
    documents, report = read_documents(folder)
    assert documents == [
        Document("Uris", ("http://example.org/c1", "urn:x:2", "only a label"), "a"),
        Document("Two lines\nof text", ("cats", "dogs"), "b"),
        Document("without subjects", (), "c"),
    ]
    assert report.unlabelled == 1
    assert [id for _, id in iterate_texts(folder)] == ["a", "b", "c"]


def test_a_folder_without_texts_or_without_any_subjects_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"is a folder, expected a file.* found no \.txt file\.$"):
        read_documents(tmp_path)
    write(tmp_path, {"a.txt": "text", "b.txt": "text", "c.key": "of nothing"})
    with pytest.raises(DataError, match=r"found 2 \.txt files, none with a \.tsv or \.key file\.$"):
        read_documents(tmp_path)
    assert list(iterate_texts(tmp_path)) == [("text", "a"), ("text", "b")]


def test_bad_files_of_a_folder_are_named_and_can_be_skipped(tmp_path):
    folder = write(tmp_path, {"a.txt": "fine", "a.key": "x", "b.txt": b"\xff", "c.txt": "nul \0", "d.txt": "d"})
    write(folder, {"d.key": b"\xfe"})
    said = r", b\.txt: byte 0xff of b\.txt is not .*, c\.txt: the text contains a NUL.*, d\.txt: byte 0xfe of d\.key is"
    with pytest.raises(DataError, match=said):
        read_documents(folder)
    assert [document.id for document in read_documents(folder, skip_bad=True)[0]] == ["a"]


def test_a_text_file_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("denn.data.compressed.LONGEST_ROW", 1 << 20)
    folder = write(tmp_path, {"a.txt": "x" * (1 << 20), "a.key": "x", "b.txt": "x" * (1 + (1 << 20))})
    with pytest.raises(DataError, match=r"b\.txt: it has more than 1 MiB, the limit for such a file"):
        read_documents(folder)


LINES = 'A "quote\t<http://example.org/1> <http://example.org/2>\nNothing\t\nBare\thttp://example.org/2\n'


@pytest.mark.parametrize("name", ["short.tsv", "short.tsv.gz"])
def test_annifs_lines_of_text_and_uris_are_told_by_the_first_one(tmp_path, name):
    content = LINES.encode()
    path = write(tmp_path, {name: gzip.compress(content) if name.endswith("gz") else content}) / name
    assert [(document.text, document.labels) for document in read_documents(path)[0]] == [
        ('A "quote', ("http://example.org/1", "http://example.org/2")),
        ("Nothing", ()),
        ("Bare", ("http://example.org/2",)),
    ]


def test_a_line_without_a_tab_is_bad_among_documents_and_a_text_among_texts(tmp_path):
    path = write(tmp_path, {"short.tsv": LINES + "no tab\n" + "bad \t\n"}) / "short.tsv"
    with pytest.raises(DataError, match=r"short\.tsv, line 4: there is no tab"):
        read_documents(path)
    assert [text for text, _ in iterate_texts(path)] == ['A "quote', "Nothing", "Bare", "no tab", "bad "]


def test_a_table_whose_texts_mention_uris_keeps_its_header(tmp_path):
    path = write(tmp_path, {"a.tsv": "text\tlabels\nsee <http://example.org>\ta|b\n"}) / "a.tsv"
    assert read_documents(path)[0] == [Document("see <http://example.org>", ("a", "b"), "document-1")]


def test_folders_are_parts_of_a_corpus(tmp_path):
    for part in ("train", "valid"):
        (tmp_path / part).mkdir()
        write(tmp_path / part, {"a.txt": "one", "a.key": "x", "b.txt": "two", "b.key": "y"})
    corpus = read_corpus(tmp_path / "train", tmp_path / "valid")
    assert (len(corpus.train), len(corpus.valid), corpus.labels.names, corpus.name) == (2, 2, ("x", "y"), "train")

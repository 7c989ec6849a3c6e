"""Vocabularies from every kind of file, and labels given by ids or names."""

import gzip
import json
import sys

import pytest

import denn
from denn.data.vocabularies import read_vocabulary
from denn.errors import DataError, MissingExtraError
from denn.types import Document
from denn.vocabulary import Vocabulary, VocabularyEntry

CATS = VocabularyEntry("http://example.org/c1", "cats", "Small beasts of prey")
DOGS = VocabularyEntry("http://example.org/c2", "dogs")
BOTH = [CATS, DOGS]
TURTLE = """
@prefix skos: <http://www.w3.org/2004/02/skos/core#> .
@prefix owl: <http://www.w3.org/2002/07/owl#> .
@prefix e: <http://example.org/> .
e:c1 a skos:Concept ; skos:prefLabel "cats"@en, "kissat"@fi ; skos:definition "Small  beasts\\nof prey"@en .
e:c2 a skos:Concept ; skos:prefLabel "dogs" ; skos:altLabel "hounds" .
e:old a skos:Concept ; skos:prefLabel "old"@en ; owl:deprecated true .
[] a skos:Concept ; skos:prefLabel "without an address" .
e:scheme a skos:ConceptScheme ; skos:prefLabel "a scheme" .
"""
FILES = {
    "v.csv": 'id,name,description\nhttp://example.org/c1,cats,"Small  beasts\nof prey"\nhttp://example.org/c2,dogs,\n',
    "v.tsv": "id\tname\tdescription\nhttp://example.org/c1\tcats\tSmall beasts of prey\nhttp://example.org/c2\tdogs\t\n",
    "v.json": json.dumps({CATS.id: {"name": "cats", "description": CATS.description}, DOGS.id: "dogs"}),
    "list.json": json.dumps(
        [{"uri": CATS.id, "label": "cats", "description": CATS.description}, {"id": DOGS.id, "name": "dogs"}]
    ),
    "v.ttl": TURTLE,
}  # fmt: skip


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_entries(tmp_path, name):
    assert list(read_vocabulary(write(tmp_path, name, FILES[name]))) == BOTH
    packed = write(tmp_path, f"{name}.gz", gzip.compress(b"\xef\xbb\xbf" * (name != "v.ttl") + FILES[name].encode()))
    assert list(read_vocabulary(str(packed))) == BOTH


@pytest.mark.parametrize(("suffix", "format"), [("nt", "nt"), ("rdf", "xml"), ("xml", "xml")])
def test_skos_comes_in_other_forms_of_rdf(tmp_path, suffix, format):
    rdflib = pytest.importorskip("rdflib")
    graph = rdflib.Graph().parse(data=TURTLE, format="turtle")
    graph.serialize(tmp_path / f"v.{suffix}", format=format, encoding="utf-8")
    assert list(read_vocabulary(tmp_path / f"v.{suffix}")) == BOTH


def test_names_are_taken_in_a_language(tmp_path):
    path = write(tmp_path, "v.ttl", TURTLE)
    assert [entry.name for entry in read_vocabulary(path, language="fi")] == ["kissat", "dogs"]
    path = write(tmp_path, "v.csv", "uri,label_fi,label_en\nhttp://example.org/c1,kissat,cats\n")
    assert [read_vocabulary(path, language=code).entries[0].name for code in (None, "fi", "sv")] == [
        "cats",
        "kissat",
        "kissat",
    ]


def test_a_language_that_no_concept_has_is_reported(tmp_path, caplog):
    path = write(tmp_path, "v.ttl", TURTLE.replace('"dogs"', '"dogs"@en').replace("[] a skos:Concept", "[] a e:Other"))
    assert [entry.name for entry in read_vocabulary(path, language="fi")] == ["kissat", "dogs"] and not caplog.text
    assert [entry.name for entry in read_vocabulary(path, language="sv")] == ["cats", "dogs"]
    assert "v.ttl: no concept has a name in the language 'sv'; found: en, fi." in caplog.text


def test_annifs_tsv_has_no_header_and_entries_may_lack_a_name(tmp_path):
    path = write(tmp_path, "v.tsv", "<http://example.org/c1>\tcats\t59.1\n\n<http://example.org/c2>\n")
    assert list(read_vocabulary(path)) == [VocabularyEntry(CATS.id, "cats"), VocabularyEntry(DOGS.id, DOGS.id)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("v.csv", "key,name\nx,y\n", r"found the columns 'key', 'name', expected id and name\."),
        ("v.csv", "", r"found the columns , expected id and name"),
        ("v.csv", "id,name\n", r"the vocabulary has no entries"),
        ("v.csv", "id,name\na,x\n ,y\n", r"entry 2: there is no id"),
        ("v.csv", "id,name\na,x\na,y\n", r"entry 2: the id 'a' occurs twice"),
        ("v.csv", 'id,name\n"a,x\n', r"not well-formed CSV"),
        ("v.csv", b"id,name\na,\xff\n", r"not UTF-8"),
        ("v.json", "{", r"not JSON"),
        ("v.json", "7", r"got a number \(7\), expected an object or a list"),
        ("v.json", '["a"]', r"got a string \('a'\), expected a name or an object"),
        ("v.json", '{"a": {"name": 7}}', r"entry 1: the name is a number \(7\), expected a string"),
        ("v.json", '[{"name": "x"}]', r"entry 1: there is no id"),
        ("v.ttl", "this is not Turtle", r"not a SKOS file in turtle \("),
        ("v.ttl", "", r"the vocabulary has no entries"),
        ("v.rdf", "<rdf", r"not a SKOS file in xml \("),
        ("v.docx", "", r"unknown extension '.docx' of a vocabulary, expected .csv, .tsv"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(tmp_path, name, content, said):
    with pytest.raises(DataError, match=said) as caught:
        read_vocabulary(write(tmp_path, name, content))
    assert str(tmp_path / name) in str(caught.value)


def test_a_source_that_is_no_file_is_refused(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="no such file"):
        read_vocabulary(tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"got a number \(7\) as a vocabulary"):
        read_vocabulary(7)
    monkeypatch.setitem(sys.modules, "rdflib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'denn\[skos\]'"):
        read_vocabulary(write(tmp_path, "v.ttl", TURTLE))


def test_a_label_is_found_by_id_and_by_name_but_not_by_an_ambiguous_one():
    vocabulary = Vocabulary(
        (*BOTH, VocabularyEntry("c3", "bank"), VocabularyEntry("c4", "bank"), VocabularyEntry("cats", "x"))
    )
    assert vocabulary.ids([DOGS.id, "dogs", "unheard of"]) == (DOGS.id, "unheard of")
    assert vocabulary.id("cats") == "cats"  # an id before a name
    with pytest.raises(DataError, match=r"the label 'bank' is the name of 2 vocabulary entries: c3, c4. Use the id"):
        vocabulary.id("bank")
    assert (vocabulary.name(CATS.id), vocabulary.name("unheard of")) == ("cats", "unheard of")
    assert vocabulary.names([CATS.id, "unheard of"]) == {CATS.id: "cats"}
    assert (vocabulary.description(CATS.id), vocabulary.description("no")) == (CATS.description, "")
    assert (len(vocabulary), CATS.id in vocabulary, "dogs" in vocabulary, repr(vocabulary)) == (
        5,
        True,
        False,
        "Vocabulary(5 entries)",
    )
    assert not Vocabulary() and Vocabulary().ids(["a", "a"]) == ("a",)


def test_a_corpus_may_use_ids_and_names_and_holds_ids(caplog):
    rows = [Document("a", ("cats", DOGS.id)), Document("b", ("dogs", DOGS.id, "unheard of"), None, ("cats",))]
    corpus = denn.read_corpus(rows, valid=rows, vocabulary={CATS.id: "cats", DOGS.id: "dogs", "c9": "seen nowhere"})
    assert [document.labels for document in corpus.train] == [(CATS.id, DOGS.id), (DOGS.id, "unheard of")]
    assert corpus.train[1].rejected == (CATS.id,)
    assert set(corpus.labels.names) == {CATS.id, DOGS.id, "unheard of"}
    assert "1 label not in the vocabulary, kept without a name: 'unheard of'" in caplog.text


def test_a_vocabulary_that_knows_no_label_is_refused():
    with pytest.raises(
        DataError, match=r"no label of the corpus is in the vocabulary.*'cats', … Labels must be ids such as 'c1'"
    ):
        denn.read_corpus([("a", ["cats"])], valid=[("a", ["cats"])], vocabulary={"c1": "gatos"})
    with pytest.raises(DataError, match="is the name of 2"):
        denn.read_corpus([("a", ["cats"])], vocabulary={"c1": "cats", "c2": "cats"})

"""The published formats of corpora, on small files, and errors for missing or damaged files."""

import json
import logging

import pytest

from denn.data import aapd, amazon531, eurlex57k, goemotions, rcv1, reuters21578
from denn.errors import DataError
from denn.types import Document


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING)


def write(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


SGM = {
    "text_train": "Graphs  are\u2028hard .\r\nsecond\n",
    "label_train": "cs.IT math.IT\ncs.IT\n",
    "text_val": "third\n",
    "label_val": "math.IT\n",
    "text_test": "fourth \n\n",
    "label_test": "cs.IT\nmath.IT\n",
}
SRC = {
    "text_train": "train_dot_src",
    "label_train": "train_dot_tgt",
    "text_val": "valid_dot_src",
    "label_val": "valid_dot_tgt",
    "text_test": "test_dot_src",
    "label_test": "test_dot_tgt",
}


@pytest.mark.parametrize("names", [dict(zip(SGM, SGM, strict=True)), SRC], ids=["text_train", "train.src"])
@pytest.mark.parametrize("corpus", [aapd, rcv1])
def test_sgms_files_are_read_line_by_line(tmp_path, caplog, corpus, names):
    write(tmp_path, **{names[name]: content for name, content in SGM.items()})
    read = corpus.load(tmp_path)
    assert read.train == [
        Document("Graphs  are\u2028hard .", ("cs.IT", "math.IT"), "train-1"),
        Document("second", ("cs.IT",), "train-2"),
    ]
    assert read.valid == [Document("third", ("math.IT",), "valid-1")]
    assert [document.text for document in read.test] == ["fourth", ""]
    assert read.labels.names == ("cs.IT", "math.IT")
    assert f"{read.name}: differs from the published corpus: 2 train documents instead of" in caplog.text


def test_our_own_files_come_first(tmp_path):
    rows = {f"{part}_dot_jsonl": '{"text": "ours", "labels": ["a", "b"]}\n' for part in ("train", "valid", "test")}
    write(tmp_path, **SGM, **rows)
    assert aapd.load(tmp_path).train == [Document("ours", ("a", "b"), "train-1")]


def test_extra_documents_follow_the_training_documents(tmp_path):
    write(tmp_path, **SGM)
    with pytest.raises(DataError, match=r"extra\.jsonl, which aapd-extra needs, is missing"):
        aapd.load_extra(tmp_path)
    write(tmp_path, extra_dot_jsonl='{"text": "more", "labels": ["cs.IT"]}\n')
    corpus = aapd.load_extra(tmp_path)
    assert [document.id for document in corpus.train] == ["train-1", "train-2", "extra-1"]
    assert (corpus.name, len(corpus.test)) == ("aapd-extra", 2)
    assert len(aapd.load(tmp_path).train) == 2


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DataError) as error:
        rcv1.load(tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: there is no train.jsonl or text_train or train.src. Put the files")
    assert "text_train, label_train, text_val, label_val, text_test and label_test" in str(error.value)
    write(tmp_path, text_train="x\n", label_train="a\n", text_val="x\n", text_test="x\n", label_test="a\n")
    with pytest.raises(DataError, match=r"text_train of rcv1 is present, but label_val is missing\. Add it"):
        rcv1.load(tmp_path)


def test_texts_and_labels_must_be_as_many(tmp_path):
    write(tmp_path, **(SGM | {"label_test": "cs.IT\n"}))
    said = rf"{tmp_path}/text_test has 2 lines but {tmp_path}/label_test has 1; expected one line per document in both"
    with pytest.raises(DataError, match=said):
        aapd.load(tmp_path)


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path):
    write(tmp_path, **(SGM | {"text_val": b"third\xff\n", "text_train": b"one\ntwo \xe9t\xe9\n"}))
    with pytest.raises(DataError, match="text_train, line 2: byte 0xe9 is not UTF-8"):
        aapd.load(tmp_path)


TAXOCLASS = {
    "labels_dot_txt": "0\tfood\n1\ttea\n2\ttoys\n",
    "train__corpus_dot_txt": "0\tgreen tea\n7\tblack tea\n",
    "train__doc2labels_dot_txt": "7\t0\n0\t0,1\n",
    "test__corpus_dot_txt": "0\tdolls\n",
    "test__doc2labels_dot_txt": "0\t2\n",
}


def test_taxoclasss_tables_are_joined_by_id(tmp_path):
    write(tmp_path, **TAXOCLASS)
    corpus = amazon531.load(tmp_path)
    assert sorted([*corpus.train, *corpus.valid], key=lambda document: document.id) == [
        Document("green tea", ("food", "tea"), "train-0"),
        Document("black tea", ("food",), "train-7"),
    ]
    assert corpus.test == [Document("dolls", ("toys",), "test-0")]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"test__doc2labels_dot_txt": "1\t2\n"}, r"test/doc2labels\.txt: there are no labels for the document '0'"),
        ({"test__doc2labels_dot_txt": "0\t2,3\n"}, r"doc2labels\.txt: the label '3' of '0' is not in .*labels\.txt"),
        ({"test__doc2labels_dot_txt": "0\t2\n1\t2\n"}, r"corpus\.txt has 1 lines but .*doc2labels\.txt has 2"),
        ({"test__corpus_dot_txt": "0\tdolls\n0\tmore\n"}, r"corpus\.txt, line 2: the id '0' occurs twice"),
        ({"labels_dot_txt": "0\tfood\ntea\n"}, r"labels\.txt, line 2: there is no tab"),
    ],
)
def test_broken_tables_are_named(tmp_path, files, said):
    write(tmp_path, **(TAXOCLASS | files))
    with pytest.raises(DataError, match=said):
        amazon531.load(tmp_path)


def test_a_random_fifth_of_amazon_validates_and_is_always_the_same(tmp_path):
    write(
        tmp_path,
        text_train="".join(f"{row}\n" for row in range(99)),
        label_train="".join(f"a l{row % 3}\n" for row in range(99)),
        text_test="x\n",
        label_test="a l1\n",
    )
    corpus = amazon531.load(tmp_path)
    train, valid = ([int(document.text) for document in part] for part in (corpus.train, corpus.valid))
    assert (len(train), len(valid)) == (79, 20)  # int(0.8 · 99) stay, as in the reference code
    assert train == sorted(train) and sorted([*train, *valid]) == list(range(99))
    assert valid == sorted(valid) and valid != list(range(79, 99))  # the reference code takes these last ones
    assert corpus == amazon531.load(tmp_path)


LAW = {
    "concepts": ["20", "10"],
    "title": "left out",
    "header": "COMMISSION DECISION",
    "recitals": ",\nHaving regard,",
    "main_body": ["First.", "Second."],
    "attachments": "Done at Brussels.",
}


def write_laws(folder):
    for part in ("train", "dev", "test"):
        write(folder / part, **{"31993D0724_dot_json": json.dumps(LAW), "31993D0724(01)_dot_json": json.dumps(LAW)})


def test_laws_are_joined_in_the_order_of_their_pieces(tmp_path):
    write_laws(tmp_path)
    corpus = eurlex57k.load(tmp_path)
    text = "COMMISSION DECISION\n,\nHaving regard,\nFirst.\nSecond.\nDone at Brussels."
    assert corpus.valid == [
        Document(text, ("20", "10"), "31993D0724(01)"),
        Document(text, ("20", "10"), "31993D0724"),
    ]
    assert len(corpus.train) == len(corpus.test) == 2
    write(tmp_path, EURLEX57K_dot_json=json.dumps({"20": {"label": "wine"}, "30": {"label": "fish"}}))
    assert eurlex57k.load(tmp_path).train[0].labels == ("wine", "10")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        (b"\xff", "not JSON"),
        ("[]", "got a list; expected a JSON object"),
        (json.dumps(LAW | {"main_body": "First."}), "not a law of EUR-LEX57K"),
        (json.dumps({key: value for key, value in LAW.items() if key != "header"}), "not a law of EUR-LEX57K"),
    ],
)
def test_a_broken_law_is_named(tmp_path, content, said):
    write_laws(tmp_path)
    write(tmp_path, **{"dev__31993D0725_dot_json": content})
    with pytest.raises(DataError, match=rf"dev/31993D0725\.json: {said}"):
        eurlex57k.load(tmp_path)


def test_a_folder_without_laws_and_names_without_labels_are_named(tmp_path):
    write_laws(tmp_path)
    write(tmp_path, EURLEX57K_dot_json='{"20": "wine"}')
    with pytest.raises(DataError, match=r"EURLEX57K\.json: expected an object with a label"):
        eurlex57k.load(tmp_path)
    (tmp_path / "EURLEX57K.json").unlink()
    for path in (tmp_path / "test").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"test: there are no \.json files"):
        eurlex57k.load(tmp_path)


def story(number, part, topics, text, seen="YES"):
    marked = "".join(f"<D>{topic}</D>" for topic in topics)
    return (
        f'<REUTERS TOPICS="{seen}" LEWISSPLIT="{part}" CGISPLIT="X" OLDID="1" NEWID="{number}">\n<TOPICS>{marked}'
        f"</TOPICS>\n<PLACES><D>uk</D></PLACES>\n<UNKNOWN>&#5;</UNKNOWN>\n{text}\n</REUTERS>\n"
    )


def body(title, text):
    return f"<TEXT>&#2;\n<TITLE>{title}</TITLE>\n<DATELINE>    LONDON - </DATELINE><BODY>{text}\n&#3;</BODY></TEXT>"


def write_stories(folder, *stories):
    empty = story(0, "NOT-USED", [], "")
    write(
        folder, **{name.replace(".", "_dot_"): '<!DOCTYPE lewis SYSTEM "x">\n' + empty for name in reuters21578.FILES}
    )
    (folder / "reut2-003.sgm").write_text("".join(stories), encoding="latin-1")


def test_stories_of_both_parts_are_read_from_sgml(tmp_path):
    brief = '<TEXT TYPE="BRIEF">&#2;\n******<TITLE>GOLD\nUP\n</TITLE>Blah blah blah.\n&#3;\n\n</TEXT>'
    whole = '<TEXT TYPE="UNPROC">&#2;\nWHEAT\n    LONDON - Up.\n REUTER\n&#3;\n</TEXT>'
    write_stories(
        tmp_path,
        story(1, "TRAIN", ["wheat", "gold", "rare"], body("A &lt;B> &amp; C ", "Z\xfcrich.\n    More.\n Reuter")),
        story(2, "TRAIN", ["gold"], brief),
        story(3, "TRAIN", ["rare"], body("LEFT OUT", "only a topic of train")),
        story(4, "TRAIN", [], body("LEFT OUT", "no topics")),
        story(5, "TRAIN", ["gold"], body("LEFT OUT", "not seen"), seen="NO"),
        story(6, "NOT-USED", ["gold"], body("LEFT OUT", "not used")),
        story(7, "TEST", ["wheat"], whole),
        story(8, "TEST", ["gold", "other"], body("REUTER", "Bought by Reuters.        REUTER")),
    )
    corpus = reuters21578.load(tmp_path)
    assert sorted([*corpus.train, *corpus.valid], key=lambda document: document.id) == [
        Document("A <B> & C \nZürich.\n    More.", ("wheat", "gold"), "1"),
        Document("GOLD\nUP", ("gold",), "2"),
    ]
    assert corpus.test == [
        Document("WHEAT\n    LONDON - Up.", ("wheat",), "7"),
        Document("REUTER\nBought by Reuters.", ("gold",), "8"),
    ]


def test_sgml_files_that_are_missing_or_empty_are_named(tmp_path):
    write_stories(tmp_path, "nothing")
    with pytest.raises(DataError, match=r"reut2-003\.sgm: there are no stories"):
        reuters21578.load(tmp_path)
    (tmp_path / "reut2-020.sgm").unlink()
    with pytest.raises(DataError, match=r"reut2-000\.sgm of reuters21578 is present, but reut2-020\.sgm"):
        reuters21578.load(tmp_path)


TABLES = {
    "train_dot_tsv": 'He said "so" \t0,2\tx1\n',
    "dev_dot_tsv": "fine\t1\tx2\n",
    "test_dot_tsv": "\t2\tx3\n",
    "emotions_dot_txt": "joy\nfear\nneutral\n",
}


def test_emotions_are_read_from_their_tables(tmp_path):
    write(tmp_path, **TABLES)
    corpus = goemotions.load(tmp_path)
    assert corpus.train == [Document('He said "so" ', ("joy", "neutral"), "x1")]
    assert corpus.valid == [Document("fine", ("fear",), "x2")]
    assert corpus.test == [Document("", ("neutral",), "x3")]
    (tmp_path / "emotions.txt").rename(tmp_path / "labels.txt")
    assert goemotions.load(tmp_path) == corpus
    (tmp_path / "labels.txt").unlink()
    with pytest.raises(DataError, match=r"there is no emotions\.txt or labels\.txt"):
        goemotions.load(tmp_path)


@pytest.mark.parametrize(
    "line", ["fine\t1", "fine\t3\tx2", "fine\t-1\tx2", "fine\tfear\tx2", "fine\t\tx2", "a\tb\t1\tx2"]
)
def test_a_broken_row_of_a_table_is_named(tmp_path, line):
    write(tmp_path, **(TABLES | {"dev_dot_tsv": f"ok\t1\tx\n{line}\n"}))
    with pytest.raises(DataError, match=r"dev\.tsv, line 2: got .*; expected a text, label numbers from 0 to 2"):
        goemotions.load(tmp_path)

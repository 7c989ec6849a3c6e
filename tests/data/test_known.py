"""Facts about known corpora: editions, digests, folders; real ones are recognised in every format."""

import hashlib
import html
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denn.data import aapd, amazon531, eurlex57k, goemotions, reuters21578
from denn.data.known import KNOWN, PARTS, Edition, Known, folder_of
from denn.data.published import digest, statistics, warn_of_differences
from denn.registry import CORPORA
from denn.types import Corpus, Document

DATA = Path(__file__).parents[3] / "shared" / "data"
TRAIN = [Document("one two", ("a", "b")), Document("three", ("a",))]


def folder(name):
    if not folder_of(name, DATA).is_dir():
        pytest.skip(f"the corpus {name} is not here")
    return folder_of(name, DATA)


def sizes(corpus):
    return tuple(len(getattr(corpus, part)) for part in PARTS)


def warnings(caplog, name):
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith(f"{name}: ")]


def test_every_corpus_with_a_name_is_known():
    assert set(KNOWN) == set(CORPORA)
    for known in KNOWN.values():
        assert not known.editions[0].difference
        assert all(edition.difference for edition in known.editions[1:])
        assert len({tuple(edition.digests.items()) for edition in known.editions}) == len(known.editions)


def test_the_papers_sizes_are_those_of_the_published_editions():
    for known in KNOWN.values():
        if known.paper is not None:
            published = known.editions[0]
            assert published.train + published.valid + published.test == known.paper.documents
            assert published.labels == known.paper.labels


def test_a_digest_is_that_of_texts_and_labels():
    expected = hashlib.sha256(b"one two\0a\0b\0\0" + b"three\0a\0\0").hexdigest()
    assert digest(TRAIN) == expected
    assert digest([Document("one two", ("b", "a"), "x"), TRAIN[1]]) == expected
    assert digest(TRAIN[::-1]) != expected


documents = st.lists(
    st.builds(Document, st.text("ab", max_size=3), st.lists(st.text("ab", min_size=1, max_size=2), max_size=2))
)


@given(documents, documents)
def test_different_contents_have_different_digests(first, second):
    same = [(d.text, set(d.labels)) for d in first] == [(d.text, set(d.labels)) for d in second]
    assert (digest(first) == digest(second)) == same


def test_statistics_are_over_all_parts():
    counted = statistics(Corpus(TRAIN, test=[Document(" four  five\nsix ", ("c",))]))
    assert (counted.documents, counted.labels) == (3, 3)
    assert counted.labels_per_document == pytest.approx(4 / 3)
    assert counted.words_per_document == pytest.approx(6 / 3)


@pytest.mark.parametrize(
    ("edition", "said"),
    [
        (Edition(2, 0, 0, 2, {"train": digest(TRAIN)}), []),
        (Edition(2, 0, 0, 2, {"train": digest(TRAIN)}, "half of it"), ["mine: half of it."]),
        (
            Edition(2, 0, 0, 2, {"train": "0"}),
            [f"but the contents differ (sha256 of train {digest(TRAIN)[:12]}…)"],
        ),
        (Edition(2, 0, 0, 2), ["contents could not be compared, because no digests are known (sha256 of train "]),
        (
            Edition(1_234, 5, 0, 3, {"train": "0"}),
            [
                "mine: differs from the published corpus: 2 train documents instead of 1,234, 0 valid documents "
                "instead of 5, 2 labels instead of 3."
            ],
        ),
    ],
)
def test_every_difference_is_one_line(monkeypatch, caplog, edition, said):
    monkeypatch.setitem(KNOWN, "mine", Known((edition,), ""))
    warn_of_differences(Corpus(TRAIN, name="mine"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * len(said)
    assert all(part in record.getMessage() for part, record in zip(said, caplog.records, strict=True))


def test_a_folder_may_have_another_name(tmp_path):
    assert folder_of("aapd", tmp_path) == tmp_path / "aapd"
    (tmp_path / "aapd_recon").mkdir()
    assert folder_of("aapd", tmp_path) == folder_of("aapd-extra", tmp_path) == tmp_path / "aapd_recon"
    (tmp_path / "aapd").mkdir()
    assert folder_of("aapd", tmp_path) == tmp_path / "aapd"
    assert folder_of("unheard-of", tmp_path) == tmp_path / "unheard-of"


@pytest.mark.slow
def test_aapd_is_known_as_a_reconstruction(caplog):
    corpus = aapd.load_extra(folder("aapd"))
    assert sizes(corpus) == (44_038, 1_000, 1_000)
    assert (len(corpus.labels), corpus.name) == (54, "aapd-extra")
    assert len({document.id for document in corpus.train}) == 44_038
    assert warnings(caplog, "aapd") == [
        "aapd: this train split is a reconstruction with 40,827 instead of the published 53,840 documents."
    ]
    assert not warnings(caplog, "aapd-extra")


@pytest.mark.slow
def test_sgms_files_of_aapd_give_the_same_corpus(tmp_path, caplog):
    corpus = aapd.load(folder("aapd"))
    assert sizes(corpus) == (40_827, 1_000, 1_000)
    for part, called in {"train": "train", "valid": "val", "test": "test"}.items():
        rows = getattr(corpus, part)
        (tmp_path / f"text_{called}").write_text("".join(f"{row.text}\n" for row in rows), encoding="utf-8")
        (tmp_path / f"label_{called}").write_text("".join(f"{' '.join(row.labels)}\n" for row in rows))
    caplog.clear()
    again = aapd.load(tmp_path)
    assert len(warnings(caplog, "aapd")) == 1  # a reconstruction again: the same digests
    assert "reconstruction" in caplog.text
    assert again.labels == corpus.labels


def test_amazon_is_known_as_a_subset(caplog):
    corpus = amazon531.load(folder("amazon531"))
    assert sizes(corpus) == (4_697, 500, 700)
    (said,) = warnings(caplog, "amazon531")
    assert "5,897 of the 29,487 published training documents" in said


def test_reuters_is_as_published_and_gets_a_validation_part(caplog):
    corpus = reuters21578.load(folder("reuters21578"))
    assert sizes(corpus) == (6_993, 777, 3_019)
    assert len(corpus.labels) == 90
    assert len({document.id for document in (*corpus.train, *corpus.valid)}) == 7_770
    assert not warnings(caplog, "reuters21578")


@pytest.mark.slow
def test_reuters_is_the_same_from_sgml(tmp_path, caplog):
    corpus = reuters21578.load(folder("reuters21578"))
    stories = [(story, "TRAIN") for story in (*corpus.train, *corpus.valid)]
    stories += [(story, "TEST") for story in corpus.test]
    stories.sort(key=lambda story: int(story[0].id))
    lines = [[] for _ in reuters21578.FILES]
    for row, (story, part) in enumerate(stories):
        title, _, body = html.escape(story.text, quote=False).partition("\n")
        topics = "".join(f"<D>{label}</D>" for label in story.labels)
        text = f"<TITLE>{title}</TITLE>" + (f"<BODY>{body}\n Reuter\n&#3;</BODY>" if body else "Blah blah blah.\n&#3;")
        lines[row * len(lines) // len(stories)].append(
            f'<REUTERS TOPICS="YES" LEWISSPLIT="{part}" NEWID="{story.id}">\n<TOPICS>{topics}</TOPICS>\n'
            f"<PLACES><D>usa</D></PLACES>\n<TEXT>&#2;\n{text}</TEXT>\n</REUTERS>\n"
        )
    for name, content in zip(reuters21578.FILES, lines, strict=True):
        (tmp_path / name).write_text("".join(content), encoding="latin-1")
    again = reuters21578.load(tmp_path)
    assert not warnings(caplog, "reuters21578")  # so the contents are the published ones
    assert again == corpus


@pytest.mark.slow
def test_goemotions_is_as_published_from_either_format(tmp_path, caplog):
    corpus = goemotions.load(folder("goemotions"))
    assert sizes(corpus) == (43_410, 5_426, 5_427)
    assert sum(len(document.labels) for document in corpus.train) / 43_410 == pytest.approx(1.18, abs=0.01)
    names = sorted(corpus.labels.names)
    (tmp_path / "labels.txt").write_text("\n".join(names))
    for part, file in goemotions.FILES.items():
        rows = (
            f"{row.text}\t{','.join(str(names.index(label)) for label in row.labels)}\t{row.id}"
            for row in getattr(corpus, part)
        )
        (tmp_path / file).write_text("\n".join(rows) + "\n", encoding="utf-8", newline="")
    assert goemotions.load(tmp_path) == corpus
    assert not warnings(caplog, "goemotions")


@pytest.mark.slow
def test_eurlex_is_as_published(caplog):
    corpus = eurlex57k.load(folder("eurlex57k"))
    assert sizes(corpus) == (45_000, 6_000, 6_000)
    assert len(corpus.labels) == 4_271
    assert not warnings(caplog, "eurlex57k")

"""Published corpora are read whole and checked against their published sizes."""

from pathlib import Path

import pytest

from denn.data import goemotions, reuters21578
from denn.data.corpus import read_published
from denn.errors import DataError

DATA = Path(__file__).parents[3] / "shared" / "data"


def folder(name):
    if not (DATA / name).is_dir():
        pytest.skip(f"the corpus {name} is not here")
    return DATA / name


def test_reuters_has_its_published_size_and_a_validation_part():
    corpus = reuters21578.load(folder("reuters21578"))
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (6993, 777, 3019)
    assert len(corpus.labels) == 90
    assert corpus.name == "reuters21578"
    assert len({document.id for document in (*corpus.train, *corpus.valid)}) == 7770


def test_goemotions_has_its_published_size():
    corpus = goemotions.load(folder("goemotions"))
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (43410, 5426, 5427)
    assert sum(len(document.labels) for document in corpus.train) / 43410 == pytest.approx(1.18, abs=0.01)


def test_another_size_and_missing_parts_are_named(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "x", "labels": ["a"]}\n')
    with pytest.raises(DataError, match=r"there is no test\.jsonl or test\.jsonl\.zst of reuters21578"):
        reuters21578.load(tmp_path)
    (tmp_path / "test.jsonl").write_text('{"text": "x", "labels": ["a"]}\n')
    said = (
        r"not reuters21578 as published \(train: got 1, published 7,770; test: got 1, .*labels: got 1, published 90\)"
    )
    with pytest.raises(DataError, match=said):
        reuters21578.load(tmp_path)
    assert read_published(tmp_path, "tiny", {"train": 1, "test": 1}, labels=1).test[0].text == "x"

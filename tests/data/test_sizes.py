"""The published sizes that are listed are those the loaders ask for."""

import pytest

from denn.data.known import KNOWN
from denn.errors import DataError
from denn.registry import CORPORA, lookup


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - {"debian"}))
def test_listed_sizes_are_those_of_the_loader(name, tmp_path):
    known = KNOWN[name]
    sizes = {part: size for part in ("train", "valid", "test") if (size := getattr(known, part))}
    for part in sizes:
        (tmp_path / f"{part}.jsonl").write_text('{"text": "x", "labels": ["a"]}\n')
    with pytest.raises(DataError) as error:
        lookup(CORPORA, name, "corpus")(tmp_path)
    said = [f"{part}: got 1, published {size:,}" for part, size in {**sizes, "labels": known.labels}.items()]
    assert f"({'; '.join(said)})" in str(error.value)

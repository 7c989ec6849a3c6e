"""A model that needs no encoder, and Parquet files of texts."""

import pytest
from batch_inputs import write_lines, write_parquet

import denn
from denn.batch.partitions import Reading
from denn.batch.tasks import Predict
from denn.cli.partitioned import digest_of


@pytest.fixture(scope="session")
def dummy(tmp_path_factory, tiny_corpus):
    """The folder of a model of the method dummy."""
    folder = tmp_path_factory.mktemp("models") / "dummy"
    denn.train(tiny_corpus, out=folder, method="dummy").close()
    return folder


@pytest.fixture
def inputs(tmp_path):
    """The pattern of two Parquet files with 25 and 10 rows."""
    write_parquet(tmp_path / "in" / "a.parquet", 0, 25)
    write_parquet(tmp_path / "in" / "b.parquet", 25, 10)
    return str(tmp_path / "in" / "*.parquet")


@pytest.fixture
def lines(tmp_path):
    """The pattern of four JSON-lines files with 35 texts."""
    write_lines(tmp_path / "in", a=range(10), b=range(10, 20), c=range(20, 25), d=range(25, 35))
    return str(tmp_path / "in" / "*.jsonl")


@pytest.fixture
def task(dummy, tmp_path):
    return Predict(dummy, digest_of(dummy), tmp_path / "out", Reading())

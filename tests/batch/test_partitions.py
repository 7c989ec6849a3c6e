"""Files become partitions: every row is in exactly one."""

import pytest
from batch_inputs import write_parquet
from hypothesis import given
from hypothesis import strategies as st

from denn.batch.partitions import Partition, Reading, find, plan, state_of
from denn.cli.partitioned import is_pattern
from denn.data.parquet_decoder import between, extent
from denn.errors import DataError


class Metadata:
    """Row groups of these sizes."""

    def __init__(self, sizes):
        self.num_row_groups, self.sizes = len(sizes), sizes

    def row_group(self, number):
        return type("Group", (), {"num_rows": self.sizes[number]})


class Rows(list):
    """A batch of rows."""

    @property
    def num_rows(self):
        return len(self)

    def slice(self, start, count):
        return Rows(self[start : start + count])


@given(st.lists(st.integers(0, 6), max_size=6), st.integers(0, 30), st.none() | st.integers(0, 30), st.integers(1, 5))
def test_an_extent_is_a_slice_of_the_rows(sizes, first, rows, batch):
    numbers = iter(range(sum(sizes)))
    groups = [[next(numbers) for _ in range(size)] for size in sizes]
    chosen, skipped, count = extent(Metadata(sizes), first, rows)
    flat = [row for number in chosen for row in groups[number]]
    batches = [Rows(flat[start : start + batch]) for start in range(0, len(flat), batch)]
    found = [row for part in between(iter(batches), skipped, count) for row in part]
    everything = list(range(sum(sizes)))
    assert found == (everything[first:] if rows is None else everything[first : first + rows])


@pytest.mark.slow  # a process decodes each partition
def test_partitions_cover_every_row_once_in_order(inputs):
    partitions = plan(find(inputs), Reading(), 10)
    assert [(one.name, one.size) for one in partitions] == [
        ("a.parquet.0000000000", 10),
        ("a.parquet.0000000010", 10),
        ("a.parquet.0000000020", 5),
        ("b.parquet.0000000000", 10),
    ]
    rows = [row for one in partitions for row in Reading().texts(one)]
    assert rows == [(f"text number {n}", f"t{n}") for n in range(35)]


@pytest.mark.slow  # a process decodes each partition
def test_errors_name_the_row_of_the_file(tmp_path):
    write_parquet(tmp_path / "bad.parquet", 0, 20, texts=[None if n == 13 else "x" for n in range(20)])
    second = plan(find(str(tmp_path / "bad.parquet")), Reading(), 10)[1]
    with pytest.raises(DataError, match=r"bad.parquet, row 14: "):
        list(Reading().texts(second))


def test_other_files_are_one_partition_each(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("one.jsonl", "deep/two.jsonl", "deep/er/two.jsonl", ".hidden.jsonl", "deep/.hidden.jsonl"):
        (tmp_path / name).write_text('{"text": "x"}\n')
    partitions = plan(find(str(tmp_path / "**" / "*.jsonl")), Reading())
    assert [(one.name, one.size) for one in partitions] == [
        ("deep/er/two.jsonl", None),
        ("deep/two.jsonl", None),
        ("one.jsonl", None),
    ]


def test_an_empty_file_has_a_partition_without_rows(tmp_path):
    write_parquet(tmp_path / "none.parquet", 0, 0)
    (only,) = plan(find(str(tmp_path / "none.parquet")), Reading())
    file = tmp_path / "none.parquet"
    assert only == Partition("none.parquet.0000000000", file, (0, 0), state_of(file))
    assert list(Reading().texts(only)) == []


def test_a_name_with_brackets_is_a_file_if_it_exists(tmp_path):
    (tmp_path / "x[1].jsonl").write_text('{"text": "x"}\n')
    assert list(find(str(tmp_path / "x[1].jsonl"))) == ["x[1].jsonl"]


def test_bad_inputs_are_reported_before_any_work(tmp_path, inputs):
    with pytest.raises(DataError, match=r"is a folder. Give a file or a pattern in quotes"):
        find(str(tmp_path))
    with pytest.raises(DataError, match=r"no such file. Check the path or the pattern"):
        find(str(tmp_path / "*.nothing"))
    with pytest.raises(DataError, match="there is no column 'body'; found: 'id', 'text'"):
        plan(find(inputs), Reading("body"))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match=r"broken.parquet: not a Parquet file, or truncated or damaged"):
        plan(find(str(tmp_path / "broken.parquet")), Reading())


def test_a_pattern_that_is_not_valid(tmp_path):
    with pytest.raises(DataError, match=r"\*\*\.jsonl is not a valid pattern"):
        find(str(tmp_path / "**.jsonl"))
    assert not is_pattern("What **is** this?")

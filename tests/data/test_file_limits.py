"""Files that would exhaust memory, time or disk space are rejected with a sentence that names the limit."""

import gzip
import lzma
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from denn.data import compressed, parquet
from denn.data.corpus import read_documents
from denn.data.files import iterate_texts
from denn.data.parquet_decoder import pieces
from denn.errors import DataError

pytestmark = pytest.mark.slow

GOOD = b'{"text": "x", "labels": ["y"]}\n'
MEMORY = 2 << 30  # bytes that a reader may use, including its imports

READ = """
import pathlib, sys
from denn.data.corpus import read_documents
from denn.errors import DataError
try:
    documents, report = read_documents(sys.argv[1], skip_bad="skip" in sys.argv)
    print(len(documents))
except DataError as error:
    print(error)
status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss begins with that of the process before
print(1024 * int(status.split("VmHWM:")[1].split()[0]))
"""


def read_apart(path, *arguments):
    """Read a file in another process; return its output and peak memory."""
    command = [sys.executable, "-c", READ, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said, peak = done.stdout.splitlines()
    return said, int(peak)


def as_lz4(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESS = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
    ".lz4": as_lz4,
}


@pytest.mark.slow
@pytest.mark.parametrize("compression", COMPRESS)
def test_a_line_without_end_is_refused_in_time_and_memory(tmp_path, compression):
    path = tmp_path / f"a.jsonl{compression}"
    piece = COMPRESS[compression](b"a" * (100 << 20))
    path.write_bytes(COMPRESS[compression](b'{"text": "') + 4 * piece)  # 400 MB; streams follow each other
    begun = time.monotonic()
    said, peak = read_apart(path)
    assert said == f"{path}, line 1: it has more than 32 MiB, the limit for a row. Split the text."
    assert peak < 400 << 20
    assert time.monotonic() - begun < 10


@pytest.mark.slow
def test_a_zst_file_that_expands_much_is_read_in_linear_time(tmp_path):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(
        zstandard.compress(GOOD[:-1] + b" " * 10_000 + b"\n") + zstandard.compress((b" " * 999 + b"\n") * 400_000)
    )
    assert path.stat().st_size < 100_000
    begun = time.monotonic()
    with compressed.open_bytes(path) as stream:
        assert sum(len(piece) for piece in iter(lambda: stream.read(1 << 20), b"")) >= 400_000_000
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".txt"])
@pytest.mark.parametrize("compression", ["", *COMPRESS])
def test_the_limit_of_a_row_holds_in_every_format(tmp_path, monkeypatch, suffix, compression):
    for module in ("compressed", "files"):
        monkeypatch.setattr(f"denn.data.{module}.LONGEST_ROW", 1000)
    head = {".csv": "text,labels\n", ".tsv": "text\tlabels\n"}.get(suffix, "")
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(COMPRESS.get(compression, bytes)(f"{head}{'x' * 2000}".encode()))
    with pytest.raises(DataError, match=rf"line {2 if head else 1}: it has more than .* the limit for a row"):
        list(iterate_texts(path))


def test_a_quote_that_is_never_closed_does_not_swallow_the_file(tmp_path, monkeypatch):
    for module in ("compressed", "files"):
        monkeypatch.setattr(f"denn.data.{module}.LONGEST_ROW", 1000)
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,labels\nx,y\n"never closed,y\n' + b"x,y\n" * 1000)
    with pytest.raises(DataError, match=r"a\.csv, line 3: it has more than .* Check for a quote") as caught:
        read_documents(path, skip_bad=True)
    assert len(str(caught.value)) < 400


def test_an_endless_stream_is_refused():
    with (
        Path("/dev/zero").open("rb") as endless,
        pytest.raises(DataError, match="/dev/zero, line 1: it has more than 32"),
    ):
        list(iterate_texts(endless))


@pytest.mark.parametrize("compression", COMPRESS)
def test_a_file_that_expands_beyond_measure_is_refused(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(compressed, "FREE", 1 << 20)
    monkeypatch.setattr(compressed, "EXPANSION", 20)
    path = tmp_path / f"a.jsonl{compression}"
    path.write_bytes(COMPRESS[compression](GOOD * 50_000))
    with pytest.raises(DataError, match=r"expands to more than 20 times its size and more than .* GiB, the limit"):
        read_documents(path)
    monkeypatch.setattr(compressed, "FREE", 1 << 30)  # a file that merely compresses well is read
    assert len(read_documents(path)[0]) == 50_000


def test_decompressing_must_not_need_much_memory(tmp_path):
    xz = bytearray(lzma.compress(GOOD, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 4096}]))
    xz[16] = 40  # in the header of the block: the code of the largest dictionary, 4 GiB
    xz[20:24] = zlib.crc32(xz[12:20]).to_bytes(4, "little")
    window = zstandard.ZstdCompressionParameters.from_level(3, window_log=30)
    frame = zstandard.ZstdCompressor(compression_params=window).compressobj()
    for name, content in (("a.jsonl.xz", bytes(xz)), ("a.jsonl.zst", frame.compress(GOOD) + frame.flush())):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="decompressing it needs more than 192 MiB of memory, the limit"):
            read_documents(tmp_path / name)


def write_parquet(path, table, **options):
    pq.write_table(pa.table(table), path, compression="zstd", **options)
    return path


def texts(*values):
    return {"text": pa.array(values, pa.large_string()), "labels": pa.array([["y"]] * len(values))}


def test_large_rows_of_parquet_are_read_and_larger_ones_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", texts("x" * 10_000_000, "z" * 10_000_000, "w" * 20_000_000))
    assert [len(document.text) for document in read_documents(path)[0]] == [10_000_000, 10_000_000, 20_000_000]
    write_parquet(path, texts("x", "y" * (33 << 20)))
    with pytest.raises(DataError, match=r"a\.parquet: a row is too long: it has more than 32 MiB, the limit"):
        read_documents(path)


@pytest.mark.slow
def test_a_dictionary_of_long_texts_takes_little_memory(tmp_path):
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["x" * (20 << 20)]))
    path = write_parquet(tmp_path / "a.parquet", {"text": words, "labels": pa.array([["y"]] * 5000)})
    assert path.stat().st_size < 100_000
    said, peak = read_apart(path)
    assert said.startswith(f"{path}: it expands to more than 1,000 times its size and more than 1 GiB, the limit")
    assert peak < MEMORY


@pytest.mark.slow
def test_a_list_of_long_labels_takes_little_memory(tmp_path):
    label = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["x" * 500_000]))
    labels = pa.ListArray.from_arrays(pa.array([0, 100_000], pa.int32()), label)
    path = write_parquet(tmp_path / "a.parquet", {"text": ["a"], "labels": labels})
    assert path.stat().st_size < 100_000
    said, peak = read_apart(path)
    assert said == f"{path}: decoding it needs more than 1.5 GiB of memory, the limit."
    assert peak < MEMORY


def test_billions_of_rows_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    nothing = pa.table({"text": pa.nulls(10_000_000, pa.string()), "labels": pa.nulls(10_000_000, pa.string())})
    pq.write_table(nothing, path, row_group_size=10_000_000, data_page_size=1 << 30)
    assert path.stat().st_size < 1_000_000
    begun = time.monotonic()
    with pytest.raises(DataError, match="expands to more than 1,000 times its size and more than 1 GiB"):
        read_documents(path)
    assert time.monotonic() - begun < 10


def test_a_page_that_declares_a_huge_size_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", texts("x" * 1000), use_dictionary=False)
    content = path.read_bytes()
    place = content.index(b"\x15", 5)  # the second field of the page's header, in Thrift's compact form
    end = place + 1
    while content[end] & 0x80:
        end += 1
    path.write_bytes(content[: place + 1] + varint(2 * (2**31 - 1)) + content[end + 1 :])
    with pytest.raises(DataError, match=r"a\.parquet: "):
        read_documents(path)


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_deeply_nested_and_foreign_types_are_refused(tmp_path):
    kind = pa.string()
    for _ in range(20):
        kind = pa.list_(kind)
    path = tmp_path / "a.parquet"
    for column in (pa.nulls(2, kind), pa.nulls(2, pa.timestamp("ns")), pa.nulls(2, pa.struct({"a": pa.string()}))):
        pq.write_table(pa.table({"text": column, "labels": ["y", "z"]}), path)
        with pytest.raises(DataError, match=r"the column 'text' has the type .*; expected strings or lists of strings"):
            read_documents(path)


def test_a_column_of_few_different_texts_is_read_in_large_pieces(tmp_path):
    names = [f"label number {number:05d} with a long name" for number in range(1500)]
    labels = pa.array([names[row % 1500] for row in range(20_000)]).dictionary_encode()
    numbers = pa.array([row % 7 for row in range(20_000)]).dictionary_encode()
    table = pa.table({"text": [f"text {row}" for row in range(20_000)], "labels": labels, "other": numbers})
    (batch,) = table.to_batches()
    assert [len(piece) for piece in pieces(batch, 32 << 20)] == [20_000]
    longest = len(names[0]) + 1  # bytes that a row may take without its dictionaries
    assert max(len(piece) for piece in pieces(batch, batch.nbytes + 5000)) == 5000 // longest
    pq.write_table(table, tmp_path / "categories.parquet")
    documents, _ = read_documents(tmp_path / "categories.parquet")
    assert len(documents) == 20_000 and documents[1501].labels == (names[1],)


def test_a_decoder_that_dies_is_a_damaged_file(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", texts("x"))
    broken = tmp_path / "broken.py"
    monkeypatch.setattr(parquet, "DECODER", broken)
    for code, said in (("os.abort()", "truncated or damaged"), ("os.kill(os.getpid(), 24)", "takes too long")):
        broken.write_text(f"import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n{code}\n")
        with pytest.raises(DataError, match=said):
            read_documents(path)


def test_a_compressed_parquet_file_fills_no_disk(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(gzip.compress(b"PAR1" + bytes(1 << 20)))
    monkeypatch.setattr(parquet, "BIGGEST_COPY", 1 << 20)
    with pytest.raises(DataError, match=r"decompresses to more than .* GiB, the limit for compressed Parquet files"):
        read_documents(path)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("wb"))
    with pytest.raises(DataError, match=r"cannot be decompressed to .* \(No space left on device\)"):
        read_documents(path)


def test_reading_may_stop_early(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", texts(*(str(number) for number in range(5000))))
    rows = iterate_texts(path)
    assert next(rows) == ("0", None)
    rows.close()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}", "the text is a list"),
        (b'{"text": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}", "the text is an object"),
        (b'{"labels": [' + b'"%s\\nb"' % (b"a" * 100_000) + b'], "text": "x"}', "'aaa.*…' contains a line break"),
        (b"{" + b",".join(b'"%d": 0' % number for number in range(100_000)) + b"}", "'19' and more"),
        (b'{"%s": 0}' % (b"a" * 100_000), "there is no column 'text'; found: 'aaa"),
        (
            b'{"text": "x", "labels": "y", "id": "%s"}\n' % (b"i" * 100_000) * 2,
            "the id 'iii.*…' is already used in line 2",
        ),
    ],
)
def test_a_message_stays_short_and_comes_soon(tmp_path, line, said):
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + line)
    begun = time.monotonic()
    with pytest.raises(DataError, match=said) as caught:
        read_documents(path)
    assert len(str(caught.value)) < 800
    assert time.monotonic() - begun < 5


@pytest.mark.slow
def test_a_file_of_bad_rows_takes_little_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    peaks = []
    for bad in (1, 300_000):
        path.write_bytes(GOOD + b"{\n" * bad)
        said, peak = read_apart(path, "skip")
        assert said == "1"
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 20 << 20


def test_what_follows_the_first_stream_of_xz_is_read_or_refused(tmp_path):
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(lzma.compress(GOOD) + bytes(8) + lzma.compress(GOOD) + bytes(70_000))
    assert len(read_documents(path)[0]) == 2
    path.write_bytes(lzma.compress(GOOD) + b"damage")
    with pytest.raises(DataError, match="cannot be read"):
        read_documents(path)

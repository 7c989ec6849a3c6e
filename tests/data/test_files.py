"""Files of every format and compression, and errors for invalid ones."""

import gzip
import io
import json
import lzma
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from denn.data.corpus import read_documents
from denn.data.files import iterate_texts
from denn.errors import DataError, MissingExtraError
from denn.types import Document

DOCUMENTS = [
    Document("wheat and maize", ("grain", "wheat"), "a"),
    Document('a "quoted", text\r\nin two lines', ("trade",), "b", ("grain", "wheat")),
    Document("ünï\u2028cödé", (), "c", ("trade",)),
]
ROWS = [
    {
        "text": document.text,
        "labels": list(document.labels),
        "id": document.id,
        "rejected": list(document.rejected),
    }
    for document in DOCUMENTS
]


def as_jsonl():
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def as_table(delimiter):
    quoted = (f'"{row["text"].replace(chr(34), chr(34) * 2)}"' for row in ROWS)
    lines = [
        delimiter.join((row["id"], text, f'"{"|".join(row["labels"])}"', "|".join(row["rejected"])))
        for row, text in zip(ROWS, quoted, strict=True)
    ]
    return "\n".join([delimiter.join(("id", "text", "labels", "rejected")), *lines, ""]).encode()


def as_parquet():
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), buffer)
    return buffer.getvalue()


def as_lz4(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


FORMATS = {
    ".jsonl": as_jsonl(),
    ".ndjson": as_jsonl(),
    ".csv": as_table(","),
    ".tsv": as_table("\t"),
    ".parquet": as_parquet(),
}
COMPRESSIONS = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
    ".lz4": as_lz4,
}


PARQUET = pytest.param(".parquet", marks=pytest.mark.slow)  # a process decodes it


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("suffix", [PARQUET if suffix == ".parquet" else suffix for suffix in FORMATS])
def test_every_format_and_compression_gives_the_same_documents(tmp_path, suffix, compression):
    path = write(tmp_path, f"train{suffix}{compression}", COMPRESSIONS[compression](FORMATS[suffix]))
    documents, report = read_documents(path)
    assert documents == DOCUMENTS
    assert (report.rows, report.bad, report.unlabelled) == (3, 0, 1)
    assert list(iterate_texts(path)) == [(document.text, document.id) for document in DOCUMENTS]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.zst", "a.csv.lz4"])
def test_a_file_that_needs_pyarrow_says_so(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=r"^Reading .* files needs .* Run: pip install 'denn\[parquet\]'$"):
        read_documents(write(tmp_path, name, b"not read"))


def test_a_zst_file_of_several_frames_is_read_to_its_end(tmp_path):
    frames = b"".join(zstandard.compress(line) for line in as_jsonl().splitlines(keepends=True)) + zstandard.compress(
        b""
    )
    assert read_documents(write(tmp_path, "a.jsonl.zst", frames))[0] == DOCUMENTS


@pytest.mark.parametrize("compression", [".gz", ".xz", ".zst", ".lz4"])
@pytest.mark.parametrize("keep", [0.3, 0.9])
def test_a_truncated_file_is_named(tmp_path, compression, keep):
    whole = COMPRESSIONS[compression](as_jsonl())
    path = write(tmp_path, f"a.jsonl{compression}", whole[: int(len(whole) * keep)])
    with pytest.raises(DataError, match=rf"a\.jsonl{compression}: the compressed file is truncated"):
        read_documents(path)


@pytest.mark.parametrize("compression", [".gz", ".xz", ".zst", ".lz4"])
def test_a_file_that_is_not_compressed_as_it_says_is_named(tmp_path, compression):
    with pytest.raises(DataError, match=rf"a\.jsonl{compression}: cannot be read"):
        read_documents(write(tmp_path, f"a.jsonl{compression}", as_jsonl()))


@pytest.mark.parametrize("content", [b"", b"PAR1 no", as_parquet()[:-9]])
def test_a_broken_parquet_file_is_named(tmp_path, content):
    with pytest.raises(DataError, match=r"a\.parquet: not a Parquet file"):
        read_documents(write(tmp_path, "a.parquet", content))


def test_a_parquet_value_that_is_not_utf8_is_a_bad_row(tmp_path):
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    pq.write_table(pa.table({"text": broken, "labels": [["x"]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row 1: byte 0xff at position 1 is not UTF-8"):
        read_documents(tmp_path / "a.parquet")


def test_missing_files_folders_and_unknown_extensions_are_named(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_documents(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is a folder, expected a file"):
        read_documents(str(tmp_path))
    with pytest.raises(DataError, match=r"unknown extension '\.xlsx'; expected \.jsonl, .*\.csv, .*\.parquet.*\.gz"):
        read_documents(write(tmp_path, "a.xlsx", b""))
    with pytest.raises(DataError, match=r"unknown extension '\.xlsx'; expected .*\.txt"):
        list(iterate_texts(tmp_path / "a.xlsx"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b"", "there are no rows"),
        ("a.jsonl", b"\n \n", "there are no rows"),
        ("a.csv", b"", "the file is empty; expected a header"),
        ("a.csv", b'"text"s,labels\n', r"not well-formed CSV .*; expected a header line"),
        ("a.csv", b"text,labels\n", "there are no rows"),
        ("a.csv", b"text,labels,\xffid\nx,y,1\n", r"line 1: byte 0xff in the field .* is not UTF-8"),
        ("a.jsonl.gz", b"", "the compressed file is truncated"),
        ("a.jsonl.xz", b"", "the compressed file is truncated"),
        ("a.jsonl.zst", b"", "the compressed file is truncated"),
        ("a.jsonl.lz4", b"", "the compressed file is truncated"),
        ("a.csv", b"txt,labels\nx,y\n", r"no column 'text'; found: 'txt', 'labels'.*Did you mean 'txt'"),
        ("a.jsonl", b'{"text": "x", "label": ["y"]}\n', r"no column 'labels'; found: 'text', 'label'.*mean 'label'"),
        ("a.jsonl", b'{"body": "x", "labels": []}\n', r"line 1: there is no column 'text'; found: 'body', 'labels'"),
    ],
)
def test_a_file_without_rows_or_columns_is_refused(tmp_path, name, content, said):
    with pytest.raises(DataError, match=said):
        read_documents(write(tmp_path, name, content))


GOOD = b'{"text": "x", "labels": ["y"]}\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "caf\xe9", "labels": []}', "byte 0xe9 at position 14 is not UTF-8"),
        (b'{"text": "a\\ud800", "labels": []}', "lone surrogate"),
        (b'{"text": "a\\u0000", "labels": []}', "NUL"),
        (b'{"text": "a\x00", "labels": []}', "not JSON"),
        (b'{"text": "a", "labels": [', "not JSON"),
        (b"[1, 2]", "expected a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": ' + b"9" * 5000 + b"}", "a number has more than 4,300 digits"),
        (b'{"text": 3, "labels": []}', r"the text is a number \(3\)"),
        (b'{"text": "a", "labels": 3}', "label column has the wrong type"),
    ],
)
def test_a_bad_line_of_json_is_named_and_can_be_skipped(tmp_path, line, said):
    path = write(tmp_path, "a.jsonl", GOOD + b"\n" + line + b"\r\n" + GOOD)
    with pytest.raises(DataError, match=rf"a\.jsonl, line 3: .*{said}.*Bad rows: 1 of 3.*--skip-bad"):
        read_documents(path)
    documents, report = read_documents(path, skip_bad=True, part="train")
    assert [document.id for document in documents] == ["train-1", "train-3"]
    assert (report.rows, report.bad) == (3, 1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"caf\xe9,y", "byte 0xe9 in the field .* is not UTF-8"),
        (b"a,b,c", "got 3 fields, expected 2"),
        (b'"a"b,c', "not well-formed CSV"),
        (b"a\0,b", "NUL"),
    ],
)
def test_a_bad_line_of_csv_is_named_and_can_be_skipped(tmp_path, line, said):
    path = write(tmp_path, "a.csv", b'text,labels\r\n"two\nlines",y\r\n\r\n' + line + b"\r\nlast,y\r\n")
    with pytest.raises(DataError, match=rf"a\.csv, line 5: .*{said}.*Bad rows: 1 of 3"):
        read_documents(path)
    documents, report = read_documents(path, skip_bad=True)
    assert [document.text for document in documents] == ["two\nlines", "last"]
    assert report.bad == 1


def test_a_quote_that_is_never_closed_is_a_bad_row(tmp_path):
    with pytest.raises(DataError, match=r"line 3: not well-formed CSV \(unexpected end of data\)"):
        read_documents(write(tmp_path, "a.csv", b'text,labels\na,b\n"c,d\ne,f\n'))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_byte_order_marks_and_carriage_returns_are_accepted(tmp_path, name):
    content = {"a.jsonl": GOOD, "a.csv": b"text,labels\nx,y\n"}[name]
    path = write(tmp_path, name, b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    assert read_documents(path)[0] == [Document("x", ("y",), "document-1")]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv"])
def test_texts_of_ten_megabytes_are_read(tmp_path, name):
    text = "wörd " * 2_000_000
    content = {
        "a.jsonl.gz": lambda: gzip.compress(json.dumps({"text": text, "labels": ["x"]}).encode(), 1),
        "a.csv": lambda: f"text,labels\n{text},x\n".encode(),
    }[name]()
    [document], _ = read_documents(write(tmp_path, name, content))
    assert document.text == text


def test_texts_come_from_plain_and_json_lines_alike(tmp_path):
    content = '\ufeffplain\r\n\n{"text": "js\\non", "id": 7}\n\n  spaced\u2028out \n \n'
    expected = [("plain", None), ("", None), ("js\non", "7"), ("  spaced\u2028out ", None), ("", None)]
    assert list(iterate_texts(write(tmp_path, "a.txt", content.encode()))) == expected
    assert list(iterate_texts(write(tmp_path, "b.txt.gz", gzip.compress(content.encode())))) == expected
    assert list(iterate_texts(write(tmp_path, "noextension", content.encode()))) == expected
    assert list(iterate_texts(io.StringIO(content, newline=""))) == expected
    assert list(iterate_texts(io.BytesIO(content.encode()))) == expected
    assert list(iterate_texts(io.TextIOWrapper(io.BytesIO(content.encode()), "ascii"))) == expected


def test_a_bad_line_of_a_stream_is_named():
    for line, said in ((b'{"text": ', "not JSON"), (b"\xff", "not UTF-8"), (b'{"body": "x"}', "no column 'text'")):
        texts = iterate_texts(io.BytesIO(b"fine\n" + line + b"\n"))
        assert next(texts) == ("fine", None)
        with pytest.raises(DataError, match=f"the stream, line 2: .*{said}"):
            next(texts)


def test_a_stream_is_read_no_further_than_asked():
    def lines():
        yield b"first\n"
        raise AssertionError("read too far")

    assert next(iterate_texts(lines())) == ("first", None)


def test_texts_need_no_labels_column(tmp_path):
    assert list(iterate_texts(write(tmp_path, "a.csv", b"id,body\n1,x\n"), text_column="body")) == [("x", "1")]


def test_readers_import_nothing_heavy():
    heavy = "{'torch', 'pandas', 'polars', 'pyarrow', 'datasets'} & set(sys.modules)"
    code = f"import sys, denn.data.files, denn.data.frames, denn.data.corpus; sys.exit(bool({heavy}))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

"""Corpus files of every format and compression, damaged in many ways; the number of a case decides all of it."""

import gzip
import io
import json
import lzma
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

SEED = 20_261_117
LICENSE = Path(__file__).parents[2] / "LICENSE"
HUGE = [0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**62, 2**63 - 1, 2**64 - 1]
EXPANDED = 100 << 20  # bytes of a bomb


@dataclass(frozen=True)
class Case:
    number: int
    kind: str  # how it is damaged
    format: str
    compression: str
    name: str  # of the file
    content: bytes


def make_case(number: int) -> Case:
    """Make a case by its number."""
    lot = random.Random(f"{SEED} {number}")
    kind = lot.choices(list(KINDS), [weight for _, weight in KINDS.values()])[0]
    format = lot.choices([".jsonl", ".csv", ".tsv", ".txt", ".parquet"], [8, 8, 5, 2, 3])[0]
    compression = lot.choice(["", *COMPRESSORS])
    content, suffix = KINDS[kind][0](lot, format, compression)
    return Case(number, kind, format, compression, f"case{suffix}", content)


@cache
def rows() -> list[dict[str, object]]:
    paragraphs = [part.strip() for part in LICENSE.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    words = [sorted(set(re.findall(r"[a-z]+", text.lower())[:4])) for text in paragraphs]
    return [
        {"id": f"p-{place}", "text": text, "labels": words[place][:3], "rejected": words[place][3:]}
        for place, text in enumerate(paragraphs)
    ]


@cache
def plain(format: str) -> bytes:
    """Write the rows in a format."""
    if format == ".parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows()), sink, row_group_size=20, compression="snappy")
        return sink.getvalue()
    if format == ".jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows()).encode()
    if format == ".txt":
        return "".join(str(row["text"]).replace("\n", " ") + "\n" for row in rows()).encode()
    mark = {".csv": ",", ".tsv": "\t"}[format]
    lines = [list(rows()[0]), *([row["id"], row["text"], *map("|".join, list(row.values())[2:])] for row in rows())]  # type: ignore[arg-type]
    return "".join(
        mark.join(f'"{str(cell).replace(chr(34), chr(34) * 2)}"' for cell in line) + "\n" for line in lines
    ).encode()


def as_lz4(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, 6, mtime=0),
    ".xz": lambda data: lzma.compress(data, preset=1),
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".lz4": as_lz4,
}


def compress(data: bytes, compression: str) -> bytes:
    return COMPRESSORS[compression](data) if compression else data


def flip(lot: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(lot.choice([1, 1, 2, 8])):
        changed[lot.randrange(len(changed))] ^= 1 << lot.randrange(8)
    return bytes(changed)


def flip_ends(lot: random.Random, data: bytes) -> bytes:
    """Change bytes at the beginning or the end, where headers and footers are."""
    changed = bytearray(data)
    for _ in range(lot.choice([1, 2, 4])):
        changed[lot.choice([1, -1]) * lot.randrange(1, min(64, len(changed)))] = lot.randrange(256)
    return bytes(changed)


def truncate(lot: random.Random, data: bytes) -> bytes:
    return data[: lot.choice([lot.randrange(len(data)), len(data) - lot.randrange(1, 20), lot.randrange(20)])]


def splice(lot: random.Random, data: bytes) -> bytes:
    """Leave a piece out, repeat it, or put a piece of another file there."""
    start, end = sorted(lot.randrange(len(data) + 1) for _ in range(2))
    other = compress(plain(lot.choice([".jsonl", ".csv", ".parquet"])), lot.choice(["", *COMPRESSORS]))
    place = lot.randrange(len(other))
    piece = lot.choice(
        [b"", 2 * data[start:end], other[place : place + lot.randrange(1, 5000)], other, bytes(end - start)]
    )
    return data[:start] + piece + data[end:]


def declare(lot: random.Random, data: bytes) -> bytes:
    """Overwrite some bytes with a huge number: fixed or variable length, or in digits."""
    number = lot.choice(HUGE)
    forms = [
        (number & 0xFFFFFFFF).to_bytes(4, "little"), number.to_bytes(8, "little"), varint(2 * number),
        (number & 0xFFFFFFFF).to_bytes(4, "big"), str(number**5).encode(), b"9" * 5000,
    ]  # fmt: skip
    form = lot.choice(forms)
    place = lot.choice([lot.randrange(len(data)), lot.randrange(min(40, len(data)))])
    return data[:place] + form + data[place + (len(form) if len(form) < 10 else 0) :]


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def outside(change: Callable[[random.Random, bytes], bytes]) -> Callable[..., tuple[bytes, str]]:
    """Change the final bytes of the file."""
    return lambda lot, format, compression: (
        change(lot, compress(plain(format), compression)),
        format + compression,
    )


def inside(lot: random.Random, format: str, compression: str) -> tuple[bytes, str]:
    """Change the content before it is compressed, so that checksums are right."""
    changed = lot.choice([flip, flip_ends, truncate, splice, declare])(lot, plain(format))
    return compress(changed, compression), format + compression


def rename(lot: random.Random, format: str, compression: str) -> tuple[bytes, str]:
    """Give a valid file the extensions of another format."""
    other = lot.choice([".jsonl", ".csv", ".tsv", ".txt", ".parquet"]) + lot.choice(["", *COMPRESSORS])
    return compress(plain(format), compression), other


def untouched(lot: random.Random, format: str, compression: str) -> tuple[bytes, str]:
    return compress(plain(format), compression), format + compression


def structure(lot: random.Random, format: str, compression: str) -> tuple[bytes, str]:
    """Put a line with an odd structure among valid ones."""
    deep = lot.choice([10, 900, 990, 1000, 5000, 100_000])
    line = lot.choice([
        b'{"text": ' + b"[" * deep + b"]" * deep + b"}", b'{"text":' * deep + b"1" + b"}" * deep, b"[" * deep,
        b'{"text": "x", "labels": [' + b"[]," * deep + b'"y"]}',
        b'{"text": "x", "labels": ["' + b"l" * deep + b'\\n"]}',
        b'{"text": "x", "id": ' + b"1" * deep + b"}", b'{"text": "x", "id": 1' + b"0" * deep + b'.5e999}',
        b"{" + b",".join(b'"%d": 0' % key for key in range(deep)) + b"}", b'"' + b"a,b\n" * deep, b'"' * deep,
        b"," * deep, b"\t" * deep, b"\xff" * deep, b"\0" * deep, b"\r" * deep, b"|" * deep + b",x,y",
    ])  # fmt: skip
    good = plain(format if format != ".parquet" else ".csv").splitlines(keepends=True)
    place = lot.randrange(len(good) + 1)
    content = b"".join(good[:place]) + line + lot.choice([b"\n", b""]) + b"".join(good[place:])
    return compress(content, compression), (format if format != ".parquet" else ".csv") + compression


def bomb(lot: random.Random, format: str, compression: str) -> tuple[bytes, str]:
    """Make a small file that expands to a large one."""
    if format == ".parquet":
        return compress(parquet_bomb(lot.choice(list(PARQUET_BOMBS))), compression), format + compression
    unit = {".jsonl": b'{"text": "', ".csv": b'text,labels\n"', ".tsv": b"text\tlabels\n", ".txt": b""}[format]
    fill = lot.choice([b"a", b"[],", b'{"a":[]},', b"\n", b'"', b"\0"])
    return compress(unit, compression) + repeated(fill, compression), format + compression


@cache
def repeated(fill: bytes, compression: str) -> bytes:
    size = EXPANDED if compression else 4 << 20 if fill == b"\n" else 33 << 20
    pieces = 10
    return compress(fill * (size // pieces // len(fill)), compression) * pieces  # streams may follow each other


def _dictionary(count: int, length: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * length]))


PARQUET_BOMBS: dict[str, Callable[[], dict[str, pa.Array]]] = {
    "long rows": lambda: {"text": pa.array(["x" * (50 << 20)]), "labels": pa.array([["y"]])},
    "dictionary": lambda: {"text": _dictionary(200_000, 1 << 20), "labels": _dictionary(200_000, 10)},
    "plain dictionary": lambda: {"text": pa.array(["x" * (1 << 20)] * 300), "labels": pa.array([["y"]] * 300)},
    "list": lambda: {
        "text": pa.array(["a"]),
        "labels": pa.ListArray.from_arrays(pa.array([0, 50_000], pa.int32()), _dictionary(50_000, 1 << 20)),
    },
    "rows": lambda: {"text": pa.nulls(10_000_000, pa.string()), "labels": pa.nulls(10_000_000, pa.string())},
}


@cache
def parquet_bomb(name: str) -> bytes:
    sink = io.BytesIO()
    options = {"row_group_size": 1 << 26, "dictionary_pagesize_limit": 1 << 26}
    pq.write_table(pa.table(PARQUET_BOMBS[name]()), sink, compression="zstd", **options)
    return sink.getvalue()


KINDS: dict[str, tuple[Callable[..., tuple[bytes, str]], int]] = {
    "flipped bits": (outside(flip), 20),
    "changed headers": (outside(flip_ends), 15),
    "truncated": (outside(truncate), 15),
    "spliced": (outside(splice), 15),
    "huge numbers": (outside(declare), 15),
    "changed inside": (inside, 20),
    "strange structure": (structure, 15),
    "wrong extension": (rename, 10),
    "bomb": (bomb, 6),
    "untouched": (untouched, 3),
}

"""A process that reads damaged corpus files, each in a fork of its own with little memory and time.

It takes the number of cases and a folder, and says on a line of JSON for each case how it went.
"""

import csv
import gzip
import io
import json
import lzma
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pyarrow as pa
import zstandard
from corpus_cases import Case, make_case

from denn.data.corpus import read_documents
from denn.data.files import iterate_texts
from denn.errors import DataError

SECONDS = 20  # of processor time
MEMORY = 2 << 30  # beyond what this process has
LONGEST_SENTENCE = 1500  # three bad rows, each with its place


def main() -> None:
    cases, folder = int(sys.argv[1]), Path(sys.argv[2])
    tempfile.tempdir = str(folder / "tmp")
    Path(tempfile.tempdir).mkdir()
    for number in range(cases):
        case = make_case(number)
        path = folder / case.name
        path.write_bytes(case.content)
        said = watch(case, path) | {"left": [left.name for left in Path(tempfile.tempdir).iterdir()]}
        path.unlink()
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


def watch(case: Case, path: Path) -> dict[str, object]:
    """Read in a fork, and return the outcome, the time and the memory."""
    receiver, sender = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if not child:
        os.close(receiver)
        most = MEMORY + resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        signal.alarm(6 * SECONDS)  # a machine may be busy
        os.write(sender, json.dumps(judge(path)).encode()[:60_000])
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver) as stream:
        said = stream.read()
    _, status, used = os.wait4(child, 0)
    outcome = json.loads(said) if status == 0 else ["fault", f"ended with the status {status}"]
    return {
        "number": case.number, "kind": case.kind, "format": case.format, "compression": case.compression,
        "name": case.name, "outcome": outcome[0], "said": outcome[1], "seconds": round(time.monotonic() - begun, 3),
        "memory": 1024 * used.ru_maxrss,
    }  # fmt: skip


def judge(path: Path) -> tuple[str, str]:
    """Read a file and return whether it was read, rejected, or neither correctly."""
    try:
        if ".txt" in path.suffixes:
            texts = [text for text, _ in iterate_texts(path)]
        else:
            texts = [document.text for document in read_documents(path)[0]]
    except DataError as error:
        said = str(error)
        good = "\n" not in said and len(said) < LONGEST_SENTENCE and str(path) in said and said.endswith(".")
        return ("refused" if good else "fault"), said[:2000]
    except BaseException:
        return "fault", traceback.format_exc()[-2000:]
    try:
        expected = reference(path)
    except Exception as error:  # whatever the other libraries raise
        return "fault", f"read {len(texts)} texts of a file that is not right: {repr(error)[:500]}"
    right = expected is None or expected == texts
    return ("read", "") if right else ("fault", "the texts are not those that other libraries read")


def reference(path: Path) -> list[str] | None:
    """Read the texts without denn; None if that is not comparable."""
    content = path.read_bytes()
    suffixes = path.suffixes
    if suffixes[-1] == ".gz":
        content = gzip.decompress(content)
    elif suffixes[-1] == ".xz":
        content = lzma.decompress(content)
    elif suffixes[-1] == ".zst":
        content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True).read()
    elif suffixes[-1] == ".lz4":
        content = pa.input_stream(io.BytesIO(content), compression="lz4").read()
    if suffixes[0] == ".jsonl":
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        return [json.loads(line)["text"] for line in lines if line.strip()]
    if suffixes[0] in (".csv", ".tsv"):
        csv.field_size_limit(1 << 30)
        mark = "\t" if suffixes[0] == ".tsv" else ","
        return [
            row["text"]
            for row in csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="\n"), delimiter=mark)
        ]
    return None


if __name__ == "__main__":
    main()

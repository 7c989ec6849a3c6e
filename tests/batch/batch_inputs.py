"""Write files of numbered texts."""

import json

import pyarrow as pa
import pyarrow.parquet as pq


def write_parquet(path, first, count, texts=None, rows_per_group=7):
    numbers = range(first, first + count)
    strings = pa.array(texts or [f"text number {n}" for n in numbers], pa.string())
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = pa.array([f"t{n}" for n in numbers], pa.string())
    pq.write_table(pa.table({"id": ids, "text": strings}), path, row_group_size=rows_per_group)


def write_lines(folder, text="text number {}".format, **files):
    """Write JSON-lines files by name, each with texts of these numbers."""
    folder.mkdir(exist_ok=True)
    for name, numbers in files.items():
        rows = (json.dumps({"id": f"t{n}", "text": text(n)}) + "\n" for n in numbers)
        (folder / f"{name}.jsonl").write_text("".join(rows))

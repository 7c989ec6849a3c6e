"""Decode Parquet from stdin to Arrow batches on stdout, with limited memory; see parquet.py.

The only argument contains the options as JSON. The first line of output is JSON: the names of all columns and the
number of rows. If the file cannot be read, the program exits with 2 and one sentence on stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

ROWS_AT_ONCE = 1024
BYTES_AT_ONCE = 16 << 20  # target size of a batch
BUFFER = 1 << 20  # bytes read at once; otherwise pyarrow reads a whole column of a row group
MOST_COLUMNS = 10_000


def main() -> None:
    """Decode the file, or explain why it cannot be decoded."""
    order = json.loads(sys.argv[1])
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_CPU", order["seconds"])
    limit("RLIMIT_AS", order["memory"])
    import pyarrow

    try:
        decode(order)
    except MemoryError:
        complain(f"decoding it needs more than {order['memory'] / 2**30:g} GiB of memory, the limit")
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        complain(f"not a Parquet file, or truncated or damaged ({(str(error).splitlines() or ['?'])[0][:200]})")


def limit(name: str, most: int) -> None:
    """Limit a resource of this process, unless the existing limit is lower or the system cannot."""
    try:
        import resource
    except ImportError:  # on Windows; parquet.py warns about it
        return
    what = getattr(resource, name)
    hard = resource.getrlimit(what)[1]
    with suppress(ValueError, OSError):
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def complain(sentence: str) -> None:
    """Write a sentence to stderr and exit with 2."""
    sys.stderr.write(sentence)
    sys.stderr.flush()
    os._exit(2)  # immediately, whatever state the library is in


def decode(order: dict[str, Any]) -> None:
    """Write the requested columns batch by batch."""
    import pyarrow
    from pyarrow import parquet

    file = parquet.ParquetFile(
        os.fdopen(0, "rb"), buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True
    )
    if len(file.schema_arrow) > MOST_COLUMNS:
        complain(f"it has {len(file.schema_arrow):,} columns; the limit is {MOST_COLUMNS:,}")
    names = file.schema_arrow.names
    matching = [name for name in names if name.startswith(tuple(order["beginnings"]))]
    wanted = [name for name in dict.fromkeys([*order["columns"], *matching]) if names.count(name) == 1]
    schema = pyarrow.schema([(name, plain_type(name, file.schema_arrow.field(name).type)) for name in wanted])
    out = sys.stdout.buffer
    out.write(json.dumps({"names": names, "rows": max(0, file.metadata.num_rows)}).encode() + b"\n")
    out.flush()
    groups, skipped, rows = extent(file.metadata, order["first"], order["rows"])
    size = batch_size(file.metadata, wanted)
    batches = file.iter_batches(size, row_groups=groups, columns=wanted, use_threads=False)
    with pyarrow.ipc.new_stream(out, schema) as stream:
        for batch in between(batches, skipped, rows):
            for piece in pieces(batch, order["longest"]):
                plain = piece.cast(schema)
                if plain.nbytes > order["longest"]:
                    complain(f"a row is too long: {order['too_long']}")
                stream.write_batch(plain)


def extent(metadata: Any, first: int, rows: int | None) -> tuple[list[int], int, float]:
    """Return the row groups that hold these rows, how many of their rows come before, and how many to read."""
    groups: list[int] = []
    skipped = before = 0
    last = float("inf") if rows is None else first + rows
    for number in range(metadata.num_row_groups):
        size = max(0, metadata.row_group(number).num_rows)
        if before < last and before + size > first:
            skipped = skipped if groups else first - before
            groups.append(number)
        before += size
    return groups, max(0, skipped), last - first


def between(batches: Iterator[Any], skipped: int, rows: float) -> Iterator[Any]:
    """Yield this many rows of the batches, after those to skip."""
    for batch in batches:
        taken = min(batch.num_rows - skipped, rows)
        if taken > 0:
            yield batch.slice(skipped, taken)
            rows -= taken
        skipped = max(0, skipped - batch.num_rows)
        if rows <= 0:
            return


def plain_type(name: str, kind: Any) -> Any:
    """Return a type without dictionaries; only strings, numbers and lists of these are accepted."""
    import pyarrow
    from pyarrow import types

    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list, types.is_list_view)
    is_list = any(test(kind) for test in lists)
    inner = kind.value_type if is_list else kind
    value = inner.value_type if types.is_dictionary(inner) else inner
    tests = (
        types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary,
        types.is_binary_view, types.is_fixed_size_binary, types.is_integer, types.is_floating, types.is_boolean,
        types.is_null,
    )  # fmt: skip
    if not any(test(value) for test in tests):
        complain(f"the column {name!r} has the type {str(kind)[:60]}; expected strings or lists of strings")
    if inner is value:
        return kind
    return pyarrow.large_list(value) if is_list else value


def batch_size(metadata: Any, wanted: list[str]) -> int:
    """Return how many rows fit into a batch, by the sizes that the file declares."""
    most = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = (group.column(place) for place in range(group.num_columns))
        size = sum(one.total_uncompressed_size for one in columns if one.path_in_schema.split(".")[0] in wanted)
        most = max(most, size // max(1, group.num_rows))
    return max(1, min(ROWS_AT_ONCE, BYTES_AT_ONCE // most))


def pieces(batch: Any, longest: int) -> Iterator[Any]:
    """Split a batch that is too large, or may be without its dictionaries; into single rows if one may be too long."""
    import pyarrow.compute as pc

    dictionaries = [column.dictionary for column in batch.columns if hasattr(column, "dictionary")]
    widest = sum(pc.max(pc.binary_length(one.cast("large_binary"))).as_py() or 0 for one in map(_as_text, dictionaries))
    if batch.nbytes + widest * batch.num_rows <= longest:
        yield batch
        return
    rows = max(1, (longest - batch.nbytes) // max(1, widest))
    yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _as_text(values: Any) -> Any:
    """Return values with a measurable length; numbers are short."""
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return values if any(test(values.type) for test in tests) else values.cast("string")


if __name__ == "__main__":
    main()

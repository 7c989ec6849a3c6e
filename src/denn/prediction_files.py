"""Write predictions as JSON lines, CSV, TSV or Parquet, in constant memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from denn.data.compressed import COMPRESSIONS
from denn.errors import ConfigError
from denn.strict_json import dumps

if TYPE_CHECKING:
    from denn.prediction_types import Prediction

Write = Callable[["str | None", str, "Prediction"], None]  # id, text, prediction

PARTS = re.compile(r"[|;,]|^\[")  # a label with one of these could be split, or read as a list
SPREADSHEETS = (".xlsx", ".xls", ".ods")  # a file of JSON lines with such a name could not be opened
ROWS = 1000  # per Parquet row group


def check_format(output: Path | None, evidence: bool) -> None:
    """Raise before any work if a table cannot include the evidence, or cannot be written here."""
    suffix = "" if output is None else output.suffix.lower()
    if suffix in SPREADSHEETS:
        raise ConfigError(f"{suffix} files cannot be written. Give an --output that ends with .csv.")
    if suffix in COMPRESSIONS:
        raise ConfigError(f"{suffix} files cannot be written. Give an --output without {suffix}, then compress it.")
    if suffix in TABLES and evidence:
        raise ConfigError(f"{suffix} files cannot include --evidence. Give an --output that ends with .jsonl.")
    if suffix == ".parquet":
        from denn.data.compressed import arrow

        arrow("Writing Parquet files")


def prediction_writer(
    out: IO[bytes], output: Path | None, evidence: bool, names: bool
) -> AbstractContextManager[Write]:
    """Return a writer for the format of the file's extension; `names` adds a column with the names of labels."""
    table = TABLES.get("" if output is None else output.suffix.lower())
    return _json_lines(out, evidence) if table is None else table(out, names)


@contextmanager
def _json_lines(out: IO[bytes], evidence: bool) -> Iterator[Write]:
    def write(id: str | None, text: str, prediction: Prediction) -> None:
        out.write(dumps(as_row(id, prediction, evidence), "A prediction", ensure_ascii=False).encode() + b"\n")

    yield write


def _separated(separator: str) -> Callable[[IO[bytes], bool], AbstractContextManager[Write]]:
    """Return a writer of tables for spreadsheets, with the same added columns as files of the web page."""

    @contextmanager
    def writing(out: IO[bytes], names: bool) -> Iterator[Write]:
        from denn.data.spreadsheets import ADDED, write_table

        def write(id: str | None, text: str, prediction: Prediction) -> None:
            scores = "|".join(f"{prediction.scores[label]:.4f}" for label in prediction.labels)
            near = "" if prediction.familiarity is None else round(prediction.familiarity, 4)
            called = [_joined(prediction.names)] if names else []
            flag = "true" if prediction.unfamiliar else ""
            row = [id or "", text, *called, _joined(prediction.labels), scores, near, flag]
            out.write(write_table([row], separator))

        out.write(write_table([["id", "text", *(["names"] if names else []), *ADDED]], separator))
        yield write

    return writing


def _joined(labels: Sequence[str]) -> str:
    """Join labels with bars, as denn reads them, or write a JSON list if one could be split."""
    risky = any(map(PARTS.search, labels))
    return json.dumps(labels, ensure_ascii=False) if risky else "|".join(labels)


@contextmanager
def _parquet(out: IO[bytes], names: bool) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import parquet

    strings, numbers = pa.list_(pa.string()), pa.list_(pa.float64())
    fields: dict[str, Any] = {"id": pa.string(), "text": pa.string(), "labels": strings}
    fields |= {"names": strings} if names else {}
    fields |= {"scores": numbers, "confidence": pa.float64(), "familiarity": pa.float64(), "unfamiliar": pa.bool_()}
    rows: list[dict[str, Any]] = []

    def write(id: str | None, text: str, prediction: Prediction) -> None:
        row = {name: getattr(prediction, name) for name in fields if name not in ("id", "text", "scores")}
        rows.append(row | {"id": id, "text": text, "scores": [prediction.scores[label] for label in prediction.labels]})
        if len(rows) == ROWS:
            flush()

    def flush() -> None:
        file.write_table(pa.Table.from_pylist(rows, schema))
        rows.clear()

    schema = pa.schema(fields)
    with parquet.ParquetWriter(out, schema) as file:
        try:
            yield write
        finally:
            flush()  # also after an error, to keep the predictions so far


TABLES = {".csv": _separated(","), ".tsv": _separated("\t"), ".parquet": _parquet}


def as_row(id: str | None, prediction: Prediction, evidence: bool) -> dict[str, Any]:
    """Return a prediction as a JSON object."""
    row: dict[str, Any] = {} if id is None else {"id": id}
    row["labels"] = prediction.labels
    row["scores"] = {label: round(score, 4) for label, score in prediction.scores.items()}
    row["confidence"] = None if prediction.confidence is None else round(prediction.confidence, 4)
    row["familiarity"] = None if prediction.familiarity is None else round(prediction.familiarity, 4)
    if prediction.unfamiliar:
        row["unfamiliar"] = True
    if prediction.same_text is not None:
        row["same_text"] = prediction.same_text
    row["parts"] = {
        label: {witness: round(score, 4) for witness, score in scores.items()}
        for label, scores in prediction.parts.items()
    }
    shown = (*prediction.labels, *prediction.scores, *(label for one in prediction.neighbours for label in one.labels))
    if names := prediction.vocabulary.names(shown):
        row["names"] = names
    if evidence:
        row["words"] = {label: [word for word, _ in words] for label, words in prediction.words.items()}
        row["neighbours"] = [
            {"id": n.id, "similarity": round(n.similarity, 4), "labels": n.labels, "text": n.text}
            | ({"rejected": n.rejected} if n.rejected else {})
            for n in prediction.neighbours
        ]
    return row

"""Read files that a stranger may have written: reject damaged ones in a sentence, before they take up memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from denn.errors import DennError

if TYPE_CHECKING:
    from torch import Tensor, nn

MOST_TEXT = 256 * 2**20  # bytes of a text file: vocabularies of millions of words are smaller
MOST_JSON = 16 * 2**20  # parsed, it takes up to thirty times as much memory
MOST_LARGE_JSON = 48 * 2**20  # for cards with many labels, and for tokenizers
MOST_HEADER = 16 * 2**20
HOLES = 64 * 2**20  # most of a file of at least this size must be on disk
REMEDY = "Restore the folder from a copy, or create it again."

Shape = tuple[int | None, ...]  # None: any size
Expected = Mapping[str, tuple[str, Shape]]  # name → type as safetensors names it, shape

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32"}


def read_text(path: Path, error: type[DennError], most: int = MOST_TEXT) -> str:
    """Read a text file that must exist, have a plausible size and be UTF-8."""
    try:
        if not path.is_file():  # reading a pipe would block
            raise error(f"{path} is missing or not a regular file. {REMEDY}")
        if (size := path.stat().st_size) > most:
            raise error(f"{path} has {size:,} bytes, expected at most {most:,}. {REMEDY}")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as reason:
        raise error(f"{path} is damaged: it is not UTF-8 text. {REMEDY}") from reason
    except OSError as reason:
        raise error(f"{path} cannot be read: {reason.strerror}. {REMEDY}") from reason


def read_json(path: Path, error: type[DennError], most: int = MOST_JSON) -> Any:
    """Read a JSON file."""
    text = read_text(path, error, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as reason:  # includes numbers with thousands of digits and deeply nested lists
        raise error(f"{path} is damaged: it is not valid JSON. {REMEDY}") from reason


def read_object(path: Path, error: type[DennError], most: int = MOST_JSON) -> dict[str, Any]:
    """Read a JSON file that must contain an object."""
    content = read_json(path, error, most)
    if not isinstance(content, dict):
        raise error(f"{path} is damaged: it contains a {type(content).__name__}, expected an object. {REMEDY}")
    return content


def read_lines(path: Path, error: type[DennError], count: int | None = None) -> list[str]:
    """Read the distinct lines of a text file, `count` of them if given; only a line feed ends a line."""
    text = read_text(path, error, MOST_JSON if count is None else MOST_TEXT)
    if count is not None and text.count("\n") != count - 1:  # before splitting, because lines take far more memory
        raise error(f"{path} has {text.count(chr(10)) + 1} lines, expected {count}. {REMEDY}")
    lines = text.split("\n")
    if len(set(lines)) < len(lines):
        raise error(f"{path} is damaged: a line occurs twice. {REMEDY}")
    return lines


def header(path: Path, error: type[DennError]) -> dict[str, tuple[str, Shape]]:
    """Read the types and shapes in a safetensors file; the library checks them against the file's size."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise error(f"{path} is missing or not a regular file. {REMEDY}")
    facts = path.stat()
    on_disk = 512 * getattr(facts, "st_blocks", 0)  # 0: the file system does not say
    if facts.st_size > HOLES and 0 < on_disk < facts.st_size // 8:
        raise error(f"{path} is damaged: most of its {facts.st_size:,} bytes are not on disk. {REMEDY}")
    try:
        with path.open("rb") as start:
            if int.from_bytes(start.read(8), "little") > MOST_HEADER:
                raise ValueError("its header is too large")
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}
            return {name: (str(part.get_dtype()), tuple(part.get_shape())) for name, part in slices.items()}
    except (SafetensorError, OSError, ValueError) as reason:
        raise error(f"{path} is damaged: it is not a safetensors file ({first_line(reason)}). {REMEDY}") from reason


def read_tensors(path: Path, expected: Expected, error: type[DennError]) -> dict[str, Tensor]:
    """Read a safetensors file with exactly these tensors, all finite; read nothing of a file that differs."""
    found = header(path, error)
    if found.keys() != expected.keys():
        lacking, extra = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
        what = f"no tensor {lacking[0]!r}" if lacking else f"an unexpected tensor {extra[0]!r}"
        raise error(f"{path} has {what}: it is not the file that was written. {REMEDY}")
    for name, (kind, shape) in expected.items():
        if found[name][0] != kind or not _fits(found[name][1], shape):
            raise error(
                f"{path}: the tensor {name!r} is {_describe(*found[name])}, expected {_describe(kind, shape)}. {REMEDY}"
            )
    return load_tensors(path, error)


def load_tensors(path: Path, error: type[DennError]) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file, all of which must be finite."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        # Copy the tensors, because the library maps the file: reading it after it has shrunk would kill the process.
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    except (SafetensorError, OSError, ValueError, KeyError) as reason:  # KeyError: a type that torch lacks
        raise error(f"{path} is damaged: {first_line(reason)}. {REMEDY}") from reason
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise error(f"{path}: the tensor {name!r} contains values that are not finite. {REMEDY}")
    return tensors


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite; checking their sum first takes a fraction of the time."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def load_weights(
    module: nn.Module,
    path: Path,
    error: type[DennError],
    *,
    without: str | None = None,
    former: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Load a module's weights, ideally on the device `meta`, from a file with the same names, types and shapes.

    Weights whose names begin with `without` are neither in the file nor changed. A file may have the `former` names.
    """
    names = {kind: name for name, kind in TYPES.items()}
    own = {
        name: (names[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape))
        for name, tensor in module.state_dict().items()
        if without is None or not name.startswith(without)
    }
    old = {former.get(name, name): name for name in own}
    if old.keys() == header(path, error).keys():
        tensors = read_tensors(path, {name: own[old[name]] for name in old}, error)
        tensors = {old[name]: tensor for name, tensor in tensors.items()}
    else:
        tensors = read_tensors(path, own, error)
    module.load_state_dict(tensors, strict=False, assign=True)


def _fits(found: Shape, expected: Shape) -> bool:
    return len(found) == len(expected) and all(e in (None, f) for f, e in zip(found, expected, strict=True))


def _describe(kind: str, shape: Shape) -> str:
    sizes = " × ".join("any" if size is None else str(size) for size in shape) or "one number"
    return f"{sizes} of {TYPES.get(kind, kind)}"


def first_line(reason: BaseException) -> str:
    """Return the first line of an error, for a sentence about it."""
    return (str(reason).splitlines() or [type(reason).__name__])[0][:200].rstrip(".")

"""Ways to damage the files of a model; each one draws all its choices from a generator."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Mutation = Callable[[Path, Random], str]  # changes a folder and says what it did

HOSTILE: list[Any] = [
    None, True, False, -1, 0, 1, 3, 0.5, 10**5, 10**9, 10**12, 2**63, 10**30, -(10**12), 1e-300, 1e308, float("nan"),
    float("inf"), "", "x", "x" * 10_000, "../..", "/etc/passwd", "http://127.0.0.1:9/x", "a\nb", "\ud800", [], [1, 2],
    {}, {"a": 1}, [[[[]]]],
]  # fmt: skip


def files(folder: Path, ending: str = "") -> list[Path]:
    """Return the files of a folder in a fixed order."""
    return sorted(path for path in folder.rglob(f"*{ending}") if path.is_file() and not path.is_symlink())


def name_of(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def flip_bytes(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder))
    content = bytearray(path.read_bytes() or b"\0")
    places = [draw.randrange(min(len(content), draw.choice((64, 4096, 1 << 30)))) for _ in range(draw.randint(1, 8))]
    for place in places:
        content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"flipped bits of {name_of(folder, path)} at {places}"


def truncate(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder))
    content = path.read_bytes()
    length = draw.choice((0, 1, 8, len(content) // 2, max(0, len(content) - 1), draw.randrange(len(content) + 1)))
    path.write_bytes(content[:length])
    return f"cut {name_of(folder, path)} to {length} bytes"


def append(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder))
    with path.open("ab") as file:
        file.write(draw.randbytes(draw.choice((1, 8, 1000))))
    return f"appended to {name_of(folder, path)}"


def fill(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder))
    path.write_bytes(draw.choice((draw.randbytes(1000), b"\0" * 1000, b"\xff" * 64, b"[" * 200_000, b'{"a":' * 50_000)))
    return f"filled {name_of(folder, path)}"


def delete(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder))
    path.unlink()
    return f"deleted {name_of(folder, path)}"


def swap(folder: Path, draw: Random) -> str:
    one, other = draw.sample(files(folder), 2)
    aside = folder / "aside"
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
    return f"swapped {name_of(folder, one)} and {name_of(folder, other)}"


def change_tensor(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder, ".safetensors"))
    tensors = load_file(path)
    name = draw.choice(sorted(tensors))
    tensor = tensors.pop(name)
    ways: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
        "deleted": dict,
        "renamed": lambda: {name + "x": tensor},
        "doubled": lambda: {name: tensor, "x." + name: tensor.clone()},
        "double": lambda: {name: tensor.double()},
        "half": lambda: {name: tensor.half()},
        "int": lambda: {name: tensor.int()},
        "bool": lambda: {name: tensor.bool()},
        "fewer rows": lambda: {name: tensor[: len(tensor) // 2].clone() if tensor.dim() else tensor[None]},
        "more rows": lambda: {name: torch.cat([tensor, tensor]) if tensor.dim() else tensor[None]},
        "flat": lambda: {name: tensor.flatten()},
        "transposed": lambda: {name: tensor.T.contiguous() if tensor.dim() == 2 else tensor[None]},
        "empty": lambda: {name: tensor.flatten()[:0]},
        "NaN": lambda: {name: _filled(tensor, draw, float("nan"))},
        "infinite": lambda: {name: _filled(tensor, draw, float("inf"))},
        "huge": lambda: {name: _filled(tensor, draw, 3e38 if tensor.is_floating_point() else 2**31 - 1)},
        "negative": lambda: {name: _filled(tensor, draw, -7)},
        "zero": lambda: {name: torch.zeros_like(tensor)},
    }
    way = draw.choice(sorted(ways))
    save_file(tensors | ways[way](), path)
    return f"{name} of {name_of(folder, path)}: {way}"


def _filled(tensor: torch.Tensor, draw: Random, value: float) -> torch.Tensor:
    """Put a value at one place, or everywhere."""
    tensor = tensor.clone()
    flat = tensor.view(-1)
    if tensor.dtype in (torch.int32, torch.int64) and value != value:
        value = -1
    if tensor.dtype in (torch.int32, torch.int64) and abs(value) == float("inf"):
        value = 2**31 - 1
    if len(flat) and draw.random() < 0.5:
        flat[draw.randrange(len(flat))] = value
    else:
        flat[:] = value
    return tensor


def change_header(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder, ".safetensors"))
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    name = draw.choice(sorted(key for key in header if key != "__metadata__"))
    entry = header[name]
    way = draw.choice(("shape", "offsets", "dtype", "size", "entry", "many", "metadata"))
    if way == "shape":
        entry["shape"] = draw.choice(([10**9, 10**9], [-1], [2**63], [0], [], "x", [10**12], [1.5], None))
    elif way == "offsets":
        entry["data_offsets"] = draw.choice(
            ([0, 10**15], [-8, 0], [8, 0], [], None, [0, 0], [2**64, 2**65], ["a", "b"])
        )
    elif way == "dtype":
        entry["dtype"] = draw.choice(("F64", "F8_E4M3", "BOOL", "U64", "X", 3, None, "I8", "C64"))
    elif way == "size":
        size = draw.choice((0, 1, 10**6, 10**12, 2**63, 2**64 - 1))
        path.write_bytes(size.to_bytes(8, "little") + content[8:])
        return f"header size of {name_of(folder, path)}: {size}"
    elif way == "entry":
        header[name] = draw.choice(HOSTILE[:-10])
    elif way == "many":
        header |= {f"t{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(5000)}
    else:
        header["__metadata__"] = draw.choice(({"format": "np"}, {"a": "b" * 10**6}, {"a": 3}, [], None))
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return f"header of {name_of(folder, path)}: {way} of {name}: {str(header.get(name))[:100]}"


def change_json(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder, ".json"))
    content = json.loads(path.read_text())
    places = list(_places(content))
    # of thousands of tokens a few
    holder, key = draw.choice([place for place in places if len(place[0]) < 50] or places)
    value = draw.choice(HOSTILE)
    way = draw.random()
    if way < 0.15:
        del holder[key]
        said = "deleted"
    elif way < 0.2:
        deep: Any = 0
        for _ in range(draw.choice((50, 500))):
            deep = [deep] if draw.random() < 0.5 else {"a": deep}
        holder[key] = deep
        said = "deep"
    else:
        holder[key] = value
        said = repr(value)[:60]
    path.write_text(json.dumps(content))
    return f"{key!r} in {name_of(folder, path)}: {said}"


def _places(content: Any) -> Any:
    """Yield every list or object inside, with each of its keys."""
    keys = content.keys() if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in list(keys):
        yield content, key
        yield from _places(content[key])


def change_lines(folder: Path, draw: Random) -> str:
    path = draw.choice(files(folder, ".txt"))
    lines = path.read_bytes().split(b"\n")
    place = draw.randrange(len(lines))
    way = draw.choice(("drop", "double", "empty", "bytes", "return", "reverse", "long", "nul"))
    if way == "drop":
        del lines[place]
    elif way == "double":
        lines.insert(place, lines[place])
    elif way == "reverse":
        lines.reverse()
    else:
        lines[place] = {"empty": b"", "bytes": b"\xff\xfe", "return": b"a\r", "long": b"x" * 10**6, "nul": b"\0"}[way]
    path.write_bytes(b"\n".join(lines))
    return f"line {place} of {name_of(folder, path)}: {way}"

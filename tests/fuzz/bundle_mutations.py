"""All ways to change a model's folder, and the choice of one by a seed."""

from pathlib import Path
from random import Random

from bundle_attacks import change_rows, change_tokenizer, declare_sizes, link, plant_code
from bundle_damage import (
    Mutation,
    append,
    change_header,
    change_json,
    change_lines,
    change_tensor,
    delete,
    fill,
    flip_bytes,
    swap,
    truncate,
)

MUTATIONS: dict[str, tuple[Mutation, int]] = {  # by kind, with relative frequencies
    "flipped": (flip_bytes, 12),
    "cut": (truncate, 6),
    "appended": (append, 3),
    "filled": (fill, 4),
    "deleted": (delete, 3),
    "swapped": (swap, 5),
    "tensor": (change_tensor, 14),
    "header": (change_header, 10),
    "json": (change_json, 20),
    "lines": (change_lines, 5),
    "links": (link, 8),
    "sizes": (declare_sizes, 8),
    "code": (plant_code, 8),
    "tokenizer": (change_tokenizer, 10),
    "rows": (change_rows, 6),
}


def mutate(folder: Path, seed: str) -> tuple[str, str]:
    """Damage a folder according to the seed; return the kind and a description."""
    draw = Random(seed)
    kind = draw.choices(list(MUTATIONS), [weight for _, weight in MUTATIONS.values()])[0]
    return kind, MUTATIONS[kind][0](folder, draw)

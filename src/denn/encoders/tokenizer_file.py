"""Load an encoder's tokenizer from an untrusted source: reject those that run code, never end, or exhaust memory."""

from __future__ import annotations

import base64
import binascii
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from denn.encoders.checkpoint_folder import code_refused, need_transformers
from denn.errors import DennError, EncoderError
from denn.untrusted import MOST_LARGE_JSON, first_line, read_object

MOST_STEPS = 100  # maximum steps of normalisation and splitting
MOST_GROWTH = 4  # factor by which replacements may lengthen a text
MOST_WORD = 500  # characters of a word that is split into pieces, in time cubic in its length
MOST_CHARACTERS = 64  # maximum that a word piece's prefix adds, and maximum bytes that one character is normalised to

# Of a folder without tokenizer.json, only these files and settings are read.
VOCABULARIES = ("vocab.*", "*.model", "merges.txt", "added_tokens.json", "special_tokens_map.json")
SETTINGS = {"tokenizer_class", "do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"}

# The parts that a regular expression may have here: no back references, and no repeated groups. With one repetition in
# each alternative, the time for a text grows at most with the square of its length.
PARTS = re.compile(
    r"(?P<atom>\\[pP]\{\^?\w+\}|\\[^\dkgGXyK]|\[(?:\\.|[^\]\\\[&])*\]|[^\\\[\](){}|*+?])"
    r"|(?P<open>\((?:\?(?:[:=!]|i:))?)|(?P<close>\))|(?P<or>\|)|(?P<maybe>\?)"
    r"|(?P<some>\{\d(?:,\d)?\})|(?P<many>[*+]\+?|\{\d+,\d*\})",
    re.DOTALL,
)
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
KNOWN = {  # regular expressions of published tokenizers: more repetitions, but they end for every text
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for numbers in (r"\p{N}", r"\p{N}{1,3}")
}


def load_tokenizer(folder: Path, lower_case: bool = False) -> Tokenizer:
    """Load an encoder's tokenizer, converting older formats; `lower_case` lower-cases texts first."""
    file = folder / "tokenizer.json"
    content = read_object(file, EncoderError, MOST_LARGE_JSON) if file.is_file() else _converted(folder)
    content |= {"truncation": None, "padding": None}  # denn sets these itself
    with explained(f"The tokenizer {file} is damaged"):
        _check(content)
        if lower_case:
            steps = [{"type": "Lowercase"}, *filter(None, [content.get("normalizer")])]
            content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        return Tokenizer.from_str(json.dumps(content))


@contextmanager
def explained(fault: str) -> Iterator[None]:
    """Turn any error of the tokenizers library into an EncoderError that begins with `fault`."""
    try:
        yield
    except DennError:
        raise
    except BaseException as error:  # the library raises bare exceptions and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # not importable
            raise
        raise EncoderError(f"{fault} ({first_line(error)}). Download the encoder again.") from error


def _check(content: dict[str, Any]) -> None:
    """Raise a ValueError if a text could take forever or grow without bound."""
    steps = list(_objects([content.get("normalizer"), content.get("pre_tokenizer")]))
    if sum("type" in part for part in steps) > MOST_STEPS:
        raise ValueError(f"it has more than {MOST_STEPS} steps")
    for part in steps:
        if "Regex" in part and not _is_tame(part["Regex"]):
            raise ValueError("it has an unknown regular expression, which may never end")
        if part.get("String") == "":
            raise ValueError("it replaces an empty string")
        if "precompiled_charsmap" in part:
            _check_characters(part["precompiled_charsmap"])
    growth = prod(max(1, len(str(part.get(name, "")))) for part in steps for name in ("content", "prepend"))
    if growth > MOST_GROWTH:
        raise ValueError(f"it can make a text more than {MOST_GROWTH} times as long")
    model = content.get("model")
    longest = model.get("max_input_chars_per_word", 100) if isinstance(model, dict) else 100
    if not isinstance(longest, int) or longest > MOST_WORD:
        raise ValueError(f"its max_input_chars_per_word is not a number up to {MOST_WORD}")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if isinstance(model, dict) and len(str(model.get(name))) > MOST_CHARACTERS:
            raise ValueError(f"its {name} has more than {MOST_CHARACTERS} characters")


def _objects(content: Any) -> Iterator[dict[str, Any]]:
    """Yield every object inside lists and objects."""
    waiting = [content]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _is_tame(pattern: object) -> bool:
    """Return whether a regular expression ends in reasonable time for every text."""
    if not isinstance(pattern, str) or pattern in KNOWN:
        return isinstance(pattern, str)
    place, repetitions, before = 0, 0, ""
    while place < len(pattern):
        part = PARTS.match(pattern, place)
        if part is None:
            return False
        kind = str(part.lastgroup)
        if kind == "or":
            repetitions = 0
        elif kind in ("some", "many"):
            repetitions += kind == "many"
            if before != "atom" or repetitions > 1:
                return False
        place, before = part.end(), kind
    return bool(pattern)


def _check_characters(encoded: object) -> None:
    """Raise a ValueError unless a table of normalised characters gives each of them only a few bytes."""
    try:
        table = base64.b64decode(str(encoded), validate=True)
    except binascii.Error as error:
        raise ValueError("its precompiled_charsmap is not in base64") from error
    size = int.from_bytes(table[:4], "little")
    if size % 4 or 4 + size > len(table):
        raise ValueError("its precompiled_charsmap is incomplete")
    if any(len(run) > MOST_CHARACTERS for run in table[4 + size :].split(b"\0")):
        raise ValueError(f"it turns a character into more than {MOST_CHARACTERS} bytes")


def _converted(folder: Path) -> dict[str, Any]:
    """Let transformers convert a vocabulary in an older format, in a separate folder with nothing else in it."""
    files = {path for pattern in VOCABULARIES for path in folder.glob(pattern) if path.is_file()}
    if not any(path.match("vocab.*") or path.match("*.model") for path in files):
        raise EncoderError(f"The encoder folder {folder} has no tokenizer; expected tokenizer.json or a vocabulary.")
    own = folder / "tokenizer_config.json"
    settings = read_object(own, EncoderError) if own.is_file() else {}
    if settings.get("auto_map"):
        raise code_refused(folder, own.name)
    kept = {name: value for name, value in settings.items() if name in SETTINGS or name.endswith("_token")}
    kind = read_object(folder / "config.json", EncoderError).get("model_type")
    need_transformers("Converting a tokenizer of an older format")
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        for path in files:
            shutil.copyfile(path, Path(scratch) / path.name)
        (Path(scratch) / own.name).write_text(json.dumps(kept))
        (Path(scratch) / "config.json").write_text(json.dumps({"model_type": kind}))
        try:
            made = AutoTokenizer.from_pretrained(scratch, trust_remote_code=False, local_files_only=True)
            return cast(dict[str, Any], json.loads(made.backend_tokenizer.to_str()))
        except Exception as error:  # transformers documents no error type for an invalid vocabulary
            raise EncoderError(
                f"The tokenizer in {folder} cannot be converted ({first_line(error)}). Use a folder with "
                "tokenizer.json."
            ) from error

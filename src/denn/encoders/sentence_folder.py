"""Read and write the settings of a sentence-transformers folder: modules, pooling, length and lower case.

Folders without these files, as transformers writes them, are read as well.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from denn.errors import EncoderError
from denn.untrusted import read_json, read_object

log = logging.getLogger(__name__)

Pooling = Literal["mean", "cls"]

MODULES, POOLING, LENGTH = "modules.json", "1_Pooling", "sentence_bert_config.json"
LENGTHS = "sentence_*_config.json"  # earlier versions named the file after the architecture
IGNORED = {"Normalize", "Dropout"}  # similarity is the cosine anyway, and dropout ends with training
MOST_TOKENS = 10**6  # a larger number means no limit
EARLIER = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class SentenceFolder:
    """The location of an encoder's transformer, and its settings."""

    transformer: Path  # configuration, weights and tokenizer
    pooling: Pooling
    max_length: int | None  # maximum number of tokens, if it has a limit
    lower_case: bool  # whether to lower-case all texts, whatever the tokenizer does


def read_folder(folder: Path, pooling: Pooling | None = None) -> SentenceFolder:
    """Read an encoder's folder; reject unsupported modules, and unsupported pooling unless `pooling` is given."""
    modules = _modules(folder)
    transformer = folder / modules.get("Transformer", "")
    settings = next((read_object(file, EncoderError) for file in sorted(transformer.glob(LENGTHS))), {})
    length = settings.get("max_seq_length")
    if length is None and modules and (transformer / "tokenizer_config.json").is_file():
        length = read_object(transformer / "tokenizer_config.json", EncoderError).get("model_max_length")
    limited = isinstance(length, int) and not isinstance(length, bool) and 2 < length < MOST_TOKENS
    _warn_of_prompt(folder)
    return SentenceFolder(
        transformer,
        pooling or default_pooling(folder, modules.get("Pooling", POOLING)),
        length if limited else None,
        settings.get("do_lower_case") is True,
    )


def default_pooling(folder: Path, part: str = POOLING) -> Pooling:
    """Return the pooling that the encoder was trained with; `cls` if it is not specified."""
    file = folder / part / "config.json"
    if not file.exists():
        return "cls"
    content = read_object(file, EncoderError)
    modes = content.get("pooling_mode")
    if modes is None:
        modes = [EARLIER.get(name, name) for name, on in content.items() if name.startswith("pooling_mode_") and on]
    modes = (modes if isinstance(modes, list) else [modes]) or ["cls"]
    if modes not in (["mean"], ["cls"]):
        shown = " and ".join(str(one).removeprefix("pooling_mode_") for one in modes)[:100]
        raise EncoderError(
            f"The encoder in {folder} pools by {shown!r}, expected mean or cls. Choose one: --set pooling=mean"
        )
    return cast(Pooling, modes[0])


def write_settings(folder: Path, pooling: Pooling, max_length: int | None) -> None:
    """Write the pooling and the maximum length, if there is one, so that `read_folder` reads them back."""
    (folder / POOLING).mkdir()
    modes = {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / POOLING / "config.json").write_text(json.dumps(modes))
    if max_length is not None:
        (folder / LENGTH).write_text(json.dumps({"max_seq_length": max_length}))


def _modules(folder: Path) -> dict[str, str]:
    """Return the folder of each module by its kind; none for a folder that transformers wrote."""
    file = folder / MODULES
    if not file.is_file():
        return {}
    content = read_json(file, EncoderError)
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise EncoderError(f"{file} is damaged: expected a list of modules. Download the encoder again.")
    found: dict[str, str] = {}
    for part in content:
        kind, path = str(part.get("type", "")).rpartition(".")[2], _inside(file, part)
        if kind not in {"Transformer", "Pooling", *IGNORED} or kind in found:
            raise EncoderError(
                f"The encoder in {folder} has a module {kind[:60]!r} (modules.json), which denn does not run; expected "
                "Transformer, Pooling and Normalize, each once. Use another encoder."
            )
        found[kind] = path
    if "Transformer" not in found:
        raise EncoderError(f"{file} names no Transformer. Download the encoder again.")
    return found


def _inside(file: Path, part: Mapping[str, Any]) -> str:
    """Return a module's folder, which must be the encoder's own or a direct subfolder."""
    path = part.get("path", "")
    if not isinstance(path, str) or path in (".", "..") or Path(path).name != path or "\\" in path:
        raise EncoderError(f"{file} names a module outside its folder. Download the encoder again.")
    return path


def _warn_of_prompt(folder: Path) -> None:
    """Log a warning if sentence-transformers would put a prompt before every text."""
    file = folder / "config_sentence_transformers.json"
    name = read_object(file, EncoderError).get("default_prompt_name") if file.is_file() else None
    if isinstance(name, str):
        log.warning("The encoder in %s has the default prompt %r, which denn does not add to texts.", folder, name[:60])

"""Load a folder in Hugging Face format from an untrusted source: no code runs, nothing is downloaded.

Models with a packed forward are read into our own modules (`plain_model`), all others into those of transformers, which
never sees the folder. It gets a configuration without anything that could name code, kernels, adapters or other models,
and the tensors of safetensors files. Before these are read, their number and sizes are compared with what the
configuration describes. The checks cost nothing: the model is built on the device `meta`, which has shapes but no
memory.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_module_registration_hook

from denn.encoders.layers import FIRST_POSITION
from denn.encoders.plain_model import ModelSettings, PlainModel, is_plain
from denn.errors import EncoderError, MissingExtraError
from denn.untrusted import first_line, header, load_tensors, read_object

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
MOST_NUMBER = 10**7  # in config.json: vocabularies, positions and widths are smaller
MOST_REPEATED = 1000  # layers and the like, unless there are more tensors; modules are counted as well
MOST_BUFFERS = 256 * 2**20  # bytes of tables that a model computes besides its weights
MODULES, MODULES_PER_TENSOR = 10_000, 50  # maximum modules of a model: a base, plus some per tensor in its file
FLOATS = {"F64", "F32", "F16", "BF16"}
REPEATED = ("layer", "block", "group", "expert", "stage", "depth")  # in the names of what a model may have many of
SURPLUS = 4  # times the encoder's weights: a language model's file has its head, and word embeddings twice

# Of the settings that all models share, an encoder needs only these tokens.
KEPT = {"pad_token_id", "bos_token_id", "eos_token_id"}
DROPPED = {"auto_map", "quantization_config", "fusion_config", "transformers_weights", "task_specific_params"}
DROPPED_ENDS = ("_implementation", "_plan", "kernels", "kernel_config", "name_or_path", "pretrained_backbone")


def load_model(folder: Path) -> Any:
    """Load a model in float32, without a pooler if the packed forward does not need one."""
    files = _weight_files(folder)
    found: dict[str, Any] = {}
    for file in files:
        found |= header(file, EncoderError)
    content = read_object(folder / "config.json", EncoderError)
    _check_content(folder, content, len(found))
    if not is_plain(content):
        need_transformers(f"An encoder of the type {content['model_type']!r}")
    with contextlib.nullcontext() if is_plain(content) else _quiet():
        with _refused(folder, "config.json does not describe a model that can be built"):
            shell = _shell(_maker(content), MODULES + MODULES_PER_TENSOR * len(found))
        _check_size(folder, shell, found)
        tensors = {name: tensor for file in files for name, tensor in load_tensors(file, EncoderError).items()}
        with _refused(folder, "the weights do not match config.json"):
            model, missing = _filled(shell, tensors)
    if missing:
        raise EncoderError(
            f"The encoder in {folder} lacks {len(missing)} of the weights that config.json describes, such as "
            f"{missing[0]!r}. Download the encoder again."
        )
    return model.eval()


def need_transformers(what: str) -> None:
    """Import transformers for `what`, or name the extra that installs it."""
    try:
        import_module("transformers")
    except ImportError as error:
        raise MissingExtraError(what, "transformers", "transformers") from error


def _filled(shell: Any, tensors: dict[str, Tensor]) -> tuple[Any, list[str]]:
    """Return the model of a shell with the weights of a file, and the names of weights that the file lacks."""
    if isinstance(shell, PlainModel):
        return shell, shell.take(tensors)
    options = {"dtype": torch.float32, "output_loading_info": True, **_options(shell.config.model_type)}
    model, report = type(shell).from_pretrained(None, config=shell.config, state_dict=tensors, **options)
    return model, sorted(name for name in report["missing_keys"] if "pooler" not in name)


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files, one or several named by an index; reject pickles."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if (folder / INDEX).is_file():
        parts = read_object(folder / INDEX, EncoderError).get("weight_map")
        names = sorted({str(name) for name in parts.values()}) if isinstance(parts, dict) else []
        if names and all(Path(name).name == name and name.endswith(".safetensors") for name in names):
            return [folder / name for name in names]
        raise EncoderError(f"{folder / INDEX} names no safetensors files in its folder. Download the encoder again.")
    if any((folder / name).is_file() for name in PICKLES):
        raise EncoderError(
            f"The encoder folder {folder} has its weights in pytorch_model.bin, a format that can run code; expected "
            f"{WEIGHTS}. Convert it on a machine where you trust it: AutoModel.from_pretrained(folder)"
            ".save_pretrained(new_folder)."
        )
    raise EncoderError(f"The encoder in {folder} cannot be read: there is no {WEIGHTS}. Download it again.")


def _check_content(folder: Path, content: Mapping[str, Any], tensors: int) -> None:
    """Reject a configuration that wants to run code, or whose numbers are impossible for this many tensors."""
    if not isinstance(content.get("model_type"), str):
        raise EncoderError(f"{folder / 'config.json'} has no model_type. Download the encoder again.")
    if content.get("auto_map"):
        raise code_refused(folder, "config.json")
    if content.get("quantization_config"):
        raise EncoderError(f"The encoder in {folder} is quantized; expected weights of float32, float16 or bfloat16.")
    for name, number in _numbers(content):
        most = max(tensors, MOST_REPEATED) if any(part in name for part in REPEATED) else MOST_NUMBER
        if abs(number) > most:
            raise EncoderError(
                f"{folder / 'config.json'} has {name} = {str(number)[:40]}, expected at most {most:,} for "
                "this weights file. Download the encoder again."
            )


def code_refused(folder: Path, file: str) -> EncoderError:
    """Return the error for a folder that contains code."""
    return EncoderError(
        f"The encoder folder {folder} wants to run its own code (auto_map in {file}). denn never runs code from a "
        "model folder; use an architecture that transformers includes."
    )


def _numbers(content: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers of a configuration with their names, except ids of labels and tokens."""
    if isinstance(content, dict):
        for key, value in content.items():
            if key not in ("id2label", "label2id") and "theta" not in str(key):  # θ of rotary positions has no bound
                yield from _numbers(value, str(key))
    elif isinstance(content, list):
        for value in content:
            yield from _numbers(value, name)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield name, content


def _maker(content: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that creates the model of a configuration, with uninitialised weights."""
    if is_plain(content):
        return partial(PlainModel, ModelSettings.of(content))
    from transformers import AutoModel

    options = _options(content["model_type"])
    return partial(AutoModel.from_config, _config(content), trust_remote_code=False, **options)


def _options(kind: str) -> dict[str, Any]:
    return {"add_pooling_layer": False} if kind in FIRST_POSITION else {}


def _config(content: Mapping[str, Any]) -> Any:
    """Create the configuration of a text model that transformers includes."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    kind = content.get("model_type")
    texts = (
        modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES,
    )
    if not any(kind in names for names in texts):
        raise ValueError(f"its model_type is {kind!r}, expected a text model of transformers")
    return AutoConfig.for_model(**_clean(content))


def _clean(content: Mapping[str, Any]) -> dict[str, Any]:
    """Remove whatever can name code, kernels, other models, or another way to run this one, at any depth."""
    from transformers import PreTrainedConfig

    shared = {field.name for field in fields(PreTrainedConfig)} - KEPT
    return {
        key: _clean(value) if isinstance(value, dict) else value
        for key, value in content.items()
        if key == "model_type"
        or not (key in DROPPED or key in shared or key.startswith("_") or key.endswith(DROPPED_ENDS))
    }


def _shell(make: Callable[[], Any], most: int) -> Any:
    """Create a model without memory and with at most `most` modules."""
    made, mine = 0, threading.get_ident()

    def count(*_: object) -> None:
        nonlocal made
        made += threading.get_ident() == mine
        if made > most:
            raise ValueError(f"it has more than {most} modules")

    counting = register_module_module_registration_hook(count)
    try:
        with torch.device("meta"):
            return make()
    finally:
        counting.remove()


def _check_size(folder: Path, shell: Any, found: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Reject a model that is larger than its file, before allocating memory for it."""
    weights = sum(weight.numel() for name, weight in shell.named_parameters() if "pooler" not in name)
    there = sum(prod(shape) for kind, shape in found.values() if kind in FLOATS)
    if weights > there:
        raise EncoderError(
            f"The encoder in {folder} has {there:,} weights, but config.json describes {weights:,}. Download it again."
        )
    if there > SURPLUS * weights + MOST_NUMBER:
        raise EncoderError(
            f"The encoder in {folder} has {there:,} weights, but config.json describes only {weights:,}. Download it "
            "again."
        )
    if sum(buffer.numel() * buffer.element_size() for buffer in shell.buffers()) > MOST_BUFFERS:
        raise EncoderError(
            f"The encoder in {folder} needs tables of more than {MOST_BUFFERS:,} bytes for the lengths that "
            "config.json describes. Download it again."
        )


@contextlib.contextmanager
def _refused(folder: Path, what: str) -> Iterator[None]:
    """Turn any error that transformers raises for bad settings into an EncoderError."""
    try:
        yield
    except Exception as error:  # transformers documents no error type for bad settings
        raise EncoderError(f"The encoder in {folder} cannot be read: {what} ({first_line(error)}).") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)

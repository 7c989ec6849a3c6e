"""Training state on disk: one safetensors file, replaced atomically, so that a kill leaves the old or the new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from denn.durable import sync
from denn.errors import TrainingError


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON facts durably; a reader sees the old file or the whole new one."""
    beside = path.with_name(path.name + ".part")
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, beside, {"facts": json.dumps(facts)})
        sync(beside)
    except (SafetensorError, OSError):
        beside.unlink(missing_ok=True)  # on a full disk it would block the next try
        raise
    beside.replace(path)
    sync(path.parent)  # otherwise a power cut could lose the new name


def read(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and facts."""
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise TrainingError(f"The checkpoint {path} cannot be read ({error}). Train again with --restart.") from error


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a module by name."""
    return {f"module.{name}": tensor for name, tensor in module.state_dict().items()}


def load_module(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load weights into a module."""
    module.load_state_dict({name[7:]: tensor for name, tensor in tensors.items() if name.startswith("module.")})


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the moments and step counts of an optimiser, named by parameter number."""
    state = optimiser.state_dict()["state"]
    return {f"optimiser.{i}.{key}": value for i, entry in state.items() for key, value in entry.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load moments and step counts into an optimiser."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimiser."):
            _, number, key = name.split(".")
            state.setdefault(int(number), {})[key] = tensor
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})

"""Compute the loss of a batch and its gradients: directly, or recorded once and replayed on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
Prepare = Callable[[Tensor], Inputs]  # rows of the training split → inputs of the loss, on the device
Compute = Callable[..., Tensor]  # these inputs → mean loss; only device work that never waits


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    loss: Tensor


class Gradients:
    """Computes the loss of rows and leaves its gradients in the parameters.

    A transformer step makes about 500 kernel launches, which take a CPU longer than a GPU needs for the work. If
    `recorded`, the second batch of each shape is recorded as a CUDA graph, and later ones are replayed with one launch.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], prepare: Prepare, compute: Compute, recorded: bool = False
    ) -> None:
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.prepare, self.compute, self.recorded = prepare, compute, recorded
        self._recordings: dict[tuple[torch.Size, ...], _Recording | None] = {}
        self._gradients: list[Tensor] = []
        self._pool: Any = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the mean loss of these rows."""
        inputs = self.prepare(rows)
        shapes = tuple(tensor.shape for tensor in inputs)
        if not self.recorded or shapes not in self._recordings:
            self._recordings[shapes] = None  # the first batch of a shape compiles its kernels
            return self._at_once(inputs)
        recording = self._recordings[shapes]
        if recording is None:
            recording = self._recordings[shapes] = self._record(inputs)
        torch._foreach_copy_(list(recording.inputs), list(inputs))
        recording.graph.replay()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return recording.loss.clone()

    def _at_once(self, inputs: Inputs) -> Tensor:
        loss = self.compute(*inputs)
        for parameter, gradient in zip(self.parameters, self._gradients_of(loss), strict=True):
            parameter.grad = gradient
        return loss.detach()

    def _gradients_of(self, loss: Tensor) -> list[Tensor]:
        """Return the gradients of all parameters, zeros for unused parameters."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))

    def _record(self, inputs: Inputs) -> _Recording:
        """Record loss and gradients; all recordings share their memory and the tensors for gradients."""
        if not self._gradients:
            self._gradients = [torch.empty_like(parameter) for parameter in self.parameters]
        kept = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self.compute(*kept)
            torch._foreach_copy_(self._gradients, self._gradients_of(loss))
            loss = loss.detach()
        self._pool = graph.pool()
        return _Recording(graph, kept, loss)

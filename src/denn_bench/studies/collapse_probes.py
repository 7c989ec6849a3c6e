"""Probes of running training: traces of every step, spread, activations, errors of the kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from denn.encoders import packed
from denn.encoders.layout import Layout
from denn.encoders.tokens import Tokens
from denn.encoders.transformer import TransformerEncoder
from denn.methods import contrastive as method
from denn.training.gradients import Gradients
from denn.training.network import Batch

STEP = ("loss", "contrast", "own_view", "other_texts", "gradient", "gradient_last_norm")  # of a trace, in this order
SPIKE = 8.0  # times the median: a gradient norm that counts as a spike
Numbers = dict[str, Any]


def last_norm(encoder: TransformerEncoder) -> nn.LayerNorm:
    """Return the last LayerNorm, whose output is pooled."""
    return encoder._parts()[-1].norm_output


def group_of(name: str) -> str:
    """Return the name of the part of the network that a parameter belongs to."""
    layer = re.search(r"encoder\.layer\.(\d+)\.", name)
    return f"layer {layer[1]}" if layer else "embeddings" if "embeddings" in name else "head"


class Traced:
    """Gradients of a step that also record its loss terms, cosine similarities and gradient norms, before clipping.

    Nothing here synchronises with the device. Values inside a recorded step arrive through a buffer.
    """

    def __init__(self, inner: Gradients, network: method.DennNetwork) -> None:
        self.inner = inner
        self.seen = torch.full((3,), torch.nan, device=network.device)
        named = [(name, weight) for name, weight in network.named_parameters() if weight.requires_grad]
        self.parameters = [weight for _, weight in named]
        self.groups = [group_of(name) for name, _ in named]
        gain = last_norm(network.encoder).weight
        self.gain = next(i for i, weight in enumerate(self.parameters) if weight is gain)
        self.steps: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.dissect: Callable[[Tensor, float], None] | None = None  # called with the rows of a spike
        self.usual: list[float] = []

    def __call__(self, rows: Tensor) -> Tensor:
        """Compute and record the gradients."""
        loss = self.inner(rows)
        norms = torch.stack(torch._foreach_norm([weight.grad for weight in self.parameters]))
        both = torch.stack([loss.float(), norms.norm(), norms[self.gain]])
        self.steps.append(torch.cat([both[:1], self.seen, both[1:]]))
        self.norms.append(norms)
        if self.dissect:
            self._look_for_spike(rows, float(both[1]))
        return loss

    def _look_for_spike(self, rows: Tensor, norm: float) -> None:
        """Pass on the rows of a gradient far longer than the last fifty, before the weights change."""
        if self.dissect and len(self.usual) == 50 and norm > SPIKE * sorted(self.usual)[25]:
            self.dissect(rows, norm)
        self.usual = [*self.usual[-49:], norm]

    @contextmanager
    def watching(self, loss: str) -> Iterator[None]:
        """Record the input of the contrastive loss within the block."""
        inner = method.CONTRASTS[loss]

        def noted(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
            losses, count = inner(similarity, labels, temperature), len(labels)
            with torch.no_grad():
                own = similarity.diagonal(count).sum()
                rest = similarity.sum() - similarity.diagonal().sum() - 2 * own
                others = rest / max(1, 4 * count * (count - 1))
                self.seen.copy_(torch.stack([losses.mean(), own / count, others]))
            return losses

        method.CONTRASTS[loss] = noted
        try:
            yield
        finally:
            method.CONTRASTS[loss] = inner

    def take(self) -> Numbers:
        """Return the traces since the last call, one list per quantity, and the gradient norms by part."""
        steps, norms = torch.stack(self.steps).cpu(), torch.stack(self.norms).cpu()
        self.steps, self.norms = [], []
        trace = {name: steps[:, i].tolist() for i, name in enumerate(STEP)}
        parts: dict[str, Tensor] = {}
        for i, group in enumerate(self.groups):
            parts[group] = parts.get(group, torch.zeros(len(norms))) + norms[:, i].square()
        return {
            "trace": trace,
            "gradient_mean": {name: float(values.sqrt().mean()) for name, values in parts.items()},
            "gradient_max": {name: float(values.sqrt().max()) for name, values in parts.items()},
            "spikes": _spikes(steps[:, 4], parts),
            "steps_not_finite": int((~steps[:, [0, 4]].isfinite()).any(1).sum()),
        }

    @torch.no_grad()
    def updates(self, before: list[Tensor], rate: float) -> Numbers:
        """Compare the weights with those before one step: ‖Δ‖/‖w‖ by part, and the update's RMS in learning rates."""
        change = torch.stack(torch._foreach_norm(torch._foreach_sub(list(self.parameters), before))).cpu()
        size = torch.stack(torch._foreach_norm(before)).cpu()
        found: Numbers = {"update_last_gain": float(change[self.gain] / size[self.gain])}
        parts = {}
        for name in dict.fromkeys(self.groups):
            mine = torch.tensor([group == name for group in self.groups])
            parts[name] = float(change[mine].norm() / size[mine].norm())
        count = sum(weight.numel() for weight in self.parameters)
        found |= {"update": float(change.norm() / size.norm()), "update_by_part": parts}
        found["update_rms_in_rates"] = float(change.norm() / count**0.5 / max(rate, 1e-12))
        bad = torch.stack([(~weight.isfinite()).sum() for weight in self.parameters]).sum()
        return found | {"weights_not_finite": int(bad)}


def _spikes(norms: Tensor, parts: dict[str, Tensor]) -> list[Numbers]:
    """Return the gradient norm by part of every step whose norm is far above the median."""
    found = (norms > SPIKE * norms.median()).nonzero().flatten().tolist()
    return [{"place": i, **{name: float(values[i].sqrt()) for name, values in parts.items()}} for i in found]


def anatomy(network: method.DennNetwork, ids: Tensor, starts: Tensor, labels: Tensor) -> Numbers:
    """Find the document and the token behind a batch's gradient, in float32 with torch's operations.

    Gradients are with respect to the inputs of each layer's second LayerNorm, without dropout; the gradient of the
    weights is computed once without and three times with dropout.
    """
    layout = Layout.at(starts, len(ids), network.encoder.max_length)
    weights = [weight for weight in network.parameters() if weight.requires_grad]
    sums: list[Tensor] = []
    norm = packed.layer_norm

    def seen_norm(x: Tensor, *rest: Any) -> Tensor:
        sums.append(x)
        return norm(x, *rest)

    def size(loss: Tensor) -> float:
        grads = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        return float(torch.stack(torch._foreach_norm(grads)).norm())

    was_training, batch = network.training, Batch(ids, layout, labels, None)
    with reference(network.encoder):
        with _patched(packed, _norm=seen_norm):
            network.eval()
            loss = network.loss(batch)
            layers = sums[1::2]
            grads = torch.autograd.grad(loss, layers, retain_graph=True)
            without = size(loss)
        network.train()
        with_dropout = [size(network.loss(batch)) for _ in range(3)]
    network.train(was_training)
    squares = [grad.square().sum(1) for grad in grads]  # (T,) each
    real = layout.document < 2 * len(labels)
    documents = torch.zeros(int(layout.document.max()) + 1, device=ids.device)
    documents.index_add_(0, layout.document, squares[0] * real)
    top = int(documents.argmax())
    mine = layout.document == top
    token = int((squares[0] * mine).argmax())
    largest = [x.detach().abs().amax(1) for x in layers]
    return {
        "gradient": without,
        "gradients_with_dropout": with_dropout,
        "documents": int((documents > 0).sum()),
        "share_of_document": float(documents[top] / documents.sum()),
        "share_of_second_document": float(documents.topk(4).values[2] / documents.sum()),  # views come in pairs
        "length": int(mine.sum()),
        "place": int(layout.positions[token]),
        "token": int(ids[token]),
        "share_of_token": float(squares[0][token] / squares[0][mine].sum()),
        "layers": {
            "gradient_of_token": [float(s[token].sqrt()) for s in squares],
            "gradient_of_document": [float(s[mine].sum().sqrt()) for s in squares],
            "gradient_median_document": [float(_by_document(s, layout).median().sqrt()) for s in squares],
            "largest_of_token": [float(v[token]) for v in largest],
            "largest_of_document": [float(v[mine].max()) for v in largest],
            "largest_median_document": [float(_largest(v, layout).median()) for v in largest],
            "median": [float(v.median()) for v in largest],
            "massive_tokens_of_document": [int((v[mine] > v[real].max() / 2).sum()) for v in largest],
            "massive_tokens_a_document": [
                float((v[real] > v[real].max() / 2).sum() / 2 / len(labels)) for v in largest
            ],
            "tightest_of_document": [float(x.detach()[mine].std(1).min()) for x in layers],
            "tightest": [float(x.detach()[real].std(1).min()) for x in layers],
        },
    }


def _by_document(values: Tensor, layout: Layout) -> Tensor:
    """Sum (T,) values per document."""
    out = torch.zeros(len(layout.starts) - 1, device=values.device)
    return out.index_add_(0, layout.document, values)


def _largest(values: Tensor, layout: Layout) -> Tensor:
    """Return the largest of (T,) values for each document."""
    out = torch.zeros(len(layout.starts) - 1, device=values.device)
    return out.scatter_reduce_(0, layout.document, values, "amax")


def gains(encoder: TransformerEncoder) -> Numbers:
    """Return the mean, smallest and largest gain of the last LayerNorm, and the mean gain of every layer's."""
    gain = last_norm(encoder).weight.detach()
    layers = [float(parts.norm_output.weight.detach().mean()) for parts in encoder._parts()]
    return {"gain": float(gain.mean()), "gain_min": float(gain.min()), "gain_max": float(gain.max()), "gains": layers}


def spread(embeddings: Tensor) -> Numbers:
    """Return the mean cosine of different rows of (n,d) embeddings and their mean length."""
    unit, count = F.normalize(embeddings, dim=1), len(embeddings)
    cosine = (unit.sum(0).square().sum() - unit.square().sum()) / (count * (count - 1))
    return {"cosine": float(cosine), "length": float(embeddings.norm(dim=1).mean())}


@contextmanager
def reference(encoder: TransformerEncoder) -> Iterator[None]:
    """Run the encoder in float32 with torch's operations; the bias used by recorded steps keeps its address."""
    bias, precision, states = encoder._bias, encoder.precision, encoder.__dict__.pop("states", None)
    encoder.precision = "float32"
    try:
        yield
    finally:
        encoder.precision, encoder._bias = precision, bias
        if states is not None:
            encoder.states = states


@torch.no_grad()
def largest_inside(encoder: TransformerEncoder, ids: Tensor, layout: Layout) -> Numbers:
    """Return, by layer, the largest entry of the residual stream before and after each LayerNorm and of the logits."""
    sums: list[float] = []
    normed: list[float] = []
    logits: list[float] = []
    attend, norm = packed.attend, packed.layer_norm

    def seen_attend(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None, share: float) -> Tensor:
        logits.append(_largest_logit(qkv, layout, heads, bias))
        return attend(qkv, layout, heads, bias, share)

    def seen_norm(x: Tensor, *rest: Any) -> Tensor:
        out = norm(x, *rest)
        sums.append(float(x.abs().max()))
        normed.append(float(out.abs().max()))
        return out

    with reference(encoder), _patched(packed, attend=seen_attend, _norm=seen_norm):
        encoder(ids, layout)
    return {"attention_logit": logits, "residual_sum": sums[1::2], "residual_normed": normed[1::2]}


def _largest_logit(qkv: Tensor, layout: Layout, heads: int, bias: Tensor | None) -> float:
    largest = 0.0
    for document in torch.split(qkv, list(layout.lengths)):
        query, key, _ = document.view(len(document), 3, heads, -1).permute(1, 2, 0, 3)
        scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
        if bias is not None:
            scores = scores + bias[:, : len(document), : len(document)]
        largest = max(largest, float(scores.abs().max()))
    return largest


def errors(network: method.DennNetwork, ids: Tensor, layout: Layout, labels: Tensor) -> Numbers:
    """Compare embeddings and gradients of the training pass, without dropout, with float32 and torch's operations.

    Both are ‖a − b‖/‖b‖, with the cosine similarity of the gradients.
    """
    weights = [weight for weight in network.parameters() if weight.requires_grad]

    def both() -> tuple[Tensor, tuple[Tensor, ...]]:
        embeddings = network.scaled_embeddings(ids, layout)
        loss = F.binary_cross_entropy_with_logits(network.classify(embeddings), labels.float())
        grads = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        return embeddings.detach(), grads

    used, used_grads = both()
    with reference(network.encoder):
        exact, exact_grads = both()
    size = torch.stack(torch._foreach_norm(exact_grads)).norm()
    difference = torch.stack(torch._foreach_norm(torch._foreach_sub(used_grads, exact_grads))).norm()
    products = torch.stack([(a * b).sum() for a, b in zip(used_grads, exact_grads, strict=True)]).sum()
    mine = torch.stack(torch._foreach_norm(used_grads)).norm()
    return {
        "embedding_error": float((used - exact).norm() / exact.norm()),
        "gradient_error": float(difference / size),
        "gradient_cosine": float(products / (mine * size)),
        "gradient_exact": float(size),
    }


def small_moments(optimiser: torch.optim.Optimizer) -> Numbers:
    """Return the share of weights whose √v is below Adam's ε."""
    below = count = 0
    for group in optimiser.param_groups:
        for weight in group["params"]:
            if weight in optimiser.state:
                roots = optimiser.state[weight]["exp_avg_sq"].sqrt()
                below += int((roots < group["eps"]).sum())
                count += roots.numel()
    return {"moments_below_eps": below / max(count, 1)}


def pack_all(tokens: Tokens, device: torch.device) -> tuple[Tensor, Layout]:
    """Pack all texts into one pass."""
    return tokens.to(device).pack(torch.arange(len(tokens)))


@contextmanager
def _patched(module: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    kept = {name: getattr(module, name) for name in functions}
    for name, function in functions.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(module, name, function)

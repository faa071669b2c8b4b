"""Which pairs of features a cross network has learned to cross, and how much each moves the answer.

The block view of a cross layer (Eq. 12 of the paper, section 7.5) is ``x0 ⊙ (W x_l) = [x0_i ⊙ Σ_j W_ij x_l,j]_i``: block
(i, j) of W crosses feature i with feature j. Two numbers describe it:

- the **norm** ||W_ij||_F, the paper's own measure. It ignores how large the embedded vectors are, and what becomes of
  the product afterwards;
- the **strength**, how far the pair moves the logit: the root mean square over rows of

      p_ij = Σ_{a in i, b in j} g_a (x0_a - E x0_a) W_ab (x_l,b - E x_l,b)

  with g the gradient of the row's logit by the layer's output. Both factors are centred, so that what a single feature
  does alone (x0_i times the mean of x_j) is not counted as a cross.

A pair is listed once: its strength is that of p_ij + p_ji, its norm that of both blocks together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from crossrank.data import Split
from crossrank.models import Model
from crossrank.nn import CrossLayer, Features, LowRankCrossLayer, MixtureCrossLayer, VectorCrossLayer
from crossrank.schema import InputLayout

SAMPLE_ROWS = 4096  # the strengths of a few thousand rows agree to about a percent, and the cost is rows x D²


class Explained(Protocol):
    @property
    def crosses(self) -> list[dict[str, Any]]: ...


def explain(run: Explained, *, top: int | None = None, layer: int | None = None) -> list[dict[str, Any]]:
    """The learned crosses of a run, strongest first.

    Args:
        run: a run folder's :class:`Run`.
        top: how many; all where left out.
        layer: only those of this cross layer, counted from 1. A pair of layer 1 is a cross of two features; in layer l
            the right-hand side already holds crosses of order up to l.

    Returns:
        ``[{"left": …, "right": …, "strength": …, "norm": …, "layer": …, "network": …}, …]``
    """
    pairs = [pair for pair in run.crosses if layer is None or pair["layer"] == layer]
    return sorted(pairs, key=lambda pair: -pair["strength"])[:top]


def measure_crosses(model: Model, rows: Split) -> list[dict[str, Any]]:
    """Norm and strength of every pair in every cross layer, measured on a sample of rows."""
    networks = model.cross_networks()
    if not networks or rows.num_rows == 0:
        return []
    features = next(iter(rows.batches(SAMPLE_ROWS, seed=0))).features
    seen = _trace(model, features)
    return [
        pair | {"layer": depth, "network": number}
        for number, network in enumerate(networks, start=1)
        for depth, layer in enumerate(network.layers, start=1)
        for pair in _pairs(model.layout, layer, *seen[layer])
    ]


def _trace(model: Model, features: Features) -> dict[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    """For each cross layer: x0, x_l, and the gradient of each row's logit by the layer's output; each (B, D)."""
    seen: dict[nn.Module, tuple[Tensor, Tensor, Tensor]] = {}

    def remember(layer: nn.Module, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        seen[layer] = (*inputs, output)

    layers = [layer for network in model.cross_networks() for layer in network.layers]
    hooks = [layer.register_forward_hook(remember) for layer in layers]
    training = model.training
    model.eval()
    try:
        logits = model(features)
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    gradients = torch.autograd.grad(logits.sum(), [seen[layer][2] for layer in layers])
    return {
        layer: (seen[layer][0].detach(), seen[layer][1].detach(), gradient)
        for layer, gradient in zip(layers, gradients, strict=True)
    }


@torch.no_grad()
def _pairs(layout: InputLayout, layer: nn.Module, x0: Tensor, xl: Tensor, gradient: Tensor) -> Iterator[dict[str, Any]]:
    weight = mean_matrix(layer, xl)  # (D, D)
    left = gradient * (x0 - x0.mean(dim=0))  # (B, D)
    right = xl - xl.mean(dim=0)  # (B, D)
    slots = layout.slots
    owner = torch.tensor([i for i, slot in enumerate(slots) for _ in range(slot.width)], device=x0.device)  # (D,)
    moved = torch.stack(
        [_sum_by_slot((left[:, slot.slice] @ weight[slot.slice]) * right, owner, len(slots)) for slot in slots]
    )  # (k, B, k): p_ij of every row
    blocks = _sum_by_slot(weight.square(), owner, len(slots))  # (D, k)
    blocks = _sum_by_slot(blocks.T, owner, len(slots)).T  # (k, k): ||W_ij||²
    for i, slot in enumerate(slots):
        for j in range(i, len(slots)):
            both = moved[i, :, j] + moved[j, :, i] if i != j else moved[i, :, i]  # (B,)
            yield {
                "left": slot.name,
                "right": slots[j].name,
                "strength": both.square().mean().sqrt().item(),
                "norm": math.sqrt(blocks[i, j].item() + (blocks[j, i].item() if i != j else 0.0)),
            }


def _sum_by_slot(values: Tensor, owner: Tensor, num_slots: int) -> Tensor:
    """(N, D) -> (N, k): sum the columns of each slot."""
    return values.new_zeros(values.shape[0], num_slots).index_add_(1, owner, values)


def mean_matrix(layer: nn.Module, xl: Tensor) -> Tensor:
    """The matrix W that a layer multiplies x_l with; for a mixture its mean over the rows of x_l.

    ::

        full        W                            low-rank    U Vᵀ                          vector   1 wᵀ
        mixture     Σ_k U_k M_k V_kᵀ   with M_k = E[G_k] I (Eq. 3), or C_k ⊙ E[G_k g'(outer) g'(inner)ᵀ] (Eq. 4):
                    the mean of the slope diag(g') C_k diag(g') that the activations leave.

    Shape: xl (B, D) -> (D, D).
    """
    if isinstance(layer, CrossLayer):
        return layer.weight.detach()
    if isinstance(layer, LowRankCrossLayer):
        return (layer.up @ layer.down).detach()
    if isinstance(layer, VectorCrossLayer):
        return layer.weight.detach().expand(layer.weight.shape[0], -1)
    if not isinstance(layer, MixtureCrossLayer):
        raise TypeError(f"no matrix is known for a {type(layer).__name__}")
    gates = layer.gates(xl).expand(len(xl), -1)  # (B, K)
    if layer.middle is None:
        return torch.einsum("k,kdr,kre->de", gates.mean(dim=0), layer.up, layer.down).detach()
    inner = torch.einsum("bd,krd->bkr", xl, layer.down)  # (B, K, R)
    outer = torch.einsum("bkr,ksr->bks", layer.activation(inner), layer.middle)  # (B, K, R)
    slopes = torch.einsum("bk,bks,bkr->ksr", gates, _slope(layer.activation, outer), _slope(layer.activation, inner))
    middle = layer.middle * slopes / len(xl)  # (K, R, R)
    return torch.einsum("kds,ksr,kre->de", layer.up, middle, layer.down).detach()


def _slope(activation: Any, x: Tensor) -> Tensor:
    """g'(x), elementwise."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(activation(x).sum(), x)
    return slope

"""Which pairs of features a cross network has learned to cross, and how much each moves the answer.

The block view of a cross layer (Eq. 12 of the paper, section 7.5) is ``x0 ⊙ (W x_l) = [x0_i ⊙ Σ_j W_ij x_l,j]_i``:
block (i, j) of W crosses feature i with feature j. Two numbers describe it:

- the **norm** ||W_ij||_F, the paper's own measure. It ignores how large the embedded vectors are, and what becomes of
  the product afterwards;
- the **strength**, how far the pair moves the logit: the root mean square over rows of

      p_ij = Σ_{a in i, b in j} g_a (x0_a - E x0_a) W_ab (x_l,b - E x_l,b)

  with g the gradient of the row's logit by the layer's output. Both factors are centred, so that what a single feature
  does alone (x0_i times the mean of x_j) is not counted as a cross.

A pair is listed once: its strength is that of p_ij + p_ji, its norm that of both blocks together. The directed view
lists both blocks, (i, j) for x0_i ⊙ W_ij x_l,j. What a feature does with itself, the blocks (i, i), is listed apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from crossrank.data import Split
from crossrank.models import Model
from crossrank.nn import CrossLayer, Features, LowRankCrossLayer, MixtureCrossLayer, VectorCrossLayer
from crossrank.schema import InputLayout

SAMPLE_ROWS = 4096  # the strengths of a few thousand rows agree to about a percent, and the cost is rows x D²
TRACED_NUMBERS = 2**23  # p_ij of all pairs that are in memory at a time


class Explained(Protocol):
    @property
    def crosses(self) -> list[dict[str, Any]]: ...


def explain(
    run: Explained, *, top: int | None = None, layer: int | None = None, directed: bool = False, selves: bool = False
) -> list[dict[str, Any]]:
    """The learned crosses of a run, strongest first.

    Args:
        run: a run folder's :class:`Run`.
        top: how many; all where left out.
        layer: only those of this cross layer, counted from 1. A pair of layer 1 is a cross of two features; in layer l
            the right-hand side already holds crosses of order up to l.
        directed: list both blocks of a pair: the left feature multiplies what W makes of the right one.
        selves: what features do with themselves, instead of pairs of two.

    Returns:
        ``[{"left": …, "right": …, "strength": …, "norm": …, "layer": …, "network": …}, …]``
    """
    pairs = [
        pair
        for pair in run.crosses
        if (layer is None or pair["layer"] == layer) and (pair["left"] == pair["right"]) is selves
    ]
    views = [view for pair in pairs for view in (_directed(pair) if directed else [_symmetric(pair)])]
    return sorted(views, key=lambda pair: -pair["strength"])[:top]


def _symmetric(pair: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pair.items() if key not in ("strengths", "norms")}


def _directed(pair: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Both blocks of a pair, or the one of a feature with itself."""
    ends = ((pair["left"], pair["right"]), (pair["right"], pair["left"]))
    for (left, right), strength, norm in zip(ends, pair["strengths"], pair["norms"], strict=False):
        yield _symmetric(pair) | {"left": left, "right": right, "strength": strength, "norm": norm}


def measure_crosses(model: Model, rows: Split) -> list[dict[str, Any]]:
    """Norm and strength of every pair in every cross layer, measured on a sample of rows."""
    networks = model.cross_networks()
    if not networks or rows.num_rows == 0:
        return []
    seen = trace(model, sample(rows))
    return [
        pair | {"layer": depth, "network": number}
        for number, network in enumerate(networks, start=1)
        for depth, layer in enumerate(network.layers, start=1)
        for pair in _pairs(model.layout, layer, *seen[layer])
    ]


def sample(rows: Split) -> Features:
    """The features of a few thousand rows, the same each time."""
    return next(iter(rows.batches(SAMPLE_ROWS, seed=0))).features


def trace(model: Model, features: Features) -> dict[nn.Module, tuple[Tensor, Tensor, Tensor]]:
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
    slots = layout.slots
    owner = torch.tensor([i for i, slot in enumerate(slots) for _ in range(slot.width)], device=x0.device)  # (D,)
    weight = mean_matrix(layer, xl)  # (D, D)
    blocks = _sum_by_slot(weight.square(), owner, len(slots))  # (D, k)
    blocks = _sum_by_slot(blocks.T, owner, len(slots)).T  # (k, k): ||W_ij||²
    left = gradient * (x0 - x0.mean(dim=0))  # (B, D)
    moved, together = _moments(layout, weight, left, xl - xl.mean(dim=0), owner)
    norms, strengths = blocks.sqrt().tolist(), moved.sqrt().tolist()
    both = (moved + moved.T + 2 * together).clamp_min(0).sqrt().tolist()  # the root of E (p_ij + p_ji)²
    for i, slot in enumerate(slots):
        for j in range(i, len(slots)):
            ways = [(i, j), (j, i)] if i != j else [(i, i)]
            yield {
                "left": slot.name,
                "right": slots[j].name,
                "strength": both[i][j] if i != j else strengths[i][i],
                "norm": sum(norms[a][b] ** 2 for a, b in ways) ** 0.5,
                "strengths": [strengths[a][b] for a, b in ways],
                "norms": [norms[a][b] for a, b in ways],
            }


def _moments(layout: InputLayout, weight: Tensor, left: Tensor, right: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
    """E p_ij² and E p_ij p_ji of every pair; (k, k) each."""
    slots = layout.slots
    squares, products = left.new_zeros(2, len(slots), len(slots))
    step = max(1, TRACED_NUMBERS // len(slots) ** 2)
    for first in range(0, len(left), step):
        some, others = left[first : first + step], right[first : first + step]  # (b, D)
        parts = [_sum_by_slot((some[:, s.slice] @ weight[s.slice]) * others, owner, len(slots)) for s in slots]
        moved = torch.stack(parts)  # (k, b, k): p_ij of every row
        squares += moved.square().sum(dim=1)
        products += torch.einsum("ibj,jbi->ij", moved, moved)
    return squares / len(left), products / len(left)


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

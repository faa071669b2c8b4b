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

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from crossrank.data import Split
from crossrank.models import Model
from crossrank.nn import BaseCrossLayer, Features
from crossrank.results import Cross
from crossrank.schema import InputLayout

SAMPLE_ROWS = 4096  # the strengths of a few thousand rows agree to about a percent, and the cost is rows x D²
TRACED_NUMBERS = 2**23  # p_ij of all pairs that are in memory at a time


class Explained(Protocol):
    @property
    def crosses(self) -> Sequence[Cross]: ...


def explain(
    run: Explained, *, top: int | None = None, layer: int | None = None, directed: bool = False, selves: bool = False
) -> list[Cross]:
    """The learned crosses of a run, strongest first.

    Args:
        run: a run folder's :class:`Run`.
        top: how many; all where left out.
        layer: only those of this cross layer, counted from 1. A pair of layer 1 is a cross of two features; in layer l
            the right-hand side already holds crosses of order up to l.
        directed: list both blocks of a pair: the left feature multiplies what W makes of the right one.
        selves: what features do with themselves, instead of pairs of two.

    Returns:
        A :class:`~crossrank.results.Cross` each; ``.to_dict()`` is a line of ``crossrank explain --json``.
    """
    found = [one for one in run.crosses if (layer is None or one.layer == layer) and one.of_itself is selves]
    views = [view for one in found for view in (_directed(one) if directed else [_whole(one)])]
    return sorted(views, key=lambda one: -one.strength)[:top]


def _whole(cross: Cross) -> Cross:
    return dataclasses.replace(cross, strengths=(), norms=())


def _directed(cross: Cross) -> Iterator[Cross]:
    """Both blocks of a pair, or the one of a feature with itself."""
    ways = (cross.features, cross.features[::-1])
    for features, strength, norm in zip(ways, cross.strengths, cross.norms, strict=False):
        yield dataclasses.replace(_whole(cross), features=features, strength=strength, norm=norm)


def measure_crosses(model: Model, rows: Split) -> list[Cross]:
    """Norm and strength of every pair in every cross layer that tells its matrix, measured on a sample of rows.

    Of an ensemble it is their mean over the members.
    """
    found = [list(_crosses(member, rows)) for member in model.members]
    return [_mean(same) for same in zip(*found, strict=True)]


def _crosses(model: Model, rows: Split) -> Iterator[Cross]:
    for place, weight, seen in matrices(model, rows):
        yield from _pairs(model.layout, weight, *seen, place=place)


def _mean(crosses: Sequence[Cross]) -> Cross:
    """The same cross of several models."""
    return dataclasses.replace(
        crosses[0],
        strength=fmean(one.strength for one in crosses),
        norm=fmean(one.norm for one in crosses),
        strengths=tuple(map(fmean, zip(*(one.strengths for one in crosses), strict=True))),
        norms=tuple(map(fmean, zip(*(one.norms for one in crosses), strict=True))),
    )


def matrices(model: Model, rows: Split) -> Iterator[tuple[dict[str, int], Tensor, tuple[Tensor, Tensor, Tensor]]]:
    """Of each cross layer that tells it: its place, its matrix over a sample of rows, and their :func:`trace`."""
    if rows.num_rows == 0 or not model.cross_networks():
        return
    seen = trace(model, sample(rows))
    for number, depth, layer in model.cross_layers():
        if layer in seen:
            weight = layer.matrix(seen[layer][1]).detach()
            yield {"network": number, "layer": depth}, weight, seen[layer]


def sample(rows: Split) -> Features:
    """The features of a few thousand rows, the same each time."""
    return next(iter(rows.batches(SAMPLE_ROWS, seed=0))).features


def trace(model: Model, features: Features) -> dict[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    """For each layer that tells its matrix: x0, x_l, the gradient of each row's logit by its output; each (B, D).

    A layer that multiplies something else than x0 says so (``factor``); that stands in its place.
    """
    seen: dict[nn.Module, tuple[Tensor, Tensor, Tensor]] = {}

    def remember(layer: nn.Module, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        x0, xl = inputs
        seen[layer] = (cast(BaseCrossLayer, layer).factor(x0, xl), xl, output)

    layers = [layer for _, _, layer in model.cross_layers() if getattr(layer, "tells_matrix", False)]
    hooks = [layer.register_forward_hook(remember) for layer in layers]
    training = model.training
    model.eval()
    try:
        logits = model.in_units(model(features))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    gradients = torch.autograd.grad(logits.sum(), [seen[layer][2] for layer in layers]) if layers else ()
    return {
        layer: (seen[layer][0].detach(), seen[layer][1].detach(), gradient)
        for layer, gradient in zip(layers, gradients, strict=True)
    }


@torch.no_grad()
def _pairs(
    layout: InputLayout, weight: Tensor, x0: Tensor, xl: Tensor, gradient: Tensor, *, place: Mapping[str, int]
) -> Iterator[Cross]:
    slots = layout.slots
    owner = torch.tensor([i for i, slot in enumerate(slots) for _ in range(slot.width)], device=x0.device)  # (D,)
    blocks = _sum_by_slot(weight.square(), owner, len(slots))  # (D, k)
    blocks = _sum_by_slot(blocks.T, owner, len(slots)).T  # (k, k): ||W_ij||²
    left = gradient * (x0 - x0.mean(dim=0))  # (B, D)
    moved, together = _moments(layout, weight, left, xl - xl.mean(dim=0), owner)
    norms, strengths = blocks.sqrt().tolist(), moved.sqrt().tolist()
    both = (moved + moved.T + 2 * together).clamp_min(0).sqrt().tolist()  # the root of E (p_ij + p_ji)²
    for i, slot in enumerate(slots):
        for j in range(i, len(slots)):
            ways = [(i, j), (j, i)] if i != j else [(i, i)]
            yield Cross(
                features=(slot.name, slots[j].name),
                strength=both[i][j] if i != j else strengths[i][i],
                norm=sum(norms[a][b] ** 2 for a, b in ways) ** 0.5,
                strengths=tuple(strengths[a][b] for a, b in ways),
                norms=tuple(norms[a][b] for a, b in ways),
                **place,
            )


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

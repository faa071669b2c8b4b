"""Which pairs of features a cross network has learned to cross, and how much each moves the answer.

The block view of a cross layer (Eq. 12 of the paper, section 7.5) is ``x0 ⊙ (W x_l) = [x0_i ⊙ Σ_j W_ij x_l,j]_i``:
block (i, j) of W crosses feature i with feature j. Two numbers describe it:

- the **norm** ||W_ij||_F, the paper's own measure. It ignores how large the embedded vectors are, and what becomes of
  the product afterwards;
- the **strength**, how far the pair moves the logit: the root mean square over rows of

      p_ij = Σ_{a in i, b in j} g_a (x0_a - E x0_a) W_ab (x_l,b - E x_l,b)

  with g the gradient of the row's logit by the layer's output. Both factors are centred, so that what a single feature
  does alone (x0_i times the mean of x_j) is not counted as a cross. Where the sum of a pair's products is itself an
  input of the deep network (``model.cross.pooled``), g_a is more by the gradient of the logit by that number.

A pair is listed once: its strength is that of p_ij + p_ji, its norm that of both blocks together. The directed view
lists both blocks, (i, j) for x0_i ⊙ W_ij x_l,j. What a feature does with itself, the blocks (i, i), is listed apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from crossrank.data import Split
from crossrank.models import Model
from crossrank.models.base import evaluating
from crossrank.nn import Features
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
        yield from _pairs(model.layout, weight, seen, place=place)


def _mean(crosses: Sequence[Cross]) -> Cross:
    """The same cross of several models."""
    return dataclasses.replace(
        crosses[0],
        strength=fmean(one.strength for one in crosses),
        norm=fmean(one.norm for one in crosses),
        strengths=tuple(map(fmean, zip(*(one.strengths for one in crosses), strict=True))),
        norms=tuple(map(fmean, zip(*(one.norms for one in crosses), strict=True))),
    )


class Traced(NamedTuple):
    """What is seen of a cross layer: its factor x0, its input and the gradient of each row's logit by its output.

    ``pooled`` is the gradient by each pair's pooled number, and the kernel that makes them, where there are any.

    Shape: (B, D) each; (B, P) and (D, D).
    """

    x0: Tensor
    xl: Tensor
    gradient: Tensor
    pooled: tuple[Tensor, Tensor] | None


def matrices(model: Model, rows: Split) -> Iterator[tuple[dict[str, int], Tensor, Traced]]:
    """Of each cross layer that tells it: its place, its matrix over a sample of rows, and their :func:`trace`."""
    if rows.num_rows == 0 or not model.cross_networks():
        return
    seen = trace(model, sample(rows))
    for number, depth, layer in model.cross_layers():
        if layer in seen:
            weight = layer.matrix(seen[layer].xl).detach()
            yield {"network": number, "layer": depth}, weight, seen[layer]


def sample(rows: Split) -> Features:
    """The features of a few thousand rows, the same each time."""
    return next(iter(rows.batches(SAMPLE_ROWS, seed=0))).features


def trace(model: Model, features: Features) -> dict[nn.Module, Traced]:
    """What is seen of each layer that tells its matrix.

    A layer that multiplies something else than x0 says so (``factor``); that stands in its place.
    """
    seen: dict[nn.Module, tuple[tuple[Tensor, ...], Tensor]] = {}

    def remember(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[module] = inputs, output

    layers: list[Any] = [layer for _, _, layer in model.cross_layers() if getattr(layer, "tells_matrix", False)]
    pools = {layer: pool for layer, pool in model.pools().items() if layer in layers}
    hooks = [module.register_forward_hook(remember) for module in (*layers, *pools.values())]
    try:
        with evaluating(model):
            logits = model.in_units(model(features))
    finally:
        for hook in hooks:
            hook.remove()
    traced = (*layers, *pools.values())
    gradients = torch.autograd.grad(logits.sum(), [seen[module][1] for module in traced]) if layers else ()
    by_output, found = dict(zip(traced, gradients, strict=True)), {}
    for layer in layers:
        x0, xl = (part.detach() for part in seen[layer][0])
        pooled = (by_output[pools[layer]], layer.kernel().detach()) if layer in pools else None
        found[layer] = Traced(layer.factor(x0, xl), xl, by_output[layer], pooled)
    return found


@torch.no_grad()
def _pairs(layout: InputLayout, weight: Tensor, seen: Traced, *, place: Mapping[str, int]) -> Iterator[Cross]:
    slots, x0 = layout.slots, seen.x0
    owner = torch.tensor([i for i, slot in enumerate(slots) for _ in range(slot.width)], device=x0.device)  # (D,)
    blocks = _sum_by_slot(weight.square(), owner, len(slots))  # (D, k)
    blocks = _sum_by_slot(blocks.T, owner, len(slots)).T  # (k, k): ||W_ij||²
    moved, together = _moments(layout, weight, seen, owner)
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


def _moments(layout: InputLayout, weight: Tensor, seen: Traced, owner: Tensor) -> tuple[Tensor, Tensor]:
    """E p_ij² and E p_ij p_ji of every pair; (k, k) each."""
    left, right = seen.x0 - seen.x0.mean(dim=0), seen.xl - seen.xl.mean(dim=0)  # (B, D)
    count = len(layout.slots)
    squares, products = left.new_zeros(2, count, count)
    step = max(1, TRACED_NUMBERS // count**2)
    for some in (slice(first, first + step) for first in range(0, len(left), step)):
        moved = _products(layout, weight, seen.gradient[some] * left[some], right[some], owner)
        if seen.pooled is not None:
            by_pairs, kernel = seen.pooled
            slopes = left.new_zeros(len(left[some]), count, count)
            i, j = torch.triu_indices(count, count)
            slopes[:, i, j] = slopes[:, j, i] = by_pairs[some]
            moved += slopes.transpose(0, 1) * _products(layout, kernel, left[some], right[some], owner)
        squares += moved.square().sum(dim=1)
        products += torch.einsum("ibj,jbi->ij", moved, moved)
    return squares / len(left), products / len(left)


def _products(layout: InputLayout, weight: Tensor, left: Tensor, right: Tensor, owner: Tensor) -> Tensor:
    """Σ_{a in i, b in j} left_a W_ab right_b of each row and pair: (b, D) each -> (k, b, k)."""
    parts = [(left[:, slot.slice] @ weight[slot.slice]) * right for slot in layout.slots]
    return torch.stack([_sum_by_slot(part, owner, len(layout.slots)) for part in parts])


def _sum_by_slot(values: Tensor, owner: Tensor, num_slots: int) -> Tensor:
    """(N, D) -> (N, k): sum the columns of each slot."""
    return values.new_zeros(values.shape[0], num_slots).index_add_(1, owner, values)

"""Cross networks below a deep network.

Of one or two affine layers the context's elements are affine in what is left of an item. With ``A s = W0[:, I] v`` as
in :mod:`crossrank.serving.affine_layers`, β = b + 1 of the first layer, and y = x1[I]::

    y     = v ⊙ (p + A s)[I]                                     p = β + W0[:, C] c
    x1[C] = k + S s                                              k = c ⊙ p[C],  S = diag(c) A[C]
    x2[I] = v ⊙ (W1[I, C] (k + S s) + W1[I, I] y + b1[I]) + y
    x2[C] = c ⊙ (W1[C, C] k + b1[C]) + k + (diag(c) W1[C, C] S + S) s + diag(c) W1[C, I] y

So the first deep layer meets s, y and x2[I] of an item, and no vector as wide as x0; what it meets them with is found
once a request, which pays where there are more items than s and y are wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.nn import CrossNetwork, DeepNetwork
from crossrank.serving.affine_layers import Affine, Sides, cross, thin
from crossrank.serving.crossed import Crossed, Crossing
from crossrank.serving.deep_terms import FirstOut
from crossrank.serving.multiplying import Dense


class Stacked:
    """``w·deep(cross(x0))``: the first cross layer is taken apart, and the second one is narrower."""

    def __init__(
        self, networks: Sequence[CrossNetwork], deep: DeepNetwork, head: Tensor, sides: Sides, precision: torch.dtype
    ) -> None:
        self.networks = [Crossed(network, None, sides) for network in networks]
        self.deep = FirstOut(deep, head, precision)
        self.first, self.bias = Dense(self.deep.weight.to(precision)), self.deep.bias.to(precision)

    def item(self, v: Tensor) -> Tensor:
        return torch.cat([one.item(v) for one in self.networks], dim=1)

    def request(self, c: Tensor) -> Any:
        return [one.request(c) for one in self.networks]

    def logits(self, request: Any, v: Tensor, known: Tensor) -> Tensor:
        parts = torch.split(known, [one.projected.shape[1] for one in request], dim=2)
        each = zip(self.networks, request, parts, strict=True)
        crossed = torch.cat([one.crossed(state, v, q, len(one.layers))[1] for one, state, q in each], dim=2)
        hidden = self.first(crossed.to(self.bias.dtype), self.bias)
        return self.deep.rest(hidden.to(crossed.dtype))


class _Shared(NamedTuple):
    """What a network of affine layers makes of B requests, for many items."""

    p: Tensor  # (B, 1, I), the item's elements
    read: Tensor | None  # (B, 1 + S + I, I), what x2[I] reads of 1, s and y, where there is a second layer
    first: Tensor  # (B, 1 + S + I or 1 + S, H), what the first deep layer makes of the context's elements by them


class _Affine:
    """One or two affine layers, and the columns of the first deep layer that meet them."""

    def __init__(self, network: CrossNetwork, weight: Tensor, sides: Sides) -> None:
        first, *others = (Affine.of(layer) for layer in network.layers)
        (context, item), order = sides, torch.cat(sides)
        self.down = first.down[:, item]  # (R, I), what the first layer reads
        a, to_s = thin(first.up, self.down)
        self.s_is_v, self.width = to_s is None, a.shape[1] + len(item)
        self.a_context, self.a_item = a[context].T.contiguous(), a[item].T.contiguous()  # (S, C), (S, I)
        self.second = others[0] if others else None
        self.through: list[Dense] = []  # W1[:, C], the context's rows before the item's
        if self.second is not None:
            up, down = self.second.up[order], self.second.down[:, context]
            narrow = 2 * len(down) < len(order)
            self.through = [Dense(one.contiguous()) for one in ((down, up) if narrow else (up @ down,))]
            self.of_item = (up @ self.second.down[:, item]).T.contiguous()  # (I, D), W1[:, I]
            self.bias = self.second.bias[order]
        self.to_deep, self.of_last = Dense(weight[:, context].contiguous()), weight[:, item].T.contiguous()  # (I, H)

    def shared(self, c: Tensor, p: Tensor, sides: Sides) -> _Shared:
        """(B, C), (B, D) -> what is found once a request"""
        context, p_item, c = (c * p[:, sides.context])[:, None], p[:, None, sides.item], c[:, None]
        reached, read = torch.cat([context, self.a_context * c], dim=1), None  # (B, 1 + S, C), x1[C] of 1 and s
        if self.second is not None:
            every = reached
            for dense in self.through:
                every = dense(every)
            every[:, 0] += self.bias
            every = torch.cat([every, self.of_item.expand(len(c), -1, -1)], dim=1)  # (B, 1 + S + I, D)
            of_context, read = every.tensor_split([c.shape[2]], dim=2)
            reached = cross(c, of_context, F.pad(reached, (0, 0, 0, len(self.of_item))), self.second.residual)
        return _Shared(p_item, read, self.to_deep(reached))

    def items(self, shared: _Shared, v: Tensor) -> tuple[Tensor, Tensor]:
        """What the first deep layer meets of items, and what with: (B or 1, N, I) -> (B, N, P), (B, P, H)."""
        s = (v if self.s_is_v else v @ self.down.T).expand(len(shared.p), -1, -1)
        y = v * (s @ self.a_item + shared.p)  # (B, N, I)
        met, last = torch.cat([s, y], dim=2), self.of_last.expand(len(y), -1, -1)
        if self.second is None or shared.read is None:
            return met, torch.cat([shared.first[:, 1:], last], dim=1)
        read = torch.baddbmm(shared.read[:, :1], met, shared.read[:, 1:])
        x2 = cross(v, read, y, self.second.residual)
        return torch.cat([met, x2], dim=2), torch.cat([shared.first[:, 1:], last], dim=1)


class _Request:
    """What is known of requests; the larger part once it is asked for."""

    def __init__(self, term: AffineStacked, crossings: list[Crossing]) -> None:
        self.term, self.crossings = term, crossings

    @cached_property
    def shared(self) -> list[_Shared]:
        found = []
        for network, affine, crossing in zip(self.term.networks, self.term.affine, self.crossings, strict=True):
            first = network.layers[0]
            p = first.spread(crossing.projected) + float(first.residual)
            found.append(affine.shared(crossing.c, p, network.sides))
        return found


class AffineStacked(Stacked):
    """The same of networks with one or two affine layers, as the head of this file has it; of an item v is kept."""

    def __init__(
        self, networks: Sequence[CrossNetwork], deep: DeepNetwork, head: Tensor, sides: Sides, precision: torch.dtype
    ) -> None:
        super().__init__(networks, deep, head, sides, precision)
        each = self.deep.weight.chunk(len(networks), dim=1)  # (H, D) each
        self.affine = [_Affine(network, weight, sides) for network, weight in zip(networks, each, strict=True)]

    def item(self, v: Tensor) -> Tensor:
        return v[:, :0]

    def request(self, c: Tensor) -> _Request:
        return _Request(self, super().request(c))

    def logits(self, request: _Request, v: Tensor, known: Tensor) -> Tensor:
        if v.shape[1] <= max(one.width for one in self.affine):
            return super().logits(request.crossings, v, torch.cat([v @ one.down.T for one in self.affine], dim=2))
        each = [one.items(shared, v) for one, shared in zip(self.affine, request.shared, strict=True)]
        items, weights = (torch.cat(parts, dim=dim) for parts, dim in zip(zip(*each, strict=True), (2, 1), strict=True))
        constant = torch.stack([one.first[:, :1] for one in request.shared]).sum(dim=0) + self.deep.bias
        return self.deep.rest(torch.baddbmm(constant, items, weights))

"""Cross networks whose context never sees the item, W[C, I] = 0 in each layer: taken apart at every depth.

::

    x^C_{l+1} = c ⊙ (W[C, C] x^C_l + b[C]) + x^C_l             once a request, and with it  r_l = W[I, C] x^C_l + b[I]
    x^I_{l+1} = v ⊙ (r_l + W[I, I] x^I_l) + x^I_l              for each item; q = W[I, I] v of the first layer is known

Under a head the last layer is ``w·x_L = w[C]·x^C_L + h·x^I_{L-1} + (w ⊙ v)[I]·r_{L-1} + w[I]·x^I_{L-1}``, with
h = W[I, I]ᵀ (w ⊙ v)[I] known of the item. Below a deep network its first layer is ``A[:, C] x^C_L + a`` of the request,
and ``A[:, I] x^I_L``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crossrank.nn import CrossNetwork, DeepNetwork
from crossrank.serving.affine_layers import Affine, Sides, cross
from crossrank.serving.deep_terms import FirstOut
from crossrank.serving.multiplying import Array, Dense, dots_of_each


class _Layer(NamedTuple):
    of_context: Tensor  # (D, C), W[:, C], the context's rows before the item's
    of_item: Tensor  # (I, I), W[I, I]
    bias: Tensor  # (D,), in the same order
    residual: float


class _Request(NamedTuple):
    context: Tensor  # (B, C), x^C_L
    reads: list[Tensor]  # (B, I), r_l of each layer


class Separable:
    """A cross network of any depth, under a head or below a deep network."""

    def __init__(self, network: CrossNetwork, head: Tensor | None, sides: Sides) -> None:
        self.layers, order, self.num_context = [], torch.cat(sides), len(sides.context)
        for layer in map(Affine.of, network.layers):
            rows = layer.up[order]  # (D, R)
            of_item = rows[self.num_context :] @ layer.down[:, sides.item]
            blocks = (rows @ layer.down[:, sides.context]).contiguous(), of_item.contiguous()
            self.layers.append(_Layer(*blocks, layer.bias[order], layer.residual))
        self.head = None if head is None else (head[sides.context], head[sides.item])
        self.work = len(self.layers) * len(sides.item) ** 2

    def item(self, v: Tensor) -> Tensor:
        known = [v @ self.layers[0].of_item.T]  # (N, I), q
        if self.head is not None:
            known.append((v * self.head[1]) @ self.layers[-1].of_item)  # (N, I), h
        return torch.cat(known, dim=1)

    @property
    def of_c(self) -> Array:
        return self.layers[0].of_context.numpy()

    def request(self, c: Tensor, found: Array | None = None) -> _Request:
        context, reads = c, []
        for number, layer in enumerate(self.layers):
            every = torch.from_numpy(found) if number == 0 and found is not None else None
            every = dots_of_each(layer.of_context[None], context) if every is None else every
            read, of_item = (every + layer.bias).tensor_split([self.num_context], dim=1)
            reads.append(of_item)
            context = cross(c, read, context, layer.residual)
        return _Request(context, reads)

    def crossed(self, request: _Request, v: Tensor, q: Tensor, num_layers: int) -> Tensor:
        """x^I after some layers: (B, N, I)."""
        xl, read = v, q
        for number in range(num_layers):
            layer = self.layers[number]
            read = q if number == 0 else xl @ layer.of_item.T
            xl = cross(v, read + request.reads[number][:, None], xl, layer.residual)
        return xl

    def logits(self, request: _Request, v: Tensor, known: Tensor) -> Tensor:
        assert self.head is not None  # a network below a deep one has no logits
        of_context, of_item = self.head
        q, h = known.chunk(2, dim=-1)
        xl = self.crossed(request, v, q, len(self.layers) - 1)
        last = ((h + self.layers[-1].residual * of_item) * xl).sum(dim=-1)
        return last + dots_of_each(v, of_item * request.reads[-1]) + (request.context @ of_context)[:, None]


class SeparableStacked:
    """``w·deep(cross(x0))``: an item meets as much of the first deep layer as is its own."""

    def __init__(
        self, networks: Sequence[CrossNetwork], deep: DeepNetwork, head: Tensor, sides: Sides, precision: torch.dtype
    ) -> None:
        self.networks = [Separable(network, None, sides) for network in networks]
        self.deep = FirstOut(deep, head, precision)
        each = self.deep.weight.chunk(len(networks), dim=1)  # (H, D) each
        self.of_context, of_item = (torch.cat([one[:, part] for one in each], dim=1) for part in sides)
        self.of_item = Dense(of_item)
        self.work = sum(one.work for one in self.networks) + of_item.numel() + self.deep.work

    def item(self, v: Tensor) -> Tensor:
        return torch.cat([one.item(v) for one in self.networks], dim=1)

    @property
    def of_c(self) -> Array:
        return np.concatenate([one.of_c for one in self.networks])

    def request(self, c: Tensor, found: Array | None = None) -> tuple[list[_Request], Tensor]:
        each = [None] * len(self.networks) if found is None else np.split(found, len(self.networks), axis=1)
        requests = [one.request(c, first) for one, first in zip(self.networks, each, strict=True)]
        context = torch.cat([one.context for one in requests], dim=1)
        return requests, dots_of_each(self.of_context[None], context) + self.deep.bias

    def logits(self, request: tuple[list[_Request], Tensor], v: Tensor, known: Tensor) -> Tensor:
        requests, shared = request
        each: Any = zip(self.networks, requests, known.chunk(len(requests), dim=-1), strict=True)
        parts = [one.crossed(state, v, q, len(one.layers)) for one, state, q in each]
        crossed = torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
        first = self.of_item(crossed, shared[0]) if len(shared) == 1 else self.of_item(crossed) + shared[:, None]
        return self.deep.rest(first)


def is_separable(network: CrossNetwork, sides: Sides) -> bool:
    """Whether no layer lets the context read the item."""
    layers: list[Any] = list(network.layers)
    if not all(layer.is_affine for layer in layers):
        return False
    return not any((one.up[sides.context] @ one.down[:, sides.item]).any() for one in map(Affine.of, layers))

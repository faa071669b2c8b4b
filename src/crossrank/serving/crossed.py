"""Cross networks of any depth and any layer that says how it is taken apart: the first layer, and what it spares.

The second layer of an affine first one, with the names of :mod:`crossrank.serving.splitting`, P what it reads by::

    P x1 = P[:, C] (c ⊙ (p + 1)) + M(c) v + P[:, I] x1[I]        M(c) = P[:, C] diag(c) W[C, I]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.nn import CrossNetwork
from crossrank.serving.affine_layers import Affine, Sides, cross, thin


class Crossing(NamedTuple):
    c: Tensor  # (B, C)
    projected: Tensor  # (B, Z), p without the bias
    pulled: Tensor  # (B, D) or (B, M), G


class Crossed:
    """A cross network of any depth: the first layer and, under a head, the last one are taken apart.

    A layer with gates or activations cannot let go of x_{L-1}; under a head it is spared the way back, ``spread``.
    """

    def __init__(self, network: CrossNetwork, head: Tensor | None, sides: Sides) -> None:
        self.layers: list[Any] = list(network.layers)
        self.sides, self.head = sides, head
        self.second: _Second | None = None
        if len(self.layers) > 1 and self.layers[0].is_affine:
            self.second = _Second(self.layers[0], self.layers[1], sides)
        if head is not None:
            last = Affine.of(self.layers[-1])
            self.bias = last.bias
            self.pull = last.up @ last.down if self.layers[-1].is_affine else last.up  # (D, D) or (D, M)

    def item(self, v: Tensor) -> Tensor:
        known = [self.layers[0].project(self.sides.spaced(v, self.sides.item))]  # (N, Z), q
        if self.head is not None:
            known.append(v * self.head[self.sides.item] @ self.pull[self.sides.item])  # (N, D) or (N, M), h
        return torch.cat(known, dim=1)

    def request(self, c: Tensor) -> Crossing:
        context = self.sides.context
        projected = self.layers[0].project(self.sides.spaced(c, context))
        pulled = c[:, :0] if self.head is None else c * self.head[context] @ self.pull[context]
        return Crossing(c, projected, pulled)

    def crossed(self, request: Crossing, v: Tensor, q: Tensor, num_layers: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """x0, x_l after some layers, (B, N, D) each, and what the next layer reads of x_l where that is known."""
        x0 = self.sides.joined(request.c, v)
        xl = x0
        read: Tensor | None = q + request.projected[:, None]
        for number, layer in enumerate(self.layers[:num_layers]):
            read = layer.project(xl) if read is None else read
            xl = cross(x0, layer.spread(layer.mix(read)), xl, layer.residual)
            worth_it = number == 0 and self.second is not None and v.shape[1] > self.second.width
            read = self.second.read(request, v, q, xl) if worth_it and self.second else None
        return x0, xl, read

    def logits(self, request: Crossing, v: Tensor, known: Tensor) -> Tensor:
        last, head = self.layers[-1], self.head
        assert head is not None  # a network below a deep one has no logits
        q, pulled = torch.split(known, [request.projected.shape[1], request.pulled.shape[1]], dim=2)
        x0, xl, read = self.crossed(request, v, q, len(self.layers) - 1)
        reached = xl
        if not last.is_affine:
            reached = last.mix(last.project(xl) if read is None else read)  # (B, N, M)
        logits: Tensor = ((pulled + request.pulled[:, None]) * reached).sum(dim=2) + x0 @ (head * self.bias)
        return logits + xl @ head if last.residual else logits


class _Second:
    """``P x1``, all that the second layer reads, with fewer products where there are more candidates than ``width``.

    As the head of this file has it, through the rank of the first layer where that is narrower than the item.
    """

    def __init__(self, first: Any, second: Any, sides: Sides) -> None:
        self.first, self.sides = first, sides
        matrix, read = Affine.of(first), Affine.of(second).down  # (Z, D)
        self.residual = matrix.residual
        up, to_known = thin(matrix.up, matrix.down[:, sides.item])
        self.known_is_v, self.width = to_known is None, up.shape[1]
        self.up = up[sides.context].contiguous()  # (C, S)
        self.of_context, self.of_item = read[:, sides.context].contiguous(), read[:, sides.item].T.contiguous()

    def read(self, request: Crossing, v: Tensor, q: Tensor, x1: Tensor) -> Tensor:
        """(B, N, D) -> (B, N, Z)"""
        context, item = self.sides
        scaled = self.up * request.c[:, :, None]  # (B, C, S), diag(c) W[C, I]
        p = self.first.spread(request.projected)[:, context] + self.residual
        shared = F.linear(request.c * p, self.of_context)  # (B, Z)
        both = torch.cat(
            [(self.of_context @ scaled).mT, self.of_item.expand(len(shared), -1, -1)], dim=1
        )  # (B, S + I, Z)
        known = (v if self.known_is_v else q).expand(len(shared), -1, -1)
        known = torch.cat([known, x1.index_select(2, item)], dim=2)  # (B, N, S + I)
        return torch.baddbmm(shared[:, None], known, both)

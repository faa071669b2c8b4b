"""A polynomial of degree two, Q(x0), alone or under a deep network: inner and outer products of fields.

With x0 = [c; 0] + [0; v], Q(x0) = Q(c) + Q(v) - Q(0) + K(c) v: what is left of a quadratic map is linear in v, and
``K(c) e_j = Q(c + e_j) - Q(c) - Q(e_j) + Q(0)`` are its columns. So the map is asked for I rows once a request, and
costs I products for each item and element of its answer; which map it is does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from crossrank.nn import DeepNetwork
from crossrank.serving.affine_layers import Sides
from crossrank.serving.deep_terms import FirstOut


class _Request(NamedTuple):
    shared: Tensor  # (B, H), Q(c)
    of_item: Tensor  # (B, I, H), K(c)


class Quadratic:
    """``w·deep(q(x0))``, q quadratic; Q is q and the first deep layer."""

    def __init__(
        self,
        quadratic: Callable[[Tensor], Tensor],
        deep: DeepNetwork,
        head: Tensor,
        sides: Sides,
        precision: torch.dtype,
    ) -> None:
        self.quadratic, self.sides = quadratic, sides
        self.deep = FirstOut(deep, head, precision)
        units = torch.eye(len(sides.item), dtype=head.dtype)
        self.units = sides.spaced(units, sides.item)  # (I, D), e_j
        self.of_nothing = self._first(self.units.new_zeros(1, self.units.shape[1]))[0]  # (H,), Q(0)
        self.of_units = self._first(self.units) - self.of_nothing  # (I, H), Q(e_j) - Q(0)

    def _first(self, x0: Tensor) -> Tensor:
        """Q: (N, D) -> (N, H)"""
        return torch.addmm(self.deep.bias, self.quadratic(x0), self.deep.weight.T)

    def item(self, v: Tensor) -> Tensor:
        return self._first(self.sides.spaced(v, self.sides.item)) - self.of_nothing

    def request(self, c: Tensor) -> _Request:
        x0 = self.sides.spaced(c, self.sides.context)  # (B, D)
        shared = self._first(x0)
        both = self._first((x0[:, None] + self.units).flatten(0, 1)).reshape(len(c), len(self.units), -1)  # (B, I, H)
        return _Request(shared, both - shared[:, None] - self.of_units)

    def logits(self, request: _Request, v: Tensor, known: Tensor) -> Tensor:
        return self.deep.rest(known + v @ request.of_item + request.shared[:, None])

"""The terms of a logit that are deep networks: ``A x0 + a = (A[:, C] c + a) + A[:, I] v``, and what follows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.nn import DeepNetwork
from crossrank.serving.affine_layers import Sides
from crossrank.serving.multiplying import Array, Dense, dots, matvecs


class FirstOut:
    """A deep network under a head as its first affine map, and the rest.

    Args:
        deep: the network; without layers the head is the first map.
        head: w.
        precision: of the rest.
    """

    def __init__(self, deep: DeepNetwork, head: Tensor, precision: torch.dtype) -> None:
        layers: list[Any] = list(deep.layers)
        self.weight: Tensor = layers[0].weight if layers else head[None]  # (H, D)
        self.bias: Tensor = layers[0].bias if layers else head.new_zeros(1)
        self.is_last, self.head, self.precision = not layers, head, precision
        self.by_relu = deep.activation is F.relu
        self.activation = torch.relu_ if self.by_relu else deep.activation
        self.others = [(Dense(one.weight.to(precision)), one.bias.to(precision)) for one in layers[1:]]

    @property
    def work(self) -> int:
        """The multiply-adds of a row after the first map."""
        return len(self.head) + sum(dense.weight.numel() for dense, _ in self.others)

    def rest(self, hidden: Tensor) -> Tensor:
        """From what the first map makes, which may be written over: (..., H) -> (...)"""
        if self.is_last:
            return hidden[..., 0]
        return self.after_first(self.activation(hidden))

    def after_first(self, hidden: Tensor) -> Tensor:
        """From what the first layer makes."""
        for dense, bias in self.others:
            hidden = self.activation(dense(hidden.to(self.precision), bias).to(self.head.dtype))
        return dots(hidden, self.head)


class Deep:
    """``w·deep(x0)``, whose first layer is taken apart."""

    def __init__(self, deep: DeepNetwork, head: Tensor, sides: Sides, precision: torch.dtype) -> None:
        self.deep = FirstOut(deep, head, precision)
        weight = self.deep.weight
        self.of_c: Array = weight[:, sides.context].contiguous().numpy()
        self.of_item = weight[:, sides.item].contiguous()
        self.work = self.deep.work

    def item(self, v: Tensor) -> Tensor:
        return v @ self.of_item.T  # (N, H)

    def request(self, c: Tensor, found: Array | None = None) -> Tensor:
        found = matvecs(self.of_c, c.numpy()) if found is None else found
        return torch.from_numpy(found) + self.deep.bias  # (B, H)

    def logits(self, request: Tensor, v: Tensor, known: Tensor) -> Tensor:
        return self.deep.rest(known + request[:, None])

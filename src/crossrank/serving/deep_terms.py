"""The terms of a logit that are deep networks: ``A x0 + a = (A[:, C] c + a) + A[:, I] v``, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.nn import DeepNetwork
from crossrank.serving.polynomial import Sides, dots_of_each


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
        self.activation = torch.relu_ if deep.activation is F.relu else deep.activation
        self.others = [_dense(layer.weight.to(precision), layer.bias.to(precision)) for layer in layers[1:]]

    def rest(self, hidden: Tensor) -> Tensor:
        """From what the first map makes, which may be written over: (..., H) -> (...)"""
        if self.is_last:
            return hidden[..., 0]
        hidden = self.activation(hidden).to(self.precision)
        for layer in self.others:
            hidden = self.activation(layer(hidden))
        return hidden.to(self.head.dtype) @ self.head


def _dense(weight: Tensor, bias: Tensor) -> Callable[[Tensor], Tensor]:
    """``W h + b``; of float32 by oneDNN with W laid out for it, a tenth faster than by what torch takes of itself."""
    if weight.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        return lambda hidden: torch.ops.mkldnn._linear_pointwise(hidden, packed, bias, "none", [], "")
    return lambda hidden: F.linear(hidden, weight, bias)


class Deep:
    """``w·deep(x0)``, whose first layer is taken apart."""

    def __init__(self, deep: DeepNetwork, head: Tensor, sides: Sides, precision: torch.dtype) -> None:
        self.deep = FirstOut(deep, head, precision)
        weight = self.deep.weight
        self.of_context = weight[:, sides.context].contiguous()
        self.of_item = weight[:, sides.item].contiguous()

    def item(self, v: Tensor) -> Tensor:
        return v @ self.of_item.T  # (N, H)

    def request(self, c: Tensor) -> Tensor:
        return dots_of_each(self.of_context[None], c) + self.deep.bias  # (B, H)

    def logits(self, request: Tensor, v: Tensor, known: Tensor) -> Tensor:
        return self.deep.rest(known + request[:, None])

"""The deep network beside or behind the crosses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.activations import Activation, activation_name, resolve_activation
from crossrank.nn.checks import check_count, check_dropout, check_width
from crossrank.nn.linear import Linear


class DeepNetwork(nn.Module):
    """A stack of dense layers.

    ``h_{l+1} = f(W_l h_l + b_l)``  (section "Deep Network")

    ==============  =======  ==================================
    code            paper    meaning
    ==============  =======  ==================================
    layers          W_l, b_l one kernel and bias for each size
    activation      f        an elementwise function
    len(sizes)      L_d      the number of layers
    ==============  =======  ==================================

    Shape: (..., input_dim) -> (..., output_dim).
    Cost: the sum of d_l d_{l+1} multiplications for each row.
    Limits: no sizes, the identity; activation "identity", one affine map.

    Args:
        input_dim: the width of h_0.
        sizes: the width of each layer; may be empty.
        activation: a name or a callable.
        dropout: the share of each layer's output set to zero while training.

    Raises:
        ConfigError: for a width below 1, a dropout outside [0, 1) or an unknown activation.
        ShapeError: for an input of another width.

    Example:
        >>> import torch
        >>> DeepNetwork(8, sizes=[16, 4])(torch.zeros(5, 8)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self, input_dim: int, *, sizes: Sequence[int], activation: str | Activation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        dims = [input_dim, *sizes]
        check_count("input_dim", input_dim)
        for i, size in enumerate(sizes):
            check_count(f"sizes[{i}]", size)
        check_dropout(dropout)
        self.input_dim, self.output_dim = dims[0], dims[-1]
        self.dropout = dropout
        self.activation, self.activation_name = resolve_activation(activation), activation_name(activation)
        self.layers = nn.ModuleList(Linear(*pair) for pair in pairwise(dims))

    def forward(self, x: Tensor) -> Tensor:
        check_width("x", x, self.input_dim)
        h = x
        for layer in self.layers:
            h = F.dropout(self.activation(layer(h)), self.dropout, self.training)
        return h

    def extra_repr(self) -> str:
        return f"activation={self.activation_name}, dropout={self.dropout}"

"""The factorised interaction layers of FinalNet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.activations import Activation, activation_name, resolve_activation
from crossrank.nn.checks import check_count, check_dropout, check_width
from crossrank.nn.linear import Linear


class FactorizedLayer(nn.Module):
    """A dense layer that multiplies its output with a second one, so that its order is two.

    ``y = h_2 + h_1 ⊙ h_2`` with ``[h_2; h_1] = W x + b``  (FinalNet, section "Factorized Interaction Layer")

    ======  ==========================================
    code    meaning
    ======  ==========================================
    linear  W and b, from D to twice the output's width
    ======  ==========================================

    Shape: (..., input_dim) -> (..., output_dim).
    Cost: 2 input_dim output_dim + output_dim multiplications for each row.
    Limits: the lower half of W and b zero (h_1 = 0), a dense layer.

    Choices: the sum; the public code also has [h_2; h_1 ⊙ h_2], side by side.

    Args:
        input_dim: the width of x.
        output_dim: the width of y.

    Raises:
        ConfigError: for a width below 1.
        ShapeError: for an input of another width.

    Example:
        >>> import torch
        >>> FactorizedLayer(8, 3)(torch.zeros(5, 8)).shape
        torch.Size([5, 3])
    """

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        check_count("input_dim", input_dim)
        check_count("output_dim", output_dim)
        self.input_dim = input_dim
        self.linear = Linear(input_dim, 2 * output_dim)

    def forward(self, x: Tensor) -> Tensor:
        check_width("x", x, self.input_dim)
        h2, h1 = self.linear(x).chunk(2, dim=-1)  # (..., output_dim) each
        y: Tensor = h2 + h1 * h2
        return y


class FactorizedNetwork(nn.Module):
    """Factorised layers on top of each other, each normalised: the order doubles with each.

    ``h_{l+1} = f(LN(y_l(h_l)))``, y_l a :class:`FactorizedLayer`  (FinalNet, a "block")

    Shape: (..., input_dim) -> (..., output_dim).
    Cost: Σ 2 d_l d_{l+1} + d_{l+1} multiplications for each row.
    Limits: no sizes, the identity.

    Choices: layer norm where the original has batch norm: a row's answer is then a function of the row, in training
    too, and what is trained is its weights alone, of which an average is kept.

    Args:
        input_dim: the width of h_0.
        sizes: the width of each layer; may be empty.
        activation: f, a name or a callable.
        dropout: the share of each layer's output set to zero while training.

    Raises:
        ConfigError: for a width below 1, a dropout outside [0, 1) or an unknown activation.
        ShapeError: for an input of another width.

    Example:
        >>> import torch
        >>> FactorizedNetwork(8, sizes=[16, 4])(torch.zeros(5, 8)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self, input_dim: int, *, sizes: Sequence[int], activation: str | Activation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        dims = [input_dim, *sizes]
        check_dropout(dropout)
        self.input_dim, self.output_dim, self.dropout = dims[0], dims[-1], dropout
        self.activation, self.activation_name = resolve_activation(activation), activation_name(activation)
        self.layers = nn.ModuleList(FactorizedLayer(*pair) for pair in pairwise(dims))
        self.norm = nn.ModuleList(nn.LayerNorm(size) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        check_width("x", x, self.input_dim)
        h = x
        for layer, norm in zip(self.layers, self.norm, strict=True):
            h = F.dropout(self.activation(norm(layer(h))), self.dropout, self.training)
        return h

    def extra_repr(self) -> str:
        return f"activation={self.activation_name}, dropout={self.dropout}"

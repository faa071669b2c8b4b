"""The residual units of Deep Crossing."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.activations import Activation, activation_name, resolve_activation
from crossrank.nn.checks import check_count, check_dropout, check_width
from crossrank.nn.linear import Linear


class ResidualNetwork(nn.Module):
    """Dense layers in pairs, each pair around a shortcut.

    ``x_{l+1} = f(x_l + W_1 f(W_0 x_l + b_0) + b_1)``  (Deep Crossing, section "Residual Layers" and figure 2)

    ==========  ========  ============================================================
    code        paper     meaning
    ==========  ========  ============================================================
    inner[l]    W_0, b_0  D -> H_l
    outer[l]    W_1, b_1  H_l -> D
    sizes       H_l       the inner width of each unit; x keeps the width D throughout
    activation  ReLU      f
    ==========  ========  ============================================================

    Shape: (..., D) -> (..., D).
    Cost: 2 D Σ H_l multiplications for each row.
    Limits: no sizes, the identity; all kernels and biases zero, ReLU.

    Choices: the activation stands behind the sum, as in the paper's figure and in the residual units it took over;
    some implementations leave it out.

    Args:
        input_dim: D.
        sizes: H_l for each unit; may be empty.
        activation: a name or a callable.
        dropout: the share of each unit's inner values set to zero while training.

    Raises:
        ConfigError: for a width below 1, a dropout outside [0, 1) or an unknown activation.
        ShapeError: for an input of another width.

    Example:
        >>> import torch
        >>> ResidualNetwork(8, sizes=[16, 4])(torch.zeros(5, 8)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self, input_dim: int, *, sizes: Sequence[int], activation: str | Activation = "relu", dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_count("input_dim", input_dim)
        for size in sizes:
            check_count("a layer size", size)
        check_dropout(dropout)
        self.input_dim, self.dropout = input_dim, dropout
        self.activation, self.activation_name = resolve_activation(activation), activation_name(activation)
        self.inner = nn.ModuleList(Linear(input_dim, size) for size in sizes)
        self.outer = nn.ModuleList(Linear(size, input_dim) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        check_width("x", x, self.input_dim)
        for inner, outer in zip(self.inner, self.outer, strict=True):
            hidden = F.dropout(self.activation(inner(x)), self.dropout, self.training)  # (..., H_l)
            x = self.activation(x + outer(hidden))
        return x

    def extra_repr(self) -> str:
        return f"activation={self.activation_name}, dropout={self.dropout}"

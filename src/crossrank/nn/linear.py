"""Dense layers with the paper's initialisation."""

from __future__ import annotations

import math

from torch import Tensor, nn


def he_normal_(kernel: Tensor) -> None:
    """Fill each matrix of a stack with N(0, 2 / fan_in), fan_in being its own last axis (He et al., 2015).

    Shape: kernel (..., fan_in). A stack of matrices is filled as if each stood alone.
    """
    nn.init.normal_(kernel, std=math.sqrt(2 / max(kernel.shape[-1], 1)))


class Linear(nn.Linear):
    """``y = W x + b``, with a He-normal kernel and a zero bias.

    Shape: x (..., input_dim) -> (..., output_dim).

    Example:
        >>> import torch
        >>> Linear(3, 2)(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, input_dim: int, output_dim: int, *, bias: bool = True) -> None:
        super().__init__(input_dim, output_dim, bias)

    def reset_parameters(self) -> None:
        he_normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class OutputLayer(Linear):
    """The logit ``w · x + b`` of each row; the paper's w_logit, to which a bias may be added.

    Shape: x (..., input_dim) -> (...,), or (..., num_outputs) where there are several.

    Args:
        input_dim: the width of x.
        num_outputs: how many logits a row has, each with a w and a b of its own.
        bias: add b, which lets the logit meet the base rate; False is the paper's formula.

    Example:
        >>> import torch
        >>> OutputLayer(3)(torch.zeros(1, 3))
        tensor([0.], grad_fn=<SqueezeBackward1>)
    """

    def __init__(self, input_dim: int, *, num_outputs: int = 1, bias: bool = True) -> None:
        super().__init__(input_dim, num_outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits.squeeze(-1) if self.out_features == 1 else logits  # (..., 1) -> (...,)

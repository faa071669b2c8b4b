"""The fusion of two networks' outputs in FinalMLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.checks import check_count, check_width
from crossrank.nn.linear import he_normal_


class BilinearFusion(nn.Module):
    """The products of two vectors' elements, within as many pieces as there are heads, in one weighted sum.

    ``y = Σ_k x_kᵀ W_k z_k``, x_k and z_k the k-th of K equal pieces of x and of z  (FinalMLP, section "Stream-Level
    Fusion")

    ======  =====  =============================================
    code    paper  meaning
    ======  =====  =============================================
    weight  W_k    (K, A / K, C / K), one matrix for each head
    ======  =====  =============================================

    Shape: x (..., A), z (..., C) -> (...,).
    Cost: A C / K + C multiplications for each row, A C / K parameters.
    Limits: one head, all products of an element of x with one of z.

    Args:
        left_dim: A.
        right_dim: C.
        num_heads: K, a divisor of both.

    Raises:
        ConfigError: for a width below 1, or a number of heads that does not divide both.
        ShapeError: for inputs of another width.

    Example:
        >>> BilinearFusion(4, 6, num_heads=2)(torch.randn(5, 4), torch.randn(5, 6)).shape
        torch.Size([5])
    """

    def __init__(self, left_dim: int, right_dim: int, *, num_heads: int = 1) -> None:
        super().__init__()
        for name, count in {"left_dim": left_dim, "right_dim": right_dim, "num_heads": num_heads}.items():
            check_count(name, count)
        if left_dim % num_heads or right_dim % num_heads:
            raise ConfigError(
                f"num_heads must divide both widths, {left_dim} and {right_dim}; got num_heads={num_heads}.",
                hint="1 always does.",
            )
        self.left_dim, self.right_dim, self.num_heads = left_dim, right_dim, num_heads
        self.weight = nn.Parameter(torch.empty(num_heads, left_dim // num_heads, right_dim // num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        he_normal_(self.weight.view(-1))  # all products are terms of one number

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        check_width("x", x, self.left_dim)
        check_width("z", z, self.right_dim)
        pieces = x.reshape(*x.shape[:-1], *self.weight.shape[:2])  # (..., K, A / K)
        weighted = torch.einsum("...ka,kac->...kc", pieces, self.weight).flatten(-2)  # (..., C)
        return (weighted * z).sum(dim=-1)

    def extra_repr(self) -> str:
        return f"left_dim={self.left_dim}, right_dim={self.right_dim}, num_heads={self.num_heads}"

"""The mask blocks of MaskNet."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.checks import check_count, check_dropout, check_width
from crossrank.nn.linear import Linear


class MaskBlock(nn.Module):
    """A dense layer on what is left of h under a mask that the row's own x0 makes.

    ``y = relu(LN(W (m ⊙ h)))`` with ``m = W_2 relu(W_1 x0 + b_1) + b_2``  (MaskNet, section "MaskBlock")

    =======  =================================================================
    code     meaning
    =======  =================================================================
    inner    W_1 and b_1, the mask's hidden layer
    outer    W_2 and b_2, as wide as h
    linear   W, without a bias: the norm has one
    norm     LN, a layer norm with a scale and a shift for each element
    =======  =================================================================

    Shape: x0 (..., D), h (..., H) -> (..., output_dim).
    Cost: T (D + H) + H + H output_dim multiplications for each row, T the width of the mask's hidden layer.
    Limits: W_2 zero and b_2 one, a normalised dense layer.

    Args:
        input_dim: D, the width of x0.
        hidden_dim: H, the width of h.
        output_dim: the width of y.
        mask_dim: T.
        dropout: the share of y set to zero while training.

    Raises:
        ConfigError: for a width below 1, or a dropout outside [0, 1).
        ShapeError: for inputs of another width.

    Example:
        >>> import torch
        >>> MaskBlock(8, 6, 4, mask_dim=12)(torch.zeros(5, 8), torch.zeros(5, 6)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self, input_dim: int, hidden_dim: int, output_dim: int, *, mask_dim: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = {"input_dim": input_dim, "hidden_dim": hidden_dim, "output_dim": output_dim, "mask_dim": mask_dim}
        for name, count in widths.items():
            check_count(name, count)
        check_dropout(dropout)
        self.input_dim, self.hidden_dim, self.dropout = input_dim, hidden_dim, dropout
        self.inner = Linear(input_dim, mask_dim)
        self.outer = Linear(mask_dim, hidden_dim)
        self.linear = Linear(hidden_dim, output_dim, bias=False)
        self.norm = nn.LayerNorm(output_dim)

    def forward(self, x0: Tensor, h: Tensor) -> Tensor:
        check_width("x0", x0, self.input_dim)
        check_width("h", h, self.hidden_dim)
        mask = self.outer(F.relu(self.inner(x0)))  # (..., H)
        y = F.relu(self.norm(self.linear(mask * h)))  # (..., output_dim)
        return F.dropout(y, self.dropout, self.training)

    def extra_repr(self) -> str:
        return f"dropout={self.dropout}"

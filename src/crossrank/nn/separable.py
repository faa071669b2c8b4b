"""The cross layer for ranking: the context never sees the item."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from crossrank.errors import ConfigError
from crossrank.nn.cross import CrossLayer


class SeparableCrossLayer(CrossLayer):
    """A cross layer whose context part is the same for every item, at every depth.

    With x = [x^C; x^I], c and v the same parts of x_0, and ``W[C, I] = 0``:

    | ``x^C_{l+1} = c ⊙ (W^CC x^C_l + b^C) + x^C_l``
    | ``x^I_{l+1} = v ⊙ (W^IC x^C_l + W^II x^I_l + b^I) + x^I_l``

    =======  =====  ====================================================================
    code            meaning
    =======  =====  ====================================================================
    weight   W_l    (D, D); the block W[C, I] starts at zero, is read as zero, has no slope
    bias     b_l    (D,), inside the product with x_0
    context  C      (D,), True for the context's elements of x_0; made anew, never saved
    =======  =====  ====================================================================

    No cross of the first layer is lost: c_i v_j stands in the item's rows. A ranker computes x^C once for a request.

    Shape: x0 (..., D), xl (..., D) -> (..., D).
    Cost: as written D² multiplications for each row, of which C I are by zero; D² + D parameters, C I of them idle.
    Limits: no element or every element the context's would be :class:`CrossLayer`, and is refused.

    Args:
        input_dim: D, the width of x0 and xl.
        context: the places in x0 that are the context's; the others are the item's.
        bias: add b_l.
        residual: add x_l.

    Raises:
        ConfigError: for a width below 1, for places outside x0, or where one side has none.
        ShapeError: for inputs of another width.

    Example:
        >>> layer = SeparableCrossLayer(3, context=[0, 1])
        >>> x = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, -7.0]])  # one context, two items
        >>> crossed = layer(x, x)
        >>> torch.equal(crossed[0, :2], crossed[1, :2])
        True
    """

    label = "separable"
    context: Tensor

    def __init__(self, input_dim: int, *, context: Sequence[int], bias: bool = True, residual: bool = True) -> None:
        super().__init__(input_dim, bias=bias, residual=residual)
        self.register_buffer("context", context_of(input_dim, context), persistent=False)
        with torch.no_grad():
            self.weight.copy_(separated(self.weight, self.context))

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        return x0 * F.linear(xl, separated(self.weight, self.context), self.bias) + carried

    def project(self, xl: Tensor) -> Tensor:
        return F.linear(xl, separated(self.weight, self.context))

    def spread(self, mixed: Tensor) -> Tensor:
        return mixed if self.bias is None else mixed + self.bias

    def matrix(self, xl: Tensor) -> Tensor:
        return separated(self.weight, self.context)

    def kernel(self) -> Tensor:
        return separated(self.weight, self.context)


def context_of(input_dim: int, places: Sequence[int]) -> Tensor:
    """(D,), True at the context's places of x0."""
    distinct = set(places)
    if not (0 < len(distinct) < input_dim and all(0 <= place < input_dim for place in distinct)):
        raise ConfigError(
            f"context must name some of the {input_dim} places of x0, and leave some to the item; got {list(places)}."
        )
    return torch.tensor([place in distinct for place in range(input_dim)])


def separated(weight: Tensor, context: Tensor) -> Tensor:
    """W with W[C, I] = 0. Shape: (..., D, D), (D,) -> (..., D, D)."""
    return weight.masked_fill(context[:, None] & ~context, 0.0)

"""Cross layers: Eqs. 1 and 2 of DCN-V2, and the layer of DCN (V1) that they generalise."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.checks import check_rank
from crossrank.nn.cross_base import BaseCrossLayer, crossed


class CrossLayer(BaseCrossLayer):
    """One explicit cross of the input with everything crossed so far.

    ``x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l``  (Eq. 1)

    ======  =====  =============================================
    code    paper  meaning
    ======  =====  =============================================
    weight  W_l    (D, D), which element is crossed with which
    bias    b_l    (D,), inside the product with x_0
    ======  =====  =============================================

    Shape: x0 (..., D), xl (..., D) -> (..., D).
    Cost: D² multiplications for each row, D² + D parameters.
    Limits: W = 1 wᵀ and no bias, the layer of DCN (:class:`VectorCrossLayer`).

    Args:
        input_dim: D, the width of x0 and xl.
        bias: add b_l.
        residual: add x_l.

    Raises:
        ConfigError: for a width below 1.
        ShapeError: for inputs of another width.

    Example:
        >>> layer = CrossLayer(2)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
        >>> x0 = torch.tensor([[3.0, 5.0]])
        >>> layer(x0, x0).tolist()  # [3·5 + 3, 5]
        [[18.0, 5.0]]
    """

    label = "full"

    def __init__(self, input_dim: int, *, bias: bool = True, residual: bool = True) -> None:
        super().__init__(input_dim, bias=bias, residual=residual)
        self.weight = nn.Parameter(torch.empty(input_dim, input_dim))
        self.reset_parameters()

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        return crossed(x0, F.linear(xl, self.weight, self.bias), carried)  # x0 ⊙ (W xl + b) + xl

    def project(self, xl: Tensor) -> Tensor:
        return F.linear(xl, self.weight)

    def spread(self, mixed: Tensor) -> Tensor:
        return mixed if self.bias is None else mixed + self.bias

    def matrix(self, xl: Tensor) -> Tensor:
        return self.weight

    def kernel(self) -> Tensor:
        return self.weight


class LowRankCrossLayer(BaseCrossLayer):
    """A cross whose matrix is a product of two narrow ones.

    ``x_{l+1} = x_0 ⊙ (U_l (V_lᵀ x_l) + b_l) + x_l``  (Eq. 2)

    ====  =====  =============================================
    code  paper  meaning
    ====  =====  =============================================
    up    U_l    (D, R), back from the subspace
    down  V_lᵀ   (R, D), into the subspace
    bias  b_l    (D,), inside the product with x_0
    ====  =====  =============================================

    Shape: x0 (..., D), xl (..., D) -> (..., D).
    Cost: 2 D R multiplications for each row, 2 D R + D parameters; less than the full matrix while R < D / 2.
    Limits: R = D, every full matrix (up @ down = W), so :class:`CrossLayer`.

    Args:
        input_dim: D, the width of x0 and xl.
        rank: R, the width of the subspace.
        bias: add b_l.
        residual: add x_l.

    Raises:
        ConfigError: for a width below 1 or a rank outside 1..D.
        ShapeError: for inputs of another width.

    Example:
        >>> layer = LowRankCrossLayer(8, rank=2)
        >>> x0 = torch.randn(5, 8)
        >>> layer(x0, x0).shape
        torch.Size([5, 8])
    """

    label = "low-rank"

    def __init__(self, input_dim: int, *, rank: int, bias: bool = True, residual: bool = True) -> None:
        super().__init__(input_dim, bias=bias, residual=residual)
        check_rank(rank, input_dim)
        self.rank = rank
        self.up = nn.Parameter(torch.empty(input_dim, rank))
        self.down = nn.Parameter(torch.empty(rank, input_dim))
        self.reset_parameters()

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        return crossed(x0, self.spread(self.project(xl)), carried)  # x0 ⊙ (U (Vᵀ xl) + b) + xl

    def project(self, xl: Tensor) -> Tensor:
        return F.linear(xl, self.down)  # (..., R)

    def spread(self, mixed: Tensor) -> Tensor:
        return F.linear(mixed, self.up, self.bias)

    def matrix(self, xl: Tensor) -> Tensor:
        return self.up @ self.down

    def kernel(self) -> Tensor:
        return self.up @ self.down

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}"


class VectorCrossLayer(BaseCrossLayer):
    """The cross layer of DCN (V1), with one vector where DCN-V2 has a matrix.

    ``x_{l+1} = x_0 (x_lᵀ w_l) + b_l + x_l``  (DCN, Eq. 3)

    ======  =====  =============================================
    code    paper  meaning
    ======  =====  =============================================
    weight  w_l    (D,), one number for each element of x_l
    bias    b_l    (D,), outside the product with x_0
    ======  =====  =============================================

    Shape: x0 (..., D), xl (..., D) -> (..., D).
    Cost: 2 D multiplications for each row, 2 D parameters.
    Limits: no bias, :class:`CrossLayer` with W = 1 wᵀ.

    Args:
        input_dim: D, the width of x0 and xl.
        bias: add b_l.
        residual: add x_l.

    Raises:
        ConfigError: for a width below 1.
        ShapeError: for inputs of another width.

    Example:
        >>> layer = VectorCrossLayer(2)
        >>> _ = layer.weight.data.copy_(torch.tensor([1.0, 2.0]))
        >>> x0 = torch.tensor([[3.0, 5.0]])
        >>> layer(x0, x0).tolist()  # [3·13 + 3, 5·13 + 5]
        [[42.0, 70.0]]
    """

    label = "vector"

    def __init__(self, input_dim: int, *, bias: bool = True, residual: bool = True) -> None:
        super().__init__(input_dim, bias=bias, residual=residual)
        self.weight = nn.Parameter(torch.empty(input_dim))
        self.reset_parameters()

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        score = (xl @ self.weight).unsqueeze(-1)  # (..., 1)
        bias = 0.0 if self.bias is None else self.bias
        return x0 * score + bias + carried

    def matrix(self, xl: Tensor) -> Tensor:
        return self.weight.expand(self.input_dim, -1)

"""The cross layers of FCN and of QNN, which bound what they multiply by a layer norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.checks import check_count, check_dropout
from crossrank.nn.cross_base import BaseCrossLayer


class MaskedCrossLayer(BaseCrossLayer):
    """A cross layer of half the width, whose other half is the first one under its own mask.

    | ``x_{l+1} = s ⊙ ([H; H ⊙ relu(LN(H))] + b) + x_l`` with ``H = W x_l``  (FCN)
    | ``s = x_0`` (the linear cross network LCN), or ``s = x_l`` with source "previous" (the exponential one, ECN)

    Each feature's vector has two views: H crosses its first half, the masked H its second one.

    ======  =====  ==================================================================================
    code    paper  meaning
    ======  =====  ==================================================================================
    weight  W_l    (h, D), h the elements of first views: D / 2, where all widths are even
    bias    b_l    (D,), inside the product
    norm    LN     layer norm of H, with a scale and a shift for each element; inside the mask alone
    places         (D,), where in [H; H ⊙ mask] each element of x stands; made anew, never saved
    ======  =====  ==================================================================================

    Shape: x0 (..., D), xl (..., D) -> (..., D).
    Cost: h D + h + D multiplications for each row, h D + D + 2 h parameters.
    Limits: the norm's scale zero and its shift one, :class:`~crossrank.nn.CrossLayer` whose matrix has each row twice.
    A feature of odd width has the larger half as its first view, a single number that view alone.

    Choices: the mask of the paper; the authors' later code has LN(H) in place of H ⊙ relu(LN(H)), and starts b
    uniformly in [0, 1], here at zero as in every layer. No batch norm of H, an option there: a row's answer is a
    function of the row.

    Args:
        input_dim: D, the width of x0 and xl.
        widths: of the features in x0, one after the other; left out, x0 is one feature.
        source: s, "x0" or "previous" for x_l.
        dropout: the share of the layer's output set to zero while training.
        bias: add b_l.
        residual: add x_l.

    Raises:
        ConfigError: for a width below 1, widths that do not make up D, an unknown source, or a dropout outside [0, 1).
        ShapeError: for inputs of another width.

    Example:
        >>> layer = MaskedCrossLayer(8, widths=[4, 4])
        >>> x0 = torch.randn(5, 8)
        >>> layer(x0, x0).shape
        torch.Size([5, 8])
    """

    is_smooth = False
    places: Tensor

    def __init__(
        self,
        input_dim: int,
        *,
        widths: Sequence[int] | None = None,
        source: Literal["x0", "previous"] = "x0",
        dropout: float = 0.0,
        bias: bool = True,
        residual: bool = True,
    ) -> None:
        super().__init__(input_dim, bias=bias, residual=residual)
        widths = [input_dim] if widths is None else list(widths)
        if sum(widths) != input_dim or min(widths) < 1:
            raise ConfigError(f"widths must be positive and sum to {input_dim}, the input width; got {widths}.")
        if source not in ("x0", "previous"):
            raise ConfigError(f"source must be 'x0' or 'previous'; got {source!r}.")
        check_dropout(dropout)
        self.source, self.dropout = source, dropout
        views = [place < (width + 1) // 2 for width in widths for place in range(width)]  # True for a first one
        order = [place for first in (True, False) for place, view in enumerate(views) if view is first]
        self.register_buffer("places", torch.tensor([order.index(i) for i in range(input_dim)]), persistent=False)
        self.weight = nn.Parameter(torch.empty(sum(views), input_dim))
        self.norm = nn.LayerNorm(sum(views))
        self.reset_parameters()

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        crossed = self.factor(x0, xl) * self.spread(self.mix(self.project(xl))) + carried
        return F.dropout(crossed, self.dropout, self.training)

    def factor(self, x0: Tensor, xl: Tensor) -> Tensor:
        return x0 if self.source == "x0" else xl

    def project(self, xl: Tensor) -> Tensor:
        return F.linear(xl, self.weight)  # (..., h), H

    def mix(self, projected: Tensor) -> Tensor:
        """[H; H ⊙ relu(LN(H))], each element where its x stands: (..., h) -> (..., D)."""
        masked = projected * F.relu(self.norm(projected))
        return torch.cat([projected, masked], dim=-1).index_select(-1, self.places)

    def spread(self, mixed: Tensor) -> Tensor:
        return mixed if self.bias is None else mixed + self.bias

    @property
    def can_split(self) -> bool:
        """Whether x0 is what is multiplied; what is multiplied with x_l has no part that only one side knows."""
        return self.source == "x0"

    @property
    def label(self) -> str:
        return "masked" if self.source == "x0" else "masked with previous source"

    def matrix(self, xl: Tensor) -> Tensor:
        """[W; diag(E relu(LN(H))) W]: the mean of the matrix that a row's mask leaves."""
        mask = F.relu(self.norm(self.project(xl))).mean(dim=0)  # (h,)
        return torch.cat([self.weight, mask[:, None] * self.weight])[self.places]

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, source={self.source}, dropout={self.dropout}"


class QuadraticCrossLayer(BaseCrossLayer):
    """Several crosses of x with itself, each switched by a ReLU behind a norm; the order doubles with each layer.

    ``x_{l+1} = x_l ⊙ 1/M Σ_m h_m + x_l`` with ``[h_1; …; h_M] = relu(LN(W x_l))``  (QNN-α)

    ======  ===========================================================================
    code    meaning
    ======  ===========================================================================
    weight  (M D, D), W; the M matrices below each other
    norm    LN, layer norm over all M D, with a scale and a shift for each
    ======  ===========================================================================

    Shape: x0 (..., D), xl (..., D) -> (..., D); x0 is not read.
    Cost: M D² + D multiplications for each row, M D² + 2 M D parameters.
    Limits: the norm's scale and shift zero, the identity.

    Choices: layer norm where the original has batch norm: a row's answer is then a function of the row, in training
    too. The norm's shift is the bias. The M crosses are averaged where the original sums them: with M times the norm's
    scale and shift that is the sum, and x then grows as much at the start whatever M is.

    Args:
        input_dim: D, the width of xl.
        num_heads: M.
        dropout: the share of the layer's output set to zero while training.

    Raises:
        ConfigError: for a width or a count below 1, or a dropout outside [0, 1).
        ShapeError: for inputs of another width.

    Example:
        >>> x0 = torch.randn(5, 8)
        >>> QuadraticCrossLayer(8, num_heads=3)(x0, x0).shape
        torch.Size([5, 8])
    """

    label = "quadratic"
    is_smooth = False

    def __init__(self, input_dim: int, *, num_heads: int = 1, dropout: float = 0.0) -> None:
        super().__init__(input_dim, bias=False)
        check_count("num_heads", num_heads)
        check_dropout(dropout)
        self.num_heads, self.dropout = num_heads, dropout
        self.weight = nn.Parameter(torch.empty(num_heads * input_dim, input_dim))
        self.norm = nn.LayerNorm(num_heads * input_dim)
        self.reset_parameters()

    def forward(self, x0: Tensor, xl: Tensor) -> Tensor:
        carried = self._carried(x0, xl)
        heads = F.relu(self.norm(F.linear(xl, self.weight)))  # (..., M D)
        heads = heads.reshape(*xl.shape[:-1], self.num_heads, self.input_dim)
        crossed = xl * heads.mean(dim=-2) + carried  # (..., D)
        return F.dropout(crossed, self.dropout, self.training)

    def factor(self, x0: Tensor, xl: Tensor) -> Tensor:
        return xl

    def matrix(self, xl: Tensor) -> Tensor:
        """1/M Σ_m E[diag(on_m / σ)] diag(γ_m) (W_m - 1 w̄ᵀ), w̄ the mean row of W: the mean of what ReLU and norm leave.

        σ is the deviation that the norm divides by, γ its scale, on_m whether the ReLU lets an element pass.
        """
        projected = F.linear(xl, self.weight)  # (B, M D)
        deviation = (projected.var(dim=-1, correction=0, keepdim=True) + self.norm.eps).sqrt()
        slopes = ((self.norm(projected) > 0) / deviation).mean(dim=0) * self.norm.weight  # (M D,)
        kernel: Tensor = slopes[:, None] * (self.weight - self.weight.mean(dim=0))
        return kernel.reshape(self.num_heads, self.input_dim, self.input_dim).mean(dim=0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_heads={self.num_heads}, dropout={self.dropout}"

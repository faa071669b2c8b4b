"""The regulation of EDCN: how much of each field goes on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.checks import check_count, check_width


class FieldGate(nn.Module):
    """Each field times a learned share, then normalised.

    ``y = LN([F s_1 x_1; …; F s_F x_F])`` with ``s = softmax(g / τ)``  (EDCN, section "Regulation Module")

    ===========  =====  ====================================================================
    code         paper  meaning
    ===========  =====  ====================================================================
    gate         g      (F,), starts at zero: all fields count the same
    temperature  τ      small, few fields go on; large, all do
    norm                layer norm, with a scale and a shift for each element
    ===========  =====  ====================================================================

    Shape: fields side by side (..., F E) -> (..., F E).
    Cost: F E multiplications for each row, F parameters and the norm's 2 F E.
    Limits: one field, or g constant: the norm alone.

    Choices: the shares sum to F, not to 1, which only keeps the scale of x. Public code has no norm, or batch norm as
    an option; without one the products of EDCN's bridges would shrink with each layer, and layer norm leaves a row's
    answer a function of the row.

    Args:
        num_fields: F.
        width: E.
        temperature: τ.

    Raises:
        ConfigError: for a count below 1, or a temperature that is not positive.
        ShapeError: for an input of another width.

    Example:
        >>> FieldGate(3, width=2)(torch.randn(5, 6)).shape
        torch.Size([5, 6])
    """

    def __init__(self, num_fields: int, *, width: int, temperature: float = 1.0) -> None:
        super().__init__()
        check_count("num_fields", num_fields)
        check_count("width", width)
        if temperature <= 0:
            raise ConfigError(f"temperature must be positive; got temperature={temperature}.")
        self.num_fields, self.width, self.temperature = num_fields, width, temperature
        self.gate = nn.Parameter(torch.zeros(num_fields))
        self.norm = nn.LayerNorm(num_fields * width)

    def forward(self, x: Tensor) -> Tensor:
        check_width("x", x, self.num_fields * self.width)
        shares = self.num_fields * (self.gate / self.temperature).softmax(dim=0)  # (F,)
        y: Tensor = self.norm(shares.repeat_interleave(self.width) * x)
        return y

    def extra_repr(self) -> str:
        return f"num_fields={self.num_fields}, width={self.width}, temperature={self.temperature}"

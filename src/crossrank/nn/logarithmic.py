"""Crosses whose order is learned: the logarithmic transformation layer of AFN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.checks import check_count
from crossrank.nn.products import check_fields

FLOOR = 1e-4  # the smallest magnitude that an element counts with; the logarithm of zero is undefined


class LogarithmicLayer(nn.Module):
    """Products of powers of all fields, the powers learned.

    ``y_j = exp(Σ_i w_ij ln |v_i| + b_j) = e^{b_j} |v_1|^{w_1j} ⊙ … ⊙ |v_F|^{w_Fj}``
    (AFN, section "Logarithmic Transformation Layer")

    ======  =====  ============================================================================
    code    paper  meaning
    ======  =====  ============================================================================
    weight  w_ij   (N, F), the power of each field in each of the N crosses
    bias    b_j    (N,), a factor of each cross; in the authors' program, not in the formula
    ======  =====  ============================================================================

    Shape: fields (B, F, E) -> (B, E, N).
    Cost: F N E multiplications for each row, and F E logarithms and N E exponentials.
    Limits: weight and bias zero, ones; w_j a row of zeros and ones, the product of the chosen fields' magnitudes.

    Choices: magnitudes count, and none below 1e-4, because the fields must be positive; the original and DeepCTR have
    1e-7, FuxiCTR 1e-5. A number of exactly zero, which is what a missing one becomes, makes a field of zeros, and
    logarithms of 1e-7 drown those of the other fields. The original normalises the logarithms and the crosses over
    the batch. Here nothing does, so that a row's logit is a function of the row: at scoring time batch norm is an
    affine map, and those around the layer are already in weight, bias and the layer behind. What it did for the start
    of training, small powers do: N(0, 0.04 / F) starts the crosses near 1.

    Args:
        num_fields: F.
        num_neurons: N.

    Raises:
        ConfigError: for a count below 1.
        ShapeError: for another number of fields.

    Example:
        >>> layer = LogarithmicLayer(3, num_neurons=1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[1.0, 0.0, 2.0]]))
        >>> layer(torch.tensor([[[3.0], [5.0], [-2.0]]])).round().tolist()  # 3 · 2²
        [[[12.0]]]
    """

    def __init__(self, num_fields: int, *, num_neurons: int) -> None:
        super().__init__()
        check_count("num_fields", num_fields)
        check_count("num_neurons", num_neurons)
        self.num_fields, self.num_neurons = num_fields, num_neurons
        self.weight = nn.Parameter(torch.empty(num_neurons, num_fields))
        self.bias = nn.Parameter(torch.empty(num_neurons))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.2 * self.num_fields**-0.5)
        nn.init.zeros_(self.bias)

    def forward(self, fields: Tensor) -> Tensor:
        check_fields(fields, self.num_fields)
        logarithms = fields.mT.abs().clamp(min=FLOOR).log()  # (B, E, F)
        return F.linear(logarithms, self.weight, self.bias).exp()  # (B, E, N)

    def extra_repr(self) -> str:
        return f"num_fields={self.num_fields}, num_neurons={self.num_neurons}"

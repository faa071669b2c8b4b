"""The bi-interaction pooling of NFM."""

from __future__ import annotations

from torch import Tensor, nn


class BiInteraction(nn.Module):
    """All products of two fields, summed.

    ``Σ_{i<j} v_i ⊙ v_j = ½ [(Σ_i v_i)² - Σ_i v_i²]``  (NFM, Eqs. 3 and 4)

    Shape: fields (B, F, e) -> (B, e).
    Cost: (F + 1) e multiplications for each row; no parameters.
    Limits: one field, zero; summed over e, :class:`~crossrank.nn.FactorizationMachine`.

    Example:
        >>> import torch
        >>> fields = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
        >>> BiInteraction()(fields)  # 1·3 + 1·5 + 3·5, 2·4 + 2·6 + 4·6
        tensor([[23., 44.]])
    """

    def forward(self, fields: Tensor) -> Tensor:
        return 0.5 * (fields.sum(dim=1).square() - fields.square().sum(dim=1))  # (B, e)

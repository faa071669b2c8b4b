"""The second-order term of factorization machines."""

from __future__ import annotations

from torch import Tensor, nn


class FactorizationMachine(nn.Module):
    """The sum of the inner products of all pairs of fields.

    ``Σ_{i<j} ⟨v_i, v_j⟩ = ½ Σ_f [(Σ_i v_if)² - Σ_i v_if²]``  (Rendle 2010, Eq. 1 and Lemma 3.1)

    ======  ========  ==============================================================
    code    Rendle    meaning
    ======  ========  ==============================================================
    fields  v_i x_i   (F, e), the vector of each field, times its value if a number
    ======  ========  ==============================================================

    Shape: fields (B, F, e) -> (B,).
    Cost: (F + 1) e multiplications for each row, linear in F though there are F (F - 1) / 2 pairs; no parameters.
    Limits: one field, zero. The whole term is a cross layer without residual: ``1ᵀ (x ⊙ W x)`` whose blocks are
    ``W_ij = I`` above the diagonal and zero elsewhere (DCN-V2, section 4.2).

    Example:
        >>> import torch
        >>> fields = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]])
        >>> FactorizationMachine()(fields)  # 1·3 + 2·4 + 1·5 + 2·6 + 3·5 + 4·6
        tensor([67.])
    """

    def forward(self, fields: Tensor) -> Tensor:
        total = fields.sum(dim=1)  # (B, e)
        return 0.5 * (total.square() - fields.square().sum(dim=1)).sum(dim=1)  # (B,)

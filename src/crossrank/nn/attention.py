"""Attention between the fields of a row: the interacting layer of AutoInt."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.checks import check_count, check_width
from crossrank.nn.linear import Linear


def attend(query: Tensor, key: Tensor, value: Tensor, *, num_heads: int) -> Tensor:
    """``softmax(Q Kᵀ) V`` for each head, the heads side by side.

    Shape: query, key and value (..., F, H A) -> (..., F, H A).
    """
    shape = (*query.shape[:-1], num_heads, query.shape[-1] // num_heads)
    query, key, value = (x.view(shape).transpose(-3, -2) for x in (query, key, value))  # (..., H, F, A)
    weights = (query @ key.mT).softmax(dim=-1)  # (..., H, F, F)
    return (weights @ value).transpose(-3, -2).flatten(-2)  # (..., F, H A)


class InteractingLayer(nn.Module):
    """Every field becomes a mixture of all fields, mixed by how well they match.

    | ``α_mk = softmax_k(⟨W_query e_m, W_key e_k⟩)`` for each head  (AutoInt, Eq. 5)
    | ``ẽ_m = [Σ_k α_mk W_value e_k  for each head]``  (Eqs. 6 and 7)
    | ``e_m' = ReLU(ẽ_m + W_res e_m)``  (Eq. 8)

    ======  =======  =============================================
    code    paper    meaning
    ======  =======  =============================================
    query   W_Query  Linear E -> H A, the heads side by side
    key     W_Key    Linear E -> H A
    value   W_Value  Linear E -> H A
    skip    W_Res    Linear E -> H A; None where residual is off
    ======  =======  =============================================

    Shape: (..., F, E) -> (..., F, H A).
    Cost: F E H A multiplications for each of the four matrices and 2 F² H A for the attention, for each row.
    Limits: one field, ReLU((W_value + W_res) e); query or key zero, every field attends to the mean of the values.

    Choices: Eq. 5 has no 1/√A in the softmax and no activation on the projections; the authors' program has both,
    other implementations neither. Here the published equation stands. Without the residual term ReLU remains.

    Args:
        input_dim: E, the width of a field.
        num_heads: H.
        head_dim: A, the width of a field in one head.
        residual: add W_res e_m.

    Raises:
        ConfigError: for a width or a count below 1.
        ShapeError: for fields of another width.

    Example:
        >>> import torch
        >>> layer = InteractingLayer(4, num_heads=2, head_dim=3)
        >>> layer(torch.randn(5, 7, 4)).shape
        torch.Size([5, 7, 6])
    """

    skip: Linear | None

    def __init__(self, input_dim: int, *, num_heads: int, head_dim: int, residual: bool = True) -> None:
        super().__init__()
        for name, count in {"input_dim": input_dim, "num_heads": num_heads, "head_dim": head_dim}.items():
            check_count(name, count)
        self.input_dim, self.num_heads, self.output_dim = input_dim, num_heads, num_heads * head_dim
        self.query = Linear(input_dim, self.output_dim, bias=False)
        self.key = Linear(input_dim, self.output_dim, bias=False)
        self.value = Linear(input_dim, self.output_dim, bias=False)
        self.skip = Linear(input_dim, self.output_dim, bias=False) if residual else None

    def forward(self, fields: Tensor) -> Tensor:
        check_width("fields", fields, self.input_dim)
        query, key, value = self.query(fields), self.key(fields), self.value(fields)  # (..., F, H A)
        attended = attend(query, key, value, num_heads=self.num_heads)
        return F.relu(attended if self.skip is None else attended + self.skip(fields))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"

"""The layers of Wukong: factorization machines on top of each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossrank.nn.checks import check_count
from crossrank.nn.deep import DeepNetwork
from crossrank.nn.linear import Linear
from crossrank.nn.products import check_fields


class FactorizationBlock(nn.Module):
    """New fields from the inner products of the old ones.

    ``FMB(X) = W deep(LN(flat(X (Xᵀ Y)))) + b``, cut into fields  (Wukong, section "Factorization Machine Block")

    ==========  =====  =============================================================================
    code        paper  meaning
    ==========  =====  =============================================================================
    projection  Y      (N, K), so that K columns stand for the N of all inner products X Xᵀ
    norm        LN     layer norm over the N K products
    deep, last  MLP    hidden layers, then as many numbers as the new fields have
    ==========  =====  =============================================================================

    Shape: (..., N, E) -> (..., num_outputs, E).
    Cost: 2 N E K multiplications for each row, and the MLP's.
    Limits: Y the unit matrix, all inner products of two fields.

    Args:
        num_fields: N.
        width: E.
        num_outputs: how many new fields.
        rank: K.
        sizes: of the hidden layers.

    Raises:
        ConfigError: for a count below 1.
        ShapeError: for another number of fields.

    Example:
        >>> FactorizationBlock(3, width=2, num_outputs=5, rank=4, sizes=[8])(torch.randn(7, 3, 2)).shape
        torch.Size([7, 5, 2])
    """

    def __init__(self, num_fields: int, *, width: int, num_outputs: int, rank: int, sizes: Sequence[int]) -> None:
        super().__init__()
        counts = {"num_fields": num_fields, "width": width, "num_outputs": num_outputs, "rank": rank}
        for name, count in counts.items():
            check_count(name, count)
        self.num_fields, self.width, self.num_outputs = num_fields, width, num_outputs
        self.projection = Linear(num_fields, rank, bias=False)
        self.norm = nn.LayerNorm(num_fields * rank)
        self.deep = DeepNetwork(num_fields * rank, sizes=sizes)
        self.last = Linear(self.deep.output_dim, num_outputs * width)

    def forward(self, fields: Tensor) -> Tensor:
        check_fields(fields, self.num_fields)
        products = fields @ self.projection(fields.mT)  # (..., N, K)
        hidden = self.deep(self.norm(products.flatten(-2)))
        return self.last(hidden).reshape(*fields.shape[:-2], self.num_outputs, self.width)  # type: ignore[no-any-return]


class WukongLayer(nn.Module):
    """New fields: some from products of the old ones, some from their sums; the order doubles with each layer.

    ``X⁺ = LN([FMB(X); W_L X] + X)``  (Wukong, section "Interaction Stack")

    ======  =====  =========================================================================
    code    paper  meaning
    ======  =====  =========================================================================
    fm      FMB    a :class:`FactorizationBlock`
    linear  LCB    W_L, (num_linear, N): linear compression
    skip           (num_fm + num_linear, N), in front of + X where their numbers differ
    norm    LN     layer norm over the elements of each field, one scale and shift for all
    ======  =====  =========================================================================

    Shape: (..., N, E) -> (..., num_fm + num_linear, E).
    Cost: the factorization block's multiplications, N E num_linear, and N E (num_fm + num_linear) for skip.
    Limits: all kernels zero and no skip, the norm.

    Args:
        num_fields: N.
        width: E.
        num_fm: new fields of the factorization block.
        num_linear: new fields of the linear compression.
        rank: K of the factorization block.
        sizes: of its hidden layers.

    Raises:
        ConfigError: for a count below 1.
        ShapeError: for another number of fields.

    Example:
        >>> WukongLayer(3, width=2, num_fm=2, num_linear=2, rank=4, sizes=[8])(torch.randn(7, 3, 2)).shape
        torch.Size([7, 4, 2])
    """

    def __init__(
        self, num_fields: int, *, width: int, num_fm: int, num_linear: int, rank: int, sizes: Sequence[int]
    ) -> None:
        super().__init__()
        check_count("num_linear", num_linear)
        self.fm = FactorizationBlock(num_fields, width=width, num_outputs=num_fm, rank=rank, sizes=sizes)
        self.linear = Linear(num_fields, num_linear, bias=False)
        num_outputs = num_fm + num_linear
        self.skip = Linear(num_fields, num_outputs, bias=False) if num_outputs != num_fields else None
        self.norm = nn.LayerNorm(width)

    def forward(self, fields: Tensor) -> Tensor:
        made = torch.cat([self.fm(fields), self.linear(fields.mT).mT], dim=-2)  # (..., num_fm + num_linear, E)
        carried = fields if self.skip is None else self.skip(fields.mT).mT
        out: Tensor = self.norm(made + carried)
        return out

"""One number for each pair of features, read off a cross layer's product."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.checks import check_count, check_width


class PairProducts(nn.Module):
    """What each pair of features adds to ``sᵀ W x``, s and x being vectors of features side by side.

    | ``p_ij = s_iᵀ W_ij x_j + s_jᵀ W_ji x_i`` for i < j, ``p_ii = s_iᵀ W_ii x_i``
    | of the first cross layer, where s = x = x_0: ``p_ij = e_iᵀ (W_ij + W_jiᵀ) e_j``

    They are the sums over a feature's slots of the layer's products ``s_i ⊙ W_ij x_j``, and add up to sᵀ W x. Their
    order is (1, 1), (1, 2), …, (2, 2), …: ``pairs`` has the two features of each, counted from 0.

    Shape: weight (D, D), s (B, D), x (B, D) -> (B, F (F + 1) / 2).
    Cost: D² + F D multiplications for each row, as those of the cross layer itself; B F D numbers in memory.

    Args:
        widths: e_1 … e_F, which add up to D; they may differ.

    Raises:
        ConfigError: for no features, or a width below 1.
        ShapeError: for vectors of another width.

    Example:
        >>> x = torch.tensor([[1.0, 2.0, 3.0]])  # a feature of two slots, one of one
        >>> PairProducts([2, 1])(torch.ones(3, 3), x, x)  # (1 + 2)², 2 · 3 · (1 + 2), 3²
        tensor([[ 9., 18.,  9.]])
    """

    upper: Tensor

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        if not widths:
            raise ConfigError("Pairs need at least one feature; got no widths.")
        for width in widths:
            check_count("width", width)
        self.input_dim = sum(widths)
        self.pairs = list(combinations_with_replacement(range(len(widths)), 2))
        starts = [sum(widths[:i]) for i in range(len(widths))]
        order: list[int] = []
        self.groups: list[tuple[int, int]] = []  # features of one width, and that width
        for number, width in enumerate(dict.fromkeys(widths)):
            features = [i for i, one in enumerate(widths) if one == width]
            places = torch.tensor([starts[i] + k for i in features for k in range(width)])
            self.register_buffer(f"places{number}", places, persistent=False)
            self.groups.append((len(features), width))
            order += features
        rank = {feature: place for place, feature in enumerate(order)}
        ranks = torch.tensor([(rank[i], rank[j]) for i, j in self.pairs]).sort(dim=1).values
        self.register_buffer("upper", ranks[:, 0] * len(widths) + ranks[:, 1], persistent=False)

    def forward(self, weight: Tensor, s: Tensor, x: Tensor) -> Tensor:
        for name, vector in (("s", s), ("x", x)):
            check_width(name, vector, self.input_dim)
        columns = []
        for places, (count, width) in self._grouped():
            right = x[:, places].reshape(-1, count, width).transpose(0, 1)  # (n, B, e)
            kernels = weight[:, places].T.reshape(count, width, -1)  # (n, e, D)
            products = s * torch.bmm(right, kernels)  # (n, B, D): s ⊙ W_ij x_j for each j of the group
            columns.append(torch.cat([_sums(products[..., own], *group) for own, group in self._grouped()], dim=2))
        every = torch.cat(columns).permute(1, 2, 0)  # (B, F, F): for each row, i and j
        both = every.triu() + every.tril(-1).mT
        return both.flatten(1)[:, self.upper]

    def _grouped(self) -> list[tuple[Tensor, tuple[int, int]]]:
        """Where the slots of each group stand, and its features and their width."""
        return [(self.get_buffer(f"places{number}"), group) for number, group in enumerate(self.groups)]

    @property
    def output_dim(self) -> int:
        return len(self.pairs)

    def extra_repr(self) -> str:
        return f"input_dim={self.input_dim}, output_dim={self.output_dim}"


def _sums(products: Tensor, count: int, width: int) -> Tensor:
    """Over the slots of each of some features: (n, B, count width) -> (n, B, count)."""
    return products.reshape(*products.shape[:2], count, width).sum(dim=-1)

"""A weight for each pair of values of two columns: the cross-product transformation of Wide & Deep."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossrank.errors import ConfigError
from crossrank.nn.checks import check_count
from crossrank.nn.embedding import FeatureEmbedding
from crossrank.nn.features import Features

PRIME = 2**31 - 1


class HashedCrosses(nn.Module):
    """The sum of one weight for each crossed pair of columns, chosen by the pair of ids.

    | ``Σ_c w_c[h_c(id_a, id_b)]``, where cross c is of the columns a and b  (Wide & Deep, Eqs. 1 and 3)
    | ``h_c(i, j) = ((m_c i + n_c j) mod p) mod R_c``, with p = 2³¹ - 1

    A product φ of two one-hot columns is one-hot again, with as many places as there are pairs of values; a cross with
    more pairs than ``num_buckets`` is hashed into so many rows. The multipliers are a fixed function of the two
    columns' numbers, so a saved model finds its weights again, and two pairs of one cross collide with probability
    about 1 / R_c, as in a universal hash (Carter and Wegman 1979).

    Shape: ids (B, F) -> (B,).
    Cost: no multiplications but those of the hash; Σ R_c parameters, R_c at most num_buckets.
    Limits: a cross of at most num_buckets pairs has a weight for each (m = v_b, n = 1). The weights start at zero.

    Args:
        pairs: the numbers of the two columns of each cross; at least one cross.
        vocab_sizes: how many values each column has.
        num_buckets: the most rows of one cross.

    Raises:
        ConfigError: for no crosses, or buckets outside 1..p.

    Example:
        >>> crosses = HashedCrosses([(0, 1)], [10, 24], num_buckets=1000)
        >>> crosses.rows(torch.tensor([[2, 5], [9, 23]]))  # 2 · 24 + 5, 9 · 24 + 23
        tensor([[ 53],
                [239]])
        >>> crosses(torch.tensor([[2, 5], [9, 23]])).shape
        torch.Size([2])
    """

    left: Tensor
    right: Tensor
    left_factors: Tensor
    right_factors: Tensor
    sizes: Tensor

    def __init__(self, pairs: Sequence[tuple[int, int]], vocab_sizes: Sequence[int], *, num_buckets: int) -> None:
        super().__init__()
        check_count("the number of crosses", len(pairs))
        if not 1 <= num_buckets <= PRIME:
            raise ConfigError(f"num_buckets must be between 1 and {PRIME}; got num_buckets={num_buckets}.")
        products = [vocab_sizes[left] * vocab_sizes[right] for left, right in pairs]
        sizes = [min(num_buckets, product) for product in products]
        factors = [
            (vocab_sizes[pair[1]], 1) if size == product else _factors(pair)
            for pair, size, product in zip(pairs, sizes, products, strict=True)
        ]
        columns = {"left": [a for a, _ in pairs], "right": [b for _, b in pairs], "sizes": sizes}
        columns |= {"left_factors": [m for m, _ in factors], "right_factors": [n for _, n in factors]}
        for name, values in columns.items():
            self.register_buffer(name, torch.tensor(values), persistent=False)  # (C,) each
        self.table = FeatureEmbedding(sizes, [1] * len(sizes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.table.weight)

    def rows(self, ids: Tensor) -> Tensor:
        """h_c, the row of each cross.

        Shape: ids (B, F) -> (B, C).
        """
        ids = ids.long()
        left = ids.index_select(1, self.left) * self.left_factors  # (B, C); below 2⁶², so that the sum fits
        right = ids.index_select(1, self.right) * self.right_factors
        return (left + right) % PRIME % self.sizes

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.rows(ids)
        weights: Tensor = self.table(Features(rows, self.table.weight.new_empty(ids.shape[0], 0)))  # (B, C)
        return weights.sum(dim=1)  # (B,)


def _factors(pair: tuple[int, int]) -> tuple[int, int]:
    """Two multipliers below p that never change: models on disk depend on them."""
    digest = hashlib.blake2b(f"{pair[0]}*{pair[1]}".encode(), digest_size=8).digest()
    left, right = (int.from_bytes(part, "little") % PRIME for part in (digest[:4], digest[4:]))
    return left, right

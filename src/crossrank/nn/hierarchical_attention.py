"""The interaction of InterHAt: a Transformer over the fields, then one vector for each order of crosses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from crossrank.nn.attention import attend
from crossrank.nn.checks import check_count, check_width
from crossrank.nn.linear import Linear, he_normal_


class TransformerLayer(nn.Module):
    """Each field rewritten in the light of the others, its width kept.

    | ``H_h = softmax(Q_h K_hᵀ / √A) V_h``, with Q_h, K_h and V_h linear in X
    | ``Z = X + [H_1; …; H_H] W_m``
    | ``X' = Z + ReLU(Z W_1 + b_1) W_2 + b_2``  (InterHAt, section "Multi-head Transformer")

    ======  ===============================================================
    code    meaning
    ======  ===============================================================
    query   Linear E -> H A, the heads side by side; so are key and value
    mix     W_m, from the heads back to the width of a field
    inner   W_1 and b_1, to four times the width
    outer   W_2 and b_2, and back
    ======  ===============================================================

    Shape: (..., F, E) -> (..., F, E).
    Cost: F (4 E H A + 8 E²) + 2 F² H A multiplications for each row.
    Limits: mix and outer zero, the identity.

    Choices: implementations differ in residual terms and layer norms. Both halves keep the residual term of the
    Transformer, which lets a field's own vector through, and neither has a norm, as nothing else in this library has.

    Args:
        input_dim: E, the width of a field.
        num_heads: H.
        head_dim: A, the width of a field in one head.

    Raises:
        ConfigError: for a width or a count below 1.
        ShapeError: for fields of another width.

    Example:
        >>> TransformerLayer(4, num_heads=2, head_dim=3)(torch.randn(5, 7, 4)).shape
        torch.Size([5, 7, 4])
    """

    def __init__(self, input_dim: int, *, num_heads: int, head_dim: int) -> None:
        super().__init__()
        for name, count in {"input_dim": input_dim, "num_heads": num_heads, "head_dim": head_dim}.items():
            check_count(name, count)
        self.input_dim, self.num_heads, self.scale = input_dim, num_heads, head_dim**-0.5
        self.query = Linear(input_dim, num_heads * head_dim, bias=False)
        self.key = Linear(input_dim, num_heads * head_dim, bias=False)
        self.value = Linear(input_dim, num_heads * head_dim, bias=False)
        self.mix = Linear(num_heads * head_dim, input_dim, bias=False)
        self.inner = Linear(input_dim, 4 * input_dim)
        self.outer = Linear(4 * input_dim, input_dim)

    def forward(self, fields: Tensor) -> Tensor:
        check_width("fields", fields, self.input_dim)
        query, key, value = self.scale * self.query(fields), self.key(fields), self.value(fields)  # (..., F, H A)
        heads = attend(query, key, value, num_heads=self.num_heads)
        mixed: Tensor = fields + self.mix(heads)  # (..., F, E)
        rewritten: Tensor = mixed + self.outer(F.relu(self.inner(mixed)))
        return rewritten


class AttentionalAggregation(nn.Module):
    """The mean of some vectors, weighted by a small network that looks at each.

    | ``α_j = softmax_j(cᵀ ReLU(W x_j))``
    | ``u = Σ_j α_j x_j``  (InterHAt, section "Hierarchical Attention")

    Shape: (..., N, E) -> (..., E).
    Cost: N (E S + S + E) multiplications for each row.
    Limits: c zero, the plain mean; one vector, that vector.

    Args:
        input_dim: E, the width of the vectors.
        hidden_dim: S, the rows of ``weight`` W (S, E) and the length of ``context`` c.

    Raises:
        ConfigError: for a width below 1.
        ShapeError: for vectors of another width.

    Example:
        >>> AttentionalAggregation(4, hidden_dim=8)(torch.randn(5, 7, 4)).shape
        torch.Size([5, 4])
    """

    def __init__(self, input_dim: int, *, hidden_dim: int) -> None:
        super().__init__()
        check_count("input_dim", input_dim)
        check_count("hidden_dim", hidden_dim)
        self.input_dim = input_dim
        self.weight = nn.Parameter(torch.empty(hidden_dim, input_dim))
        self.context = nn.Parameter(torch.empty(hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        he_normal_(self.weight)
        he_normal_(self.context)

    def forward(self, vectors: Tensor) -> Tensor:
        check_width("vectors", vectors, self.input_dim)
        scores = F.relu(F.linear(vectors, self.weight)) @ self.context  # (..., N)
        weights = scores.softmax(dim=-1).unsqueeze(-2)  # (..., 1, N)
        return (weights @ vectors).squeeze(-2)  # (..., E)


class HierarchicalAttention(nn.Module):
    """One vector for each order of crosses up to K, then one vector for all orders.

    | ``u_i = aggregate_i(X_i)``
    | ``X_{i+1} = u_i ⊙ X_1 + X_i``, the vector u_i times every field of X_1
    | ``u_f = aggregate_f([u_1; …; u_K])``  (InterHAt, section "Hierarchical Attention")

    Shape: X_1 (..., F, E) -> (..., E).
    Cost: K F (E S + S + 2 E) multiplications for each row, and the last aggregation.
    Limits: K = 1, one aggregation of the fields.

    Args:
        input_dim: E, the width of a field.
        num_orders: K.
        hidden_dim: S, the width of the aggregations' networks.

    Raises:
        ConfigError: for a width or a count below 1.
        ShapeError: for fields of another width.

    Example:
        >>> HierarchicalAttention(4, num_orders=3, hidden_dim=8)(torch.randn(5, 7, 4)).shape
        torch.Size([5, 4])
    """

    def __init__(self, input_dim: int, *, num_orders: int, hidden_dim: int) -> None:
        super().__init__()
        check_count("num_orders", num_orders)
        self.orders = nn.ModuleList(AttentionalAggregation(input_dim, hidden_dim=hidden_dim) for _ in range(num_orders))
        self.final = AttentionalAggregation(input_dim, hidden_dim=hidden_dim)

    def forward(self, x1: Tensor) -> Tensor:
        xi, aggregated = x1, [self.orders[0](x1)]
        for aggregate in self.orders[1:]:
            xi = torch.addcmul(xi, aggregated[-1].unsqueeze(-2), x1)  # (..., F, E)
            aggregated.append(aggregate(xi))
        every: Tensor = self.final(torch.stack(aggregated, dim=-2))  # (..., K, E) -> (..., E)
        return every

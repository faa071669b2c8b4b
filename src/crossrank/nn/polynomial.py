"""The polynomial that a cross network is (section "Polynomial Approximation").

Both theorems speak of a network without biases, ``x^l = x ⊙ (W^(l) x^{l-1}) + x^{l-1}`` from ``x^0 = x``. What stands
here takes exponential time: it is for checking and for looking at small networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations
from operator import add
from typing import Literal

import torch
from torch import Tensor

Exponents = tuple[int, ...]
Polynomial = dict[Exponents, float]


def polynomial_coefficients(weights: Sequence[Tensor], *, source: Literal["x0", "previous"] = "x0") -> Polynomial:
    """The coefficients of ``1ᵀ x^l``, by multiplying out one layer after the other.

    With source "previous", a layer is ``x^{l-1} ⊙ (W^(l) x^{l-1}) + x^{l-1}``, whose degree doubles each time: l layers
    reach the degree 2^l instead of l + 1 (:class:`~crossrank.nn.GeneralCrossLayer`). The theorems below are about x0.

    Args:
        weights: W^(1) … W^(l), each (d, d).
        source: what each layer multiplies.

    Returns:
        The coefficient of ``x_1^α_1 ⋯ x_d^α_d`` under ``(α_1, …, α_d)``.

    Example:
        >>> polynomial_coefficients([torch.tensor([[0.0, 2.0], [3.0, 0.0]])])  # x1 + x2 + 5 x1 x2
        {(1, 0): 1.0, (2, 0): 0.0, (1, 1): 5.0, (0, 1): 1.0, (0, 2): 0.0}
    """
    dim = len(weights[0])
    x0: list[Polynomial] = [{tuple(int(i == j) for j in range(dim)): 1.0} for i in range(dim)]
    one: Polynomial = {(0,) * dim: 1.0}
    xl = x0
    for weight in weights:
        left = x0 if source == "x0" else xl
        xl = [
            _sum([(1.0, xl[i], one), *((value, xl[j], left[i]) for j, value in enumerate(row))])
            for i, row in enumerate(weight.tolist())
        ]
    return _sum([(1.0, element, one) for element in xl])


def theorem_coefficient(weights: Sequence[Tensor], exponents: Exponents) -> float:
    """One coefficient of ``1ᵀ x^l`` by the closed formula.

    ``c_α = Σ_{j ∈ C_l^{|α|-1}} Σ_{i ∈ P_α} Π_k w^(j_k)_{i_k i_{k+1}}``  (Theorem 1)

    C are the decreasing sequences of layers, P_α the distinct orders of the variables, each as often as its exponent.

    Example:
        >>> theorem_coefficient([torch.tensor([[0.0, 2.0], [3.0, 0.0]])], (1, 1))
        5.0
    """
    values = [weight.tolist() for weight in weights]
    variables = [i for i, exponent in enumerate(exponents) for _ in range(exponent)]
    return math.fsum(
        math.prod(values[layer][i][j] for layer, (i, j) in zip(layers, pairwise(order), strict=True))
        for order, layers in _paths(variables, len(weights))
    )


def feature_interaction(x: Tensor, weights: Sequence[Tensor], widths: Sequence[int], features: Sequence[int]) -> Tensor:
    """What the crosses of some features, in every order, add to ``x^l``.

    ``Σ_{i ∈ P_I} Σ_{j ∈ C_l^{p-1}} x_{i_1} ⊙ (W^(j_1)_{i_1 i_2} x_{i_2} ⊙ (… W^(j_{p-1})_{i_{p-1} i_p} x_{i_p}))``
    (Theorem 2; there C_p, but the layers are chosen out of all l). Each term fills the slice of its first feature.

    Shape: x (d,), each weight (d, d) -> (d,).

    Args:
        x: the input, feature after feature.
        weights: W^(1) … W^(l).
        widths: e_i, which add up to d.
        features: I, the numbers of the p features; one may come several times.

    Example:
        >>> x, weight = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3, 3)
        >>> feature_interaction(x, [weight], [2, 1], [0, 1])  # x1 ⊙ (W_12 x2) and x2 ⊙ (W_21 x1)
        tensor([3., 6., 9.])
    """
    blocks = torch.split(x, list(widths))
    matrices = [[torch.split(rows, list(widths), 1) for rows in torch.split(w, list(widths))] for w in weights]
    totals = [torch.zeros_like(block) for block in blocks]
    for order, layers in _paths(features, len(weights)):
        term = blocks[order[-1]]
        for layer, (i, j) in reversed(list(zip(layers, pairwise(order), strict=True))):
            term = blocks[i] * (matrices[layer][i][j] @ term)
        totals[order[0]] = totals[order[0]] + term
    return torch.cat(totals)


def _paths(units: Sequence[int], num_layers: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each distinct order of the units with each decreasing sequence of layers between them."""
    for order in sorted(set(permutations(units))) if units else ():
        for layers in combinations(reversed(range(num_layers)), len(order) - 1):
            yield order, layers


def _sum(terms: Sequence[tuple[float, Polynomial, Polynomial]]) -> Polynomial:
    """Σ of a number times two polynomials."""
    total: Polynomial = {}
    for factor, polynomial, other in terms:
        for exponents, coefficient in polynomial.items():
            for powers, value in other.items():
                key = tuple(map(add, exponents, powers))
                total[key] = total.get(key, 0.0) + factor * coefficient * value
    return total

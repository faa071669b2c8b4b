"""How many directions the matrices of a cross network need.

The singular values σ_1 ≥ σ_2 ≥ … of a layer's matrix W say what a matrix of rank r can keep: the share
``Σ_{k ≤ r} σ_k² / Σ_k σ_k²`` of its energy (section 3.3 of the paper). Two spectra are taken:

- of **W itself**, initial against learned, as the paper draws them. It treats every direction alike, also those that no
  row ever takes;
- of **W as the data uses it**, ``diag(d) W L`` with ``L Lᵀ = E x_l x_lᵀ`` and ``d_a² = E (g_a x0_a)²``, g the
  gradient of a row's logit by the layer's output. Its energy is ``Σ_a E (g_a x0_a)² E (W x_l)_a²``. That stands in for
  how far W moves the logit to first order, ``E (Σ_a g_a x0_a (W x_l)_a)²``, as if both factors of each product were
  independent and the products uncorrelated: a heuristic, for which the best matrix of rank r has a closed form
  (:func:`low_rank_factors`). What pooled pairs tell a deep network beside the layer's output is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from crossrank.data import Split
from crossrank.errors import ConfigError
from crossrank.evaluation.crosses import matrices
from crossrank.models import Model
from crossrank.results import Spectrum

FLOOR = 1e-3  # of the usual: directions with less than this are as good as unused, and must not be divided by
TINY = 1e-30


class Usage(NamedTuple):
    """How the data uses a layer's matrix: ``weight`` is diag(d) W L, and W = ``left`` weight ``right``.

    Shape: (D, D) each.
    """

    left: Tensor
    weight: Tensor
    right: Tensor


def numerical_rank(values: Sequence[float], tolerance: float) -> int:
    """R_T, the number of singular values that reach ``tolerance`` times the largest.

    The paper's ``argmin_k (σ_k < T σ_1)`` is the first value that may be dropped; this is how many stand before it.

    >>> numerical_rank([4.0, 2.0, 0.1, 0.01], 0.05)
    2
    """
    return sum(value >= tolerance * max(values) for value in values)


def energy_rank(values: Sequence[float], share: float) -> int:
    """The smallest rank that keeps this share of the energy Σ σ².

    >>> energy_rank([3.0, 4.0, 0.0], 0.9), energy_rank([3.0, 4.0, 0.0], 0.6)
    (2, 1)
    """
    if not 0 < share <= 1:
        raise ConfigError(f"The share of energy to keep must be above 0 and at most 1; got {share}.")
    squares = sorted((value * value for value in values), reverse=True)  # of 1e308 infinite; a power would be an error
    kept = list(accumulate(squares))
    return 1 + sum(energy < share * kept[-1] for energy in kept)


def measure_spectra(model: Model, rows: Split, *, initial: Sequence[Spectrum] = ()) -> list[Spectrum]:
    """The singular values of each cross layer's matrix: of W, and of W as these rows use it.

    Cost: two decompositions of (D, D) for each layer, about a second at D = 1000.

    Args:
        model: with or without cross layers; those that do not tell their matrix are left out.
        rows: whose sample uses W.
        initial: what was found before the first step.
    """
    before = {(one.network, one.layer): one.values for one in initial}
    found = []
    for place, weight, seen in matrices(model, rows):
        values, used = (
            tuple(torch.linalg.svdvals(each).tolist()) for each in (weight.double(), usage(weight, *seen[:3]).weight)
        )
        found.append(
            Spectrum(values=values, used=used, initial=before.get((place["network"], place["layer"]), ()), **place)
        )
    return found


def usage(weight: Tensor, x0: Tensor, xl: Tensor, gradient: Tensor) -> Usage:
    """How rows use a matrix; see the head of this file.

    Shape: weight (D, D), the others (B, D).
    """
    weight, x0, xl, gradient = (x.detach().double() for x in (weight, x0, xl, gradient))
    scale = (gradient * x0).square().mean(dim=0).sqrt()  # (D,)
    scale = scale.clamp_min(FLOOR * scale.max()) if scale.max() > 0 else torch.ones_like(scale)
    moment, eye = xl.T @ xl / len(xl), torch.eye(len(weight)).to(weight)  # (D, D)
    root = torch.linalg.cholesky(moment + (FLOOR**2 * moment.trace() / len(eye)).clamp_min(TINY) * eye)
    inverse = torch.linalg.solve_triangular(root, eye, upper=False)
    return Usage((1 / scale).diag(), scale[:, None] * weight @ root, inverse)


def low_rank_factors(matrix: Usage, rank: int) -> tuple[Tensor, Tensor]:
    """up (D, R) and down (R, D), whose product is nearest to W among all matrices of this rank, as the data uses it."""
    u, values, vt = torch.linalg.svd(matrix.weight)
    root = values[:rank].sqrt()
    return matrix.left @ (u[:, :rank] * root), (root[:, None] * vt[:rank]) @ matrix.right

"""GDCN (Wang et al. 2023), stacked and parallel, for one row."""

from __future__ import annotations

import numpy as np
from references.parts import deep, dense, output


def gated_cross(x0, weights, name):
    """x_{l+1} = x_0 ⊙ (W_l x_l + b_l) ⊙ σ(V_l x_l) + x_l, for one row."""
    xl, layer = x0, 0
    while f"{name}.layers.{layer}.weight" in weights:
        own = f"{name}.layers.{layer}"
        gate = 1 / (1 + np.exp(-dense(xl, weights[f"{own}.gate.weight"])))
        xl = x0 * dense(xl, weights[f"{own}.weight"][0], weights[f"{own}.bias"][0]) * gate + xl
        layer += 1
    return xl


def gdcn(x0, values, weights, *, num_embedded, width, structure):
    crossed = gated_cross(x0, weights, "cross.0")
    if structure == "stacked":
        return output(deep(crossed, weights, "deep"), weights)
    return output([*crossed, *(deep(x0, weights, "deep") if structure == "parallel" else [])], weights)

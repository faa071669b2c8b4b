"""Wang et al. 2017, Eqs. 3 and 5: the outer product x0 x_lᵀ in full, then times w_l."""

from __future__ import annotations

import numpy as np
from references.parts import deep, dot, output


def dcn(x0, values, weights, *, num_embedded, width, structure):
    xl, layer = x0, 0
    while f"cross.layers.{layer}.weight" in weights:
        pairs = np.array([[a * b for b in xl] for a in x0])
        weight, bias = weights[f"cross.layers.{layer}.weight"], weights[f"cross.layers.{layer}.bias"]
        xl = np.array([dot(row, weight) for row in pairs]) + bias + xl
        layer += 1
    if structure == "stacked":
        return output(deep(xl, weights, "deep"), weights)
    return output([*xl, *(deep(x0, weights, "deep") if structure == "parallel" else [])], weights)

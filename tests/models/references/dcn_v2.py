"""DCN-V2 (section 3.4; concatenated cross networks, section 8) for one row."""

from __future__ import annotations

import numpy as np
from references.parts import deep, dense, output


def cross(x0, weights, name):
    """x_{l+1} = x_0 ⊙ (W_l x_l + b_l) + x_l, for one row."""
    xl, layer = x0, 0
    while f"{name}.layers.{layer}.weight" in weights:
        xl = x0 * dense(xl, weights[f"{name}.layers.{layer}.weight"], weights[f"{name}.layers.{layer}.bias"]) + xl
        layer += 1
    return xl


def dcn_v2(x0, values, weights, *, num_embedded, width, structure, num_networks):
    crossed = np.concatenate([cross(x0, weights, f"cross.{number}") for number in range(num_networks)])
    if structure == "stacked":
        return output(deep(crossed, weights, "deep"), weights)
    return output([*crossed, *(deep(x0, weights, "deep") if structure == "parallel" else [])], weights)

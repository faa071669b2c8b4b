"""Wang et al. 2021: a mask from the row's x0, what it leaves of h, a normalised dense layer."""

from __future__ import annotations

import numpy as np
from references.parts import deep, dense, layer_norm, output


def mask_block(x0, h, weights, name):
    hidden = dense(x0, weights[f"{name}.inner.weight"], weights[f"{name}.inner.bias"], "relu")
    mask = dense(hidden, weights[f"{name}.outer.weight"], weights[f"{name}.outer.bias"])
    masked = [m * a for m, a in zip(mask, h, strict=True)]
    y = layer_norm(dense(masked, weights[f"{name}.linear.weight"]), weights, f"{name}.norm")
    return np.array([max(one, 0.0) for one in y])


def mask_net(x0, values, weights, *, num_embedded, width, structure, num_blocks):
    h = layer_norm(x0, weights, "norm")
    if structure == "serial":
        for i in range(num_blocks):
            h = mask_block(x0, h, weights, f"blocks.{i}")
        return output(h, weights)
    blocks = np.concatenate([mask_block(x0, h, weights, f"blocks.{i}") for i in range(num_blocks)])
    return output(deep(blocks, weights, "deep"), weights)

"""Zhu et al. 2023: blocks of layers that multiply what they make of x; each block's logit, and their mean."""

from __future__ import annotations

import numpy as np
from references.parts import dense, dot, layer_norm


def block(x, weights, name):
    layer = 0
    while f"{name}.layers.{layer}.linear.weight" in weights:
        kernel, bias = (weights[f"{name}.layers.{layer}.linear.{part}"] for part in ("weight", "bias"))
        size = len(kernel) // 2
        y = []
        for i in range(size):
            second, first = dot(kernel[i], x) + bias[i], dot(kernel[size + i], x) + bias[size + i]
            y.append(second + first * second)
        x = np.array([max(one, 0.0) for one in layer_norm(y, weights, f"{name}.norm.{layer}")])
        layer += 1
    return x


def final_net(x0, values, weights, *, num_embedded, width, num_blocks=2):
    blocks = [block(x0, weights, f"deep.{i}") for i in range(num_blocks)]
    kernels = np.split(weights["output.weight"][0], num_blocks)
    heads = [dense(h, [num_blocks * w], weights["output.bias"])[0] for h, w in zip(blocks, kernels, strict=True)]
    return sum(heads) / num_blocks

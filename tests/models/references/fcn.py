"""Li et al. 2024 (FCN) and 2025 (QNN-α), element by element."""

from __future__ import annotations

import numpy as np
from references.parts import dense, dot, layer_norm, output


def masked_cross(x0, weights, name, *, widths, previous):
    """H crosses the first half of each feature's vector, H ⊙ relu(LN(H)) the second one."""
    x, layer = np.array(x0), 0
    while f"{name}.layers.{layer}.weight" in weights:
        part = f"{name}.layers.{layer}"
        h = dense(x, weights[f"{part}.weight"])
        masked = [a * max(m, 0.0) for a, m in zip(h, layer_norm(h, weights, f"{part}.norm"), strict=True)]
        first, second, factor = iter(h), iter(masked), x if previous else x0
        y, place = [], 0
        for size in widths:
            for i in range(size):
                inside = next(first) if i < size / 2 else next(second)
                y.append(factor[place] * (inside + weights[f"{part}.bias"][place]) + x[place])
                place += 1
        x, layer = np.array(y), layer + 1
    return x


def fcn(x0, values, weights, *, num_embedded, width, parts):
    widths = [width] * num_embedded + [1] * (len(x0) - num_embedded * width)
    found = [masked_cross(x0, weights, name, widths=widths, previous=previous) for name, previous in parts]
    kernels = np.split(weights["output.weight"][0], len(parts))
    heads = [len(parts) * dot(w, x) + weights["output.bias"][0] for w, x in zip(kernels, found, strict=True)]
    return sum(heads) / len(heads)


def qnn_alpha(x0, values, weights, *, num_embedded, width, num_heads):
    x, layer = np.array(x0), 0
    while f"cross.layers.{layer}.weight" in weights:
        part = f"cross.layers.{layer}"
        h = [max(one, 0.0) for one in layer_norm(dense(x, weights[f"{part}.weight"]), weights, f"{part}.norm")]
        crosses = [[x[i] * h[m * len(x) + i] for i in range(len(x))] for m in range(num_heads)]
        x, layer = np.array([sum(column) / num_heads for column in zip(*crosses, strict=True)]) + x, layer + 1
    return output(x, weights)

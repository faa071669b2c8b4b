"""Mao et al. 2023: two gated streams, and the products of their outputs, head by head."""

from __future__ import annotations

import math

import numpy as np
from references.parts import deep, dense, output


def gated(x0, weights, name, context):
    scores = weights.get(f"{name}.bias")
    if scores is None:
        hidden = deep(x0[context], weights, f"{name}.deep")
        scores = dense(hidden, weights[f"{name}.scores.weight"], weights[f"{name}.scores.bias"])
    return np.array([2 / (1 + math.exp(-score)) * x for score, x in zip(scores, x0, strict=True)])


def final_mlp(x0, values, weights, *, num_embedded, width, num_heads=1, context=False):
    columns = [slice(0, width), slice(0, 0)] if context else [slice(0, 0)] * 2  # the first feature, and nothing
    first, second = (deep(gated(x0, weights, f"gates.{i}", columns[i]), weights, f"deep.{i}") for i in (0, 1))
    total = output([*first, *second], weights)
    for k in range(num_heads):
        rows, others = len(first) // num_heads, len(second) // num_heads
        for i in range(rows):
            for j in range(others):
                total += weights["fusion.weight"][k, i, j] * first[k * rows + i] * second[k * others + j]
    return total

"""Lian et al. 2018: Eq. 6 for each feature map, Eq. 7 for the pooling, Eq. 8 for the logit; xDeepFM around it."""

from __future__ import annotations

import numpy as np
from references.parts import ACTIVATIONS, deep, fields, first_order, output


def interaction_network(vectors, kernels, *, split_half, activation):
    pooled, previous = [], vectors
    for k, kernel in enumerate(kernels):
        maps = []
        for weight in kernel:
            total = np.zeros(len(vectors[0]))
            for i, left in enumerate(previous):
                for j, right in enumerate(vectors):
                    total += weight[i * len(vectors) + j] * left * right
            maps.append(np.array([ACTIVATIONS[activation](x) for x in total]))
        half = len(maps) // 2 if split_half and k < len(kernels) - 1 else 0
        pooled += [sum(one) for one in maps[half:]]
        previous = maps[:half] if split_half else maps
    return pooled


def _kernels(weights):
    return [weights[f"cin.layers.{k}.weight"] for k in range(10) if f"cin.layers.{k}.weight" in weights]


def cin(x0, values, weights, *, num_embedded, width, split_half, activation):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    return output(
        interaction_network(vectors, _kernels(weights), split_half=split_half, activation=activation), weights
    )


def xdeepfm(x0, values, weights, *, num_embedded, width, split_half, activation):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    pooled = interaction_network(vectors, _kernels(weights), split_half=split_half, activation=activation)
    return first_order(values, weights) + output([*pooled, *deep(x0, weights, "deep")], weights)

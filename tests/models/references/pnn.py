"""Qu et al. 2016: a deep network over the embedded features and one product for each pair of fields."""

from __future__ import annotations

import numpy as np
from references.parts import deep, dot, fields, output


def inner_products(vectors):
    return [dot(vectors[i], vectors[j]) for i in range(len(vectors)) for j in range(i + 1, len(vectors))]


def outer_products(vectors, kernels, kernel):
    """Each pair's e × e products of elements, each times its weight, summed."""
    products, pair = [], 0
    for i in range(len(vectors)):
        for j in range(i + 1, len(vectors)):
            weight = kernels[pair]
            total = 0.0
            for f, left in enumerate(vectors[i]):
                for g, right in enumerate(vectors[j]):
                    if kernel == "matrix":
                        total += weight[f, g] * left * right
                    elif f == g:
                        total += (weight[f] if kernel == "vector" else weight[0]) * left * right
            products.append(total)
            pair += 1
    return products


def pnn(x0, values, weights, *, num_embedded, width, product, kernel):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    products = inner_products(vectors) if product != "outer" else []
    if product != "inner":
        products = products + outer_products(vectors, weights[f"products.{int(product == 'both')}.weight"], kernel)
    return output(deep(np.array([*x0, *products]), weights, "deep"), weights)

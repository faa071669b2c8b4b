"""Cheng et al. 2020: each logarithmic neuron as the product of powers that it is."""

from __future__ import annotations

import math

from references.parts import deep, fields, output


def afn(x0, values, weights, *, num_embedded, width):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    powers, biases = weights["logarithmic.weight"], weights["logarithmic.bias"]
    crosses = []
    for element in range(width):
        for power, bias in zip(powers, biases, strict=True):
            product = math.exp(bias)
            for vector, exponent in zip(vectors, power, strict=True):
                product *= max(abs(vector[element]), 1e-4) ** exponent
            crosses.append(product)
    final = list(deep(crosses, weights, "hidden"))
    return output([*final, *(deep(x0, weights, "deep") if "deep.layers.0.weight" in weights else [])], weights)

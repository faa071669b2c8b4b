"""What several published formulas share, for one row, as plain loops over float64 arrays."""

from __future__ import annotations

import numpy as np

ACTIVATIONS = {"relu": lambda x: max(x, 0.0), "identity": lambda x: x, "tanh": np.tanh}


def dot(left, right):
    return sum(float(a) * float(b) for a, b in zip(left, right, strict=True))


def dense(x, weight, bias=None, activation="identity"):
    """f(W x + b)"""
    bias = np.zeros(len(weight)) if bias is None else bias
    return np.array([ACTIVATIONS[activation](dot(row, x) + b) for row, b in zip(weight, bias, strict=True)])


def deep(x, weights, name, activation="relu"):
    """h_{l+1} = f(W_l h_l + b_l), for as many layers as there are."""
    layer = 0
    while f"{name}.layers.{layer}.weight" in weights:
        x = dense(x, weights[f"{name}.layers.{layer}.weight"], weights[f"{name}.layers.{layer}.bias"], activation)
        layer += 1
    return x


def output(x, weights):
    """w · x + b"""
    return dot(weights["output.weight"][0], x) + float(weights["output.bias"][0])


def fields(x0, weights, *, num_embedded, width):
    """v_i for each embedded feature, x_j v_j for each number."""
    vectors = [x0[i * width : (i + 1) * width] for i in range(num_embedded)]
    numbers = x0[num_embedded * width :]
    return vectors + [x * weights["fields.vectors"][j] for j, x in enumerate(numbers)]


def first_order(values, weights):
    """Σ_i w_i + Σ_j u_j x_j; values are the weights w_i of this row's values, then its numbers x_j."""
    slopes = weights["linear.numbers"]
    num_embedded = len(values) - len(slopes)
    return sum(values[:num_embedded]) + dot(slopes, values[num_embedded:])


def layer_norm(x, weights, name):
    """γ (x - mean) / √(variance + 1e-5) + β, over the elements of one vector."""
    mean = sum(x) / len(x)
    deviation = (sum((a - mean) ** 2 for a in x) / len(x) + 1e-5) ** 0.5
    scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return np.array([g * (a - mean) / deviation + b for g, a, b in zip(scale, x, shift, strict=True)])

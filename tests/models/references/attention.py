"""Song et al. 2019, Eqs. 5 to 9, and Li et al. 2020, sections on the Transformer and the hierarchy, field by field."""

from __future__ import annotations

import math

import numpy as np
from references.parts import deep, dense, dot, fields, output


def softmax(scores):
    exponentials = [math.exp(score - max(scores)) for score in scores]  # the same ratios, none of them 0 / 0
    return [exponential / sum(exponentials) for exponential in exponentials]


def heads(vectors, query, key, value, *, num_heads, scale):
    """For each field the concatenated heads Σ_k α_mk W_value e_k."""
    size = len(query) // num_heads
    mixed = []
    for m in range(len(vectors)):
        pieces = []
        for h in range(num_heads):
            rows = slice(h * size, (h + 1) * size)
            asked = dense(vectors[m], query[rows])
            weights = softmax([scale * dot(asked, dense(other, key[rows])) for other in vectors])
            pieces += list(
                sum(weight * dense(other, value[rows]) for weight, other in zip(weights, vectors, strict=True))
            )
        mixed.append(np.array(pieces))
    return mixed


def interacting_layer(vectors, weights, name, *, num_heads):
    query, key, value = (weights[f"{name}.{kernel}.weight"] for kernel in ("query", "key", "value"))
    mixed = heads(vectors, query, key, value, num_heads=num_heads, scale=1.0)
    if f"{name}.skip.weight" in weights:
        mixed = [
            one + dense(vector, weights[f"{name}.skip.weight"]) for one, vector in zip(mixed, vectors, strict=True)
        ]
    return [np.array([max(x, 0.0) for x in one]) for one in mixed]


def autoint(x0, values, weights, *, num_embedded, width, num_heads):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    layer = 0
    while f"attention.{layer}.query.weight" in weights:
        vectors = interacting_layer(vectors, weights, f"attention.{layer}", num_heads=num_heads)
        layer += 1
    plus = "deep.layers.0.weight" in weights
    return output([*np.concatenate(vectors), *(deep(x0, weights, "deep") if plus else [])], weights)


def transformer(vectors, weights, *, num_heads):
    query, key, value = (weights[f"transformer.{kernel}.weight"] for kernel in ("query", "key", "value"))
    scale = 1 / math.sqrt(len(query) // num_heads)
    rewritten = []
    for vector, mixed in zip(vectors, heads(vectors, query, key, value, num_heads=num_heads, scale=scale), strict=True):
        middle = vector + dense(mixed, weights["transformer.mix.weight"])
        inner = dense(middle, weights["transformer.inner.weight"], weights["transformer.inner.bias"], "relu")
        rewritten.append(middle + dense(inner, weights["transformer.outer.weight"], weights["transformer.outer.bias"]))
    return rewritten


def aggregate(vectors, weights, name):
    kernel, context = weights[f"{name}.weight"], weights[f"{name}.context"]
    shares = softmax([dot(context, dense(vector, kernel, activation="relu")) for vector in vectors])
    return sum(share * vector for share, vector in zip(shares, vectors, strict=True))


def interhat(x0, values, weights, *, num_embedded, width, num_heads, num_orders):
    first = transformer(fields(x0, weights, num_embedded=num_embedded, width=width), weights, num_heads=num_heads)
    current, aggregated = first, []
    for order in range(num_orders):
        aggregated.append(aggregate(current, weights, f"hierarchy.orders.{order}"))
        current = [aggregated[-1] * one + other for one, other in zip(first, current, strict=True)]
    return output(deep(aggregate(aggregated, weights, "hierarchy.final"), weights, "deep"), weights)

"""Rendle 2010, Eq. 1, and Guo et al. 2017, Eqs. 1 and 2, pair by pair."""

from __future__ import annotations

from references.parts import deep, dot, fields, first_order, output


def pairs(vectors):
    return sum(dot(vectors[i], vectors[j]) for i in range(len(vectors)) for j in range(i + 1, len(vectors)))


def fm(x0, values, weights, *, num_embedded, width):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    return float(weights["bias"][0]) + first_order(values, weights) + pairs(vectors)


def deepfm(x0, values, weights, *, num_embedded, width):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    return first_order(values, weights) + pairs(vectors) + output(deep(x0, weights, "deep"), weights)

"""Zhang et al. 2024: the inner products of all fields in full, then times Y; sums of fields; the residual; the norm."""

from __future__ import annotations

import numpy as np
from references.parts import deep, dense, dot, fields, layer_norm, output


def sums(vectors, kernel):
    """Each row of the kernel weighs the vectors."""
    return [sum(w * vector for w, vector in zip(row, vectors, strict=True)) for row in kernel]


def factorization_block(vectors, weights, name):
    columns = weights[f"{name}.projection.weight"]  # (K, N)
    products = [[dot(one, other) for other in vectors] for one in vectors]
    flat = [dot(row, column) for row in products for column in columns]
    hidden = deep(layer_norm(flat, weights, f"{name}.norm"), weights, f"{name}.deep")
    last = dense(hidden, weights[f"{name}.last.weight"], weights[f"{name}.last.bias"])
    return list(last.reshape(-1, len(vectors[0])))


def wukong(x0, values, weights, *, num_embedded, width, num_layers):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    for layer in range(num_layers):
        name = f"layers.{layer}"
        made = factorization_block(vectors, weights, f"{name}.fm") + sums(vectors, weights[f"{name}.linear.weight"])
        skip = weights.get(f"{name}.skip.weight")
        carried = vectors if skip is None else sums(vectors, skip)
        vectors = [layer_norm(a + b, weights, f"{name}.norm") for a, b in zip(made, carried, strict=True)]
    return output(deep(np.concatenate(vectors), weights, "deep"), weights)

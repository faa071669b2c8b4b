"""He and Chua 2017, Eqs. 2, 3 and 7: every product of two fields, summed, through the hidden layers."""

from __future__ import annotations

import numpy as np
from references.parts import deep, fields, first_order, output


def nfm(x0, values, weights, *, num_embedded, width):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    pooled = np.zeros(width)
    for i in range(len(vectors)):
        for j in range(i + 1, len(vectors)):
            pooled += vectors[i] * vectors[j]
    return first_order(values, weights) + output(deep(pooled, weights, "deep"), weights)

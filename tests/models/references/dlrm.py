"""Naumov et al. 2019, section 2: numbers through a network into one field, inner products of all fields, a network."""

from __future__ import annotations

import numpy as np
from references.parts import deep, dot, output


def dlrm(x0, values, weights, *, num_embedded, width, with_itself):
    vectors = [x0[i * width : (i + 1) * width] for i in range(num_embedded)]
    numbers = x0[num_embedded * width :]
    inputs = []
    if len(numbers):
        inputs = [*deep(numbers, weights, "bottom")]
        vectors = [np.array(inputs), *vectors]
    for i in range(len(vectors)):
        for j in range(i if with_itself else i + 1, len(vectors)):
            inputs.append(dot(vectors[i], vectors[j]))
    return output(deep(np.array(inputs), weights, "deep"), weights)

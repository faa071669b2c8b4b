"""Chen et al. 2021: gates for each field, a cross layer beside a deep layer, and their product into the next two."""

from __future__ import annotations

import math

import numpy as np
from references.parts import dense, dot, fields, layer_norm, output


def gate(x, weights, name, *, num_fields, width, temperature):
    powers = [math.exp(g / temperature) for g in weights[f"{name}.gate"]]
    y = []
    for f in range(num_fields):
        for e in range(width):
            y.append(num_fields * powers[f] / sum(powers) * x[f * width + e])
    return layer_norm(y, weights, f"{name}.norm")


def edcn(x0, values, weights, *, num_embedded, width, num_layers, full=False, temperature=1.0):
    vectors = fields(x0, weights, num_embedded=num_embedded, width=width)
    options = {"num_fields": len(vectors), "width": width, "temperature": temperature}
    bridge, first = np.concatenate(vectors), None
    for i in range(num_layers):
        crossed = gate(bridge, weights, f"gates.{2 * i}", **options)
        hidden = gate(bridge, weights, f"gates.{2 * i + 1}", **options)
        first = crossed if first is None else first
        kernel, bias = weights[f"cross.{i}.weight"], weights[f"cross.{i}.bias"]
        if full:
            crossed = first * dense(crossed, kernel, bias) + crossed
        else:
            crossed = first * dot(crossed, kernel) + bias + crossed
        hidden = dense(hidden, weights[f"deep.{i}.layers.0.weight"], weights[f"deep.{i}.layers.0.bias"], "relu")
        bridge = crossed * hidden
    return output([*crossed, *hidden, *bridge], weights)

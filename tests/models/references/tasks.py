"""Shared bottom, MMoE (Ma et al. 2018) and PLE (Tang et al. 2020) for one row: the logits of all tasks."""

from __future__ import annotations

import math

import numpy as np
from references.dcn_v2 import cross
from references.parts import deep, dense, dot


def gated(x, gate, experts):
    """Σ_e softmax(G x)_e f_e"""
    scores = [math.exp(score) for score in dense(x, gate)]
    mixed = np.zeros(len(experts[0]))
    for score, expert in zip(scores, experts, strict=True):
        for i, value in enumerate(expert):
            mixed[i] += score / sum(scores) * value
    return mixed


def towers(hidden, weights):
    """w_kᵀ tower_k(h_k) + b_k for each task; the number itself where there is one."""
    tops = [deep(h, weights, f"towers.{k}") for k, h in enumerate(hidden)]
    logits = [dot(weights["output.weight"][k], top) + float(weights["output.bias"][k]) for k, top in enumerate(tops)]
    return logits if len(logits) > 1 else logits[0]


def below(x0, weights):
    return cross(x0, weights, "cross")  # x0 itself where there are no such layers


def shared_bottom(x0, values, weights, *, num_embedded, width, num_tasks=1):
    return towers([deep(below(x0, weights), weights, "deep")] * num_tasks, weights)


def mmoe(x0, values, weights, *, num_embedded, width, num_experts, num_tasks=1):
    x = below(x0, weights)
    experts = [deep(x, weights, f"levels.0.shared.{e}") for e in range(num_experts)]
    return towers([gated(x, weights[f"levels.0.gate.{k}.weight"], experts) for k in range(num_tasks)], weights)


def ple(x0, values, weights, *, num_embedded, width, num_levels, num_specific, num_shared, num_tasks=1):
    h, common = [below(x0, weights)] * num_tasks, below(x0, weights)
    for level in range(num_levels):
        name = f"levels.{level}"
        shared = [deep(common, weights, f"{name}.shared.{e}") for e in range(num_shared)]
        specific = []
        for k in range(num_tasks):
            specific.append([deep(h[k], weights, f"{name}.specific.{k}.{e}") for e in range(num_specific)])
        gates = [weights[f"{name}.gate.{k}.weight"] for k in range(num_tasks)]
        h = [gated(h[k], gates[k], specific[k] + shared) for k in range(num_tasks)]
        if level < num_levels - 1:
            common = gated(
                common, weights[f"{name}.gate.{num_tasks}.weight"], [*(one for own in specific for one in own), *shared]
            )
    return towers(h, weights)

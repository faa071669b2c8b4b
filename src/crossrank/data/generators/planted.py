"""Truths to plant in made-up click logs: interactions that no sum of smaller effects can imitate.

A planted cross of the columns a, b, … adds

    f(a, b, …) = strength / √R · Σ_r u_r(a) v_r(b) …

to the logit, where u(a), v(b), … are vectors of R numbers, one for each value. Every column is drawn on its own, and
its vectors are centred and whitened under its own distribution: E[u] = 0 and E[u uᵀ] = I. So the mean of f over any one
of its columns vanishes (f is orthogonal to every function of fewer columns), and ``strength`` is the standard deviation
of f. In the demo each cross has vectors of its own; in the Criteo-like set a value has one vector for all its crosses.
"""

from __future__ import annotations

import hashlib
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from crossrank.data.text import splitmix64

Floats: TypeAlias = npt.NDArray[np.float64]


def hashed(name: str, size: int) -> npt.NDArray[np.uint64]:
    """As many 64-bit integers as asked for, a pure function of the name and the position."""
    start = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    mixed: npt.NDArray[np.uint64] = splitmix64(np.arange(size, dtype=np.uint64) + np.uint64(start))
    return mixed


def effects(name: str, size: int) -> Floats:
    """Fixed pseudo-random numbers with mean 0 and deviation 1, uniform between -√3 and √3.

    Bounded, because the tails of a product of Gaussians would put most of a high-order cross into a few rows.

    >>> bool(abs(effects("user", 10_000).std() - 1) < 0.02)
    True
    """
    uniform = (hashed(name, size) >> np.uint64(11)).astype(np.float64) * 2.0**-53  # from 0 to 1
    return (uniform - 0.5) * math.sqrt(12)


def factors(name: str, weights: Floats, *, rank: int) -> Floats:
    """One vector for each value of a column, centred and whitened under the weights of the values.

    Args:
        name: what the pseudo-random numbers are a function of.
        weights: how often each value occurs, up to a constant.
        rank: R, less than the number of values.

    Shape: weights (V,) -> (V, R), with Σ w u = 0 and Σ w u uᵀ = I.
    """
    share = weights / weights.sum()
    vectors = effects(name, len(share) * rank).reshape(len(share), rank)
    vectors = vectors - share @ vectors
    covariance = (vectors * share[:, None]).T @ vectors  # (R, R)
    return np.linalg.solve(np.linalg.cholesky(covariance), vectors.T).T


def entropy(probability: Floats) -> Floats:
    """The expected log loss of a prediction that is the truth, in nats; 0 where the outcome is certain."""
    p = np.clip(probability, 1e-300, 1 - 1e-16)
    return -p * np.log(p) - (1 - p) * np.log1p(-p)


def sigmoid(logit: Floats) -> Floats:
    return 1 / (1 + np.exp(-logit))

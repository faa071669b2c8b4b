"""What Adam and the average do to a weight while its gradient is zero, in closed form.

The textbook's Adam moves every weight at every step, also one whose gradient is zero: along its old momentum, which
fades. Let w, m, v, w̄ be as they were after step s, and the gradient zero at the steps s + 1 … t. With n = t - s::

    m_t = β1ⁿ m                v_t = β2ⁿ v
    w_t = w - η q C            C = D(s) - rⁿ D(t)                              r = β1 / sqrt(β2)
    w̄_t = P w̄ + (1 - P) w - η q E        E = (1 - P) D(s) - P T(s) + rⁿ T(t)   P = Π_{k=s+1}^{t} d_k

where q = m / (sqrt(v) + ε sqrt(1 - β2ˢ)) is the direction, P what is left of the old average, and D and T do not depend
on the weight::

    D(s) = Σ_{k>s} r^{k-s} c_k           c_k = sqrt(1 - β2ᵏ) / (1 - β1ᵏ), Adam's two corrections
    T(s) = (r / d_{s+1}) ((1 - d_{s+1}) D(s+1) + T(s+1))

So a row of a table may be left alone until it is next read, and is then what it would have been. The one approximation
is that ε, which keeps Adam from dividing by zero, fades with sqrt(v); for ε = 0 it is exact.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's own
FADING = BETAS[0] / math.sqrt(BETAS[1])  # r
LONG = 2**16  # steps after which the curves are flat


def decay_at(step: int, decay: float) -> float:
    """d_t: how much of the average stays at step t."""
    return min(decay, (1 + step) / (10 + step))


def last_warm_step(decay: float) -> int:
    """The last k with (1 + k) / (10 + k) < decay."""
    change = max(int((10 * decay - 1) / (1 - decay)) - 2, 0)
    while (2 + change) / (11 + change) < decay:
        change += 1
    return change


class Curves(NamedTuple):
    """D, T and sqrt(1 - β2ˢ) at the steps 0, 1, …; from the last one on they are constant. Shape: each (steps,)."""

    reach: Tensor
    lag: Tensor
    root: Tensor


@functools.lru_cache
def curves(decay: float, device: torch.device | str = "cpu") -> Curves:
    """The curves for a decay of the average; 0 for none, and T is of no use then."""
    steps = np.arange(max(LONG, last_warm_step(decay)) + 2, dtype=np.float64)
    beta1, beta2 = BETAS
    roots = np.sqrt(1 - beta2 ** np.maximum(steps, 1))
    corrections = roots / (1 - beta1 ** np.maximum(steps, 1))
    reach = np.full_like(steps, FADING / (1 - FADING))
    for s in range(len(steps) - 2, -1, -1):
        reach[s] = FADING * (corrections[s + 1] + reach[s + 1])
    lag = _lag(reach, np.minimum(decay, (1 + steps) / (10 + steps))) if decay else np.zeros_like(steps)
    return Curves(*(torch.from_numpy(curve).to(device) for curve in (reach, lag, roots)))


def _lag(reach: np.ndarray, decays: np.ndarray) -> np.ndarray:
    """T. Every solution of its recursion will do, so it is followed in the direction in which errors fade."""
    lag, last = np.zeros_like(reach), len(reach) - 1
    if decays[last] > FADING:
        lag[last] = FADING * (1 - decays[last]) * reach[last] / (decays[last] - FADING)
        for s in range(last - 1, -1, -1):
            lag[s] = FADING / decays[s + 1] * ((1 - decays[s + 1]) * reach[s + 1] + lag[s + 1])
    else:
        for s in range(1, last + 1):
            lag[s] = decays[s] / FADING * lag[s - 1] - (1 - decays[s]) * reach[s]
    return lag


class Idle(NamedTuple):
    """What is the same for all weights of a row. Shape: each (rows, 1)."""

    mean: Tensor  # β1ⁿ
    square: Tensor  # β2ⁿ
    weight: Tensor  # C
    kept: Tensor  # P
    average: Tensor  # E
    epsilon: Tensor  # ε sqrt(1 - β2ˢ)


def idle(since: Tensor, now: Tensor, *, decay: float, dtype: torch.dtype) -> Idle:
    """The factors of rows that were left alone since a step of their own: since (rows,), now ()."""
    reach, lag, root, left = _curves_at(since, decay).unbind(1)  # (rows,) each
    now = now.to(since.device).view(1)  # to look up by a scalar would wait for it
    reach_now, lag_now, _, left_now = _curves_at(now, decay).unbind(1)  # (1,)
    length = (now - since).double()
    mean, square, faded = torch.exp(length[:, None] * _rates(since.device)).unbind(1)
    kept = torch.exp(left_now - left)
    factors = (
        mean,
        square,
        reach - faded * reach_now,
        kept,
        (1 - kept) * reach - kept * lag + faded * lag_now,
        EPSILON * root,
    )
    return Idle(*torch.stack(factors).to(dtype)[..., None])


def _curves_at(steps: Tensor, decay: float) -> Tensor:
    """D, T, sqrt(1 - β2ˢ) and Σ_{k≤s} log d_k at some steps: (N,) -> (N, 4)."""
    table = _table(decay, steps.device)
    known = steps.clamp(max=len(table) - 1)
    rows = table.index_select(0, known)
    rows[:, 3] += (steps - known).double() * math.log(decay or 1.0)  # a step more is a factor of d more
    return rows


@functools.lru_cache
def _table(decay: float, device: torch.device) -> Tensor:
    """The curves side by side, with what the average keeps of its beginning, as a logarithm: (steps, 4).

    While d_k = (1 + k) / (10 + k), the product of the first s telescopes to Π_{j=2}^{10} j / (s + j).
    """
    known = curves(decay)
    steps, change = torch.arange(len(known.reach), dtype=torch.float64), last_warm_step(decay)
    warm = sum(math.log(j) - torch.log(steps.clamp(max=change) + j) for j in range(2, 11))
    left = warm + (steps - change).clamp(min=0) * math.log(decay or 1.0)
    return torch.stack([*known, left], dim=1).to(device)


@functools.lru_cache
def _rates(device: torch.device) -> Tensor:
    """Logarithms of β1, β2 and r: (3,)."""
    return torch.tensor([*BETAS, FADING], dtype=torch.float64).log().to(device)

"""What Adam and the average do to a weight while its gradient is zero, in closed form.

The textbook's Adam moves every weight at every step, also one whose gradient is zero: along its old momentum, which
fades. Let w, m, v, w̄ be as they were after step s, and the gradient zero at the steps s + 1 … t. With n = t - s and
R = sqrt(v)::

    m_t = β1ⁿ m                v_t = β2ⁿ v
    w_t = Q w - η m C          C = Q D(s, R) - rⁿ D(t, R_t)                      r = β1 / sqrt(β2)
    w̄_t = P w̄ + B w - η m E    E = h(t) C - P T(s, R) + rⁿ T(t, R_t)             B = Q h(t) - P h(s)

where P = Π d_k is what is left of the old average and Q = Π κ_k of the old weight, κ_k = 1 - η a_k ρ, both over the
steps s + 1 … t; a_k is the schedule's factor at step k and ρ the decay of rows. D and T are sums over all later steps::

    D(s, R) = Σ_{k>s} r^{k-s} a_k c_k / Π_{s<i≤k} κ_i / (R + ε e_k)              c_k = sqrt(1 - β2ᵏ) / (1 - β1ᵏ)
    T(s, R) = Σ_{k>s} r^{k-s} a_k c_k h(k-1) / κ_k / Π_{s<i<k} d_i / (R + ε e_k)    e_k = sqrt(1 - β2ᵏ) β2^{-(k-s)/2}
    h(k) = (d_k / κ_k) h(k-1) + 1 - d_k                                          without ρ: κ = h = 1

Were it not for ε, R would be a factor and D and T curves over s. With it they depend on how R compares with ε, but
little, since e_k hardly changes over the steps that count. So each sum over a stretch is replaced by two terms that
have its first four moments over e (a Gauss rule), which is one fraction in R::

    Σ_k t_k / (R + ε e_k)  =  (a R + b ε) / (R² + c ε R + d ε²)

In the first 256 steps e_k grows quickly; there float64 goes step by step where R is below 100 ε.
``tests/training/test_lazy.py`` holds the result against torch's Adam, for gradients from 1 to 1e-12.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's own
FADING = BETAS[0] / math.sqrt(BETAS[1])  # r
LONG = 2**16  # steps after which Adam's corrections are 1
FORGOTTEN = 100_000  # idle steps after which nothing is left of m, v and the drift
EARLY = 256  # steps in which they change quickly
SMALL = 100 * EPSILON  # a root of v below which ε has to be looked at closely
MOMENTS = 4
SORTED = 100  # steps for each row of a batch, from which on sorting is faster
# Logarithms of what a step leaves of the moments, r β2^{-j/2}, of m and of v
FADES = np.log([*(FADING * BETAS[1] ** (-moment / 2) for moment in range(MOMENTS)), *BETAS])[:, None]
UNITS = np.array([1.0, EPSILON, EPSILON, EPSILON**2])[:, None]  # of a, b, c, d

Curve = NDArray[np.float64]
Steps = NDArray[np.int64]


def decay_at(step: Any, decay: float) -> Any:
    """d_t: how much of the average stays at step t."""
    return np.minimum(decay, (1 + step) / (10 + step))


class Curves:
    """The curves for the steps 0, 1, …; from the last one on D, T and h are constant.

    Args:
        decay: of the moving average; 0 for none, and T is of no use then.
        factors: a_k of the steps 1, 2, …; behind the last one it stays. Left out, 1.
        shrink: η ρ.
    """

    def __init__(self, decay: float, factors: Curve | None = None, shrink: float = 0.0) -> None:
        self.decay, self.shrink = decay, shrink
        scheduled = np.ones(0) if factors is None else factors
        settled = (40 if shrink else 10) / (1 - decay)  # d is at its end by then; h comes nearer to its own more slowly
        steps = np.arange(max(LONG, len(scheduled), settled) + 2)
        self.factors = np.ones(len(steps))
        self.factors[1 : len(scheduled) + 1] = scheduled
        self.factors[len(scheduled) + 1 :] = scheduled[-1] if len(scheduled) else 1.0
        beta1, beta2 = BETAS
        root = np.sqrt(1 - beta2 ** np.maximum(steps, 1))
        pace = self.factors * root / (1 - beta1 ** np.maximum(steps, 1))  # a_k c_k
        stays, kept = decay_at(steps, decay), 1 - shrink * self.factors
        self.held = _held(stays, kept) if shrink and decay else np.ones(len(steps))
        before = np.append(1.0, self.held[:-1])
        reach, lag = [], []
        for moment in range(MOMENTS):
            terms, growth = pace * root**moment, FADING * beta2 ** (-moment / 2)  # of a term from step to step
            reach.append(_sums(terms, growth / kept))
            lag.append(_sums(terms * before * stays / kept, growth / stays) if decay else 0 * terms)
        logs = [np.cumsum(np.log(np.append(1.0, part[1:]))) for part in (stays if decay else 1 + 0 * kept, kept)]
        self.table = np.stack([*reach, *lag, *logs, self.held], axis=1)
        self.last_logs = np.log([[decay or 1.0], [kept[-1]]])  # log d and log κ of each step from the last one on

    def fractions(self) -> Curve:
        """a, b, c, d of the sum over all later steps, at each step: (steps, 4)."""
        return np.stack(as_fraction(self.table[:, :MOMENTS].T), axis=1)

    def at(self, steps: Steps) -> Curve:
        """Moments of D and of T, Σ log d, Σ log κ and h at some steps: (N,) -> (11, N)."""
        known = np.minimum(steps, len(self.table) - 1)
        columns = self.table[known].T
        columns[8:10] += (steps - known) * self.last_logs  # behind the end a step more is a factor more
        return columns


def _sums(terms: Curve, growth: Curve) -> Curve:
    """X with X(s) = growth(s + 1) (terms(s + 1) + X(s + 1)), constant behind the end; 0 is no step: (steps,).

    Where growth ends below 1 this is a sum over all later steps. Elsewhere it is the one over all earlier steps: any
    solution will do, and in that direction errors fade.
    """
    last = growth[-1]
    if last < 1:
        end = last * terms[-1] / (1 - last)
        return _folded(np.append(growth[1:] * terms[1:], end), np.append(growth[1:], 0.0))
    return _folded(np.append(-terms[:0:-1], 0.0), np.append(1 / growth[:0:-1], 0.0))[::-1]


def _folded(terms: Curve, growth: Curve) -> Curve:
    """X with X(s) = terms(s) + growth(s) X(s + 1), where the last growth is 0."""
    reach = 1
    while reach < len(terms):  # a sum over twice as many steps each time
        terms[:-reach] += growth[:-reach] * terms[reach:]
        growth[:-reach] *= growth[reach:].copy()
        reach *= 2
    return terms


def _held(stays: Curve, kept: Curve) -> Curve:
    """h, from h(0) = 1 on; it settles where rows shrink more slowly than the average follows."""
    return _folded(np.append(1 - stays[:0:-1], 1.0), np.append((stays / kept)[:0:-1], 0.0))[::-1]


class Stretch(NamedTuple):
    """Idle steps of some rows. Shape: each (rows,), the drifts (4, rows): a, b ε, c ε and d ε² of their fraction."""

    mean: Curve  # β1ⁿ
    square: Curve  # β2ⁿ
    kept: Curve  # Q
    left: Curve  # P
    own: Curve  # B
    weight: Curve  # C
    average: Curve  # E


def stretch(since: Steps, now: int, curves: Curves) -> Stretch:
    """The steps from one of each row's own to the present one: (rows,)."""
    start, stop = curves.at(since), curves.at(np.array([now]))  # (11, rows), (11, 1)
    faded = np.exp(FADES * np.minimum(now - since, FORGOTTEN))
    fading, (left, kept) = faded[:4], np.exp(stop[8:10] - start[8:10])
    weight = kept * start[:4] - fading * stop[:4]
    average = weight * stop[10] - left * start[4:8] + fading * stop[4:8]
    own = kept * stop[10] - left * start[10]
    drifts = np.stack(as_fraction(np.stack([weight, average], axis=1)), axis=1) * UNITS  # (2, 4, rows)
    return Stretch(faded[4], faded[5], kept, left, own, drifts[0], drifts[1])


def stretches(since: Tensor, now: int, curves: Curves, dtype: torch.dtype) -> Tensor:
    """The numbers of :class:`Stretch` for each row, computed once for rows of the same step: (rows,) -> (13, rows)."""
    distinct, places = _distinct(since.cpu().numpy(), now)
    numbers = torch.from_numpy(np.vstack(stretch(distinct, now, curves))).to(since.device, dtype)
    return numbers.index_select(1, torch.from_numpy(places).to(since.device))


def _distinct(steps: Steps, now: int) -> tuple[Steps, Steps]:
    """The different steps up to the present one, and the place of each row's among them.

    By a table of all steps, unless these are so many that sorting is faster: a step must not grow with their number.
    """
    if now > SORTED * len(steps):
        return np.unique(steps, return_inverse=True)
    known, places = np.zeros(now + 1, dtype=bool), np.empty(now + 1, dtype=np.int64)
    known[steps] = True
    distinct = np.flatnonzero(known)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[steps]


def as_fraction(moments: Curve) -> tuple[Curve, Curve, Curve, Curve]:
    """a, b, c, d of a sum of which four moments over e are known: (4, …) -> four of (…).

    Its two terms stand at the eigenvalues of [[mean, deviation], [deviation, mean + skew]].
    """
    total = np.where(moments[0] == 0, 1.0, moments[0])
    mean, second, third = moments[1:] / total
    mean = np.where(moments[0] == 0, 1.0, mean)
    spread = second - mean**2
    sound = spread > 1e-12 * mean**2  # less is rounding: all stand at one place
    spread = np.where(sound, spread, 1.0)
    skew = np.where(sound, (third - 3 * mean * second + 2 * mean**3) / spread, 0.0)
    half = np.sqrt(skew**2 / 4 + spread)
    low, high = mean + skew / 2 - half, mean + skew / 2 + half
    sound &= low > 0
    share = np.where(sound, (mean - low) / (high - low), 0.0)  # of the term at the high end
    low, high = (np.where(sound, place, np.maximum(mean, 1e-3)) for place in (low, high))
    return moments[0], moments[0] * (share * low + (1 - share) * high), low + high, low * high

"""The update rule: Adam with a schedule, the decay of embedding rows, and the moving average of the weights.

::

    m   <- β1 m + (1 - β1) g               v <- β2 v + (1 - β2) g²
    w   <- (1 - η_t ρ) w - η_t m̂ / (sqrt(v̂) + ε)       m̂ = m / (1 - β1ᵗ),  v̂ = v / (1 - β2ᵗ)
    w̄   <- w̄ + (1 - d_t) (w - w̄)           d_t = min(decay, (1 + t) / (10 + t))

η_t is the learning rate times the schedule's factor at step t; ρ is 0 for all but embedding rows. The average's decay
d_t starts small, as in TensorFlow's moving average that the paper used: otherwise a run of a few thousand steps would
be judged by its initial weights.

:class:`UpdateRule` is the one definition of it, for weights that have a gradient and for those that are left alone.
torch's fused Adam on a processor and the kernels on a GPU compute the same faster, and are tested against it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from crossrank.training.idle import (
    BETAS,
    EARLY,
    EPSILON,
    SMALL,
    Curves,
    decay_at,
    stretches,
)
from crossrank.training.schedule import ScheduleName, factors
from crossrank.training.settings import TrainingSettings

Rate = float | Tensor  # one for all, or one for each row


@functools.lru_cache(maxsize=8)
def find_curves(decay: float, schedule: ScheduleName, warmup_steps: int, total_steps: int, shrink: float) -> Curves:
    return Curves(decay, factors(schedule, total_steps=total_steps, warmup_steps=warmup_steps), shrink)


class Moved(NamedTuple):
    """Weights with what moves along: Adam's m and v, and the average where there is one; all of one shape."""

    weight: Tensor
    mean: Tensor
    square: Tensor
    average: Tensor | None


class Placed(NamedTuple):
    """What kernels read of a rule, on their device.

    Shape: rates and table_rates (models,); factors (steps,), a_t; curves (steps, 11) and fractions (steps, 4), see
    :class:`Curves`; numbers (5,): the logarithms of β1, of β2, and of d and κ behind the last step, and the average's
    decay.
    """

    rates: Tensor
    table_rates: Tensor
    factors: Tensor
    curves: Tensor
    fractions: Tensor
    numbers: Tensor


class UpdateRule:
    """What a step does to a weight.

    Args:
        settings: learning rate, schedule, decays.
        total_steps: of the training, which the schedule is laid over.
        learning_rates: of each model, where several take their steps together; their rows lie one after the other.
    """

    def __init__(
        self, settings: TrainingSettings, *, total_steps: int = 0, learning_rates: Sequence[float] = ()
    ) -> None:
        self.decay, self.settings = settings.average_decay, settings
        self.rates = list(learning_rates) or [settings.learning_rate]
        self.table_rates = [settings.table_learning_rate or rate for rate in self.rates]
        self._placed: dict[torch.device, Placed] = {}
        self.total_steps = total_steps if settings.schedule in ("linear", "cosine") else 0
        self.curves = self._curves()

    def _curves(self) -> Curves:
        settings, shrink = self.settings, self.table_rates[0] * self.settings.table_decay
        return find_curves(self.decay, settings.schedule, settings.warmup_steps, self.total_steps, shrink)

    def drop(self, factor: float, *, model: int = 0) -> None:
        """Go on with a smaller learning rate of one model; every row must belong to the present step."""
        self.rates[model] *= factor
        self.table_rates[model] *= factor
        self.curves = self._curves()
        for device, placed in self._placed.items():
            for old, new in zip(placed, self._place(device), strict=True):
                old.copy_(new)  # where a captured step reads it

    def on(self, device: torch.device) -> Placed:
        if device not in self._placed:
            self._placed[device] = self._place(device)
        return self._placed[device]

    def _place(self, device: torch.device) -> Placed:
        curves = self.curves
        numbers = [*map(math.log, BETAS), *curves.last_logs[:, 0], self.decay]
        return Placed(
            torch.tensor(self.rates, device=device),
            torch.tensor(self.table_rates, device=device),
            torch.from_numpy(curves.factors).to(device),
            torch.tensor(curves.table, device=device),
            torch.tensor(curves.fractions(), dtype=torch.float32, device=device),
            torch.tensor(numbers, dtype=torch.float64, device=device),
        )

    def rate(self, rows: Tensor, num_rows: int) -> Rate:
        """The learning rate of some of a table's rows: one, or (U, 1)."""
        if len(self.table_rates) == 1:
            return self.table_rates[0]
        models = torch.div(rows, num_rows // len(self.table_rates), rounding_mode="floor")
        return torch.tensor(self.table_rates, dtype=torch.float64, device=rows.device)[models][:, None]

    def factor(self, step: int) -> float:
        """a_t, what the schedule multiplies the learning rate with."""
        return float(self.curves.factors[min(step, len(self.curves.factors) - 1)])

    def step(self, moved: Moved, gradient: Tensor, *, step: int, rate: Rate, shrink: float = 0.0) -> None:
        """One step with a gradient, in place; the rate broadcasts, ``shrink`` is the learning rate times ρ."""
        (weight, mean, square, average), (beta1, beta2), factor = moved, BETAS, self.factor(step)
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        spread = root(square).div_((1 - beta2**step) ** 0.5).add_(EPSILON)
        if shrink:
            weight.mul_(1 - shrink * factor)
        paced, one = (mean * rate.to(mean.dtype), 1.0) if isinstance(rate, Tensor) else (mean, rate)
        weight.addcdiv_(paced, spread, value=-one * factor / (1 - beta1**step))
        if average is not None:
            average.lerp_(weight, 1 - float(decay_at(step, self.decay)))

    def age(self, moved: Moved, *, since: Tensor, now: int, rate: Rate) -> None:
        """All steps without a gradient from a step of each row's own to the present one, in place.

        Shape: since (rows,), the rate a number or (rows, 1), everything else (rows, width).
        """
        weight, mean, square, average = moved
        if weight.dtype == torch.float64:
            since = self._step_through(moved, since, now, rate)
        columns = stretches(since, now, self.curves, weight.dtype)[..., None]  # (13, rows, 1)
        faded_mean, faded_square, kept, left, own, *drifts = columns
        paced, one = (mean * rate.to(weight.dtype), 1.0) if isinstance(rate, Tensor) else (mean, rate)
        spread = root(square)

        def drift(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
            """m (a R + b ε) and v + c ε R + d ε²: what is divided, and by what."""
            full = b.expand_as(spread).clone(memory_format=torch.contiguous_format)  # with b as it is, twice the time
            return full.addcmul_(spread, a).mul_(paced), torch.addcmul(square, spread, c).add_(d)

        if average is not None:
            if self.curves.shrink:
                average.mul_(left).addcmul_(weight, own)
            else:
                average.lerp_(weight, own)  # P + B = 1
            average.addcdiv_(*drift(*drifts[4:]), value=-one)
        if self.curves.shrink:
            weight.mul_(kept)
        weight.addcdiv_(*drift(*drifts[:4]), value=-one)
        mean.mul_(faded_mean)
        square.mul_(faded_square)

    def _step_through(self, moved: Moved, since: Tensor, now: int, rate: Rate) -> Tensor:
        """Make the early steps of rows with a small v one by one, in place; the step that each row belongs to then."""
        weight, mean, square, average = moved
        rows = (((square > 0) & (square < SMALL**2)).any(dim=1) & (since < EARLY)).nonzero()[:, 0]
        if len(rows) == 0:
            return since
        for k in range(int(since[rows].min()) + 1, min(now, EARLY) + 1):
            idle = rows[since[rows] < k]
            own = rate[idle] if isinstance(rate, Tensor) else rate
            some = Moved(weight[idle], mean[idle], square[idle], None if average is None else average[idle])
            self.step(some, torch.zeros_like(some.weight), step=k, rate=own, shrink=self.curves.shrink)
            for part, new in zip(moved, some, strict=True):
                if part is not None and new is not None:
                    part[idle] = new
        return since.index_fill(0, rows, min(now, EARLY)).maximum(since)


def root(square: Tensor) -> Tensor:
    """The root of what is a part of each row, which is copied first: its own root would be slower."""
    return square.clone(memory_format=torch.contiguous_format).sqrt_()

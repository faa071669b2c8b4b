"""How the learning rate changes over a training."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

ScheduleName = Literal["constant", "linear", "cosine", "plateau"]
PLATEAU_DROP = 0.1  # the factor of a drop


def factors(name: ScheduleName, *, total_steps: int, warmup_steps: int = 0) -> NDArray[np.float64]:
    """What the learning rate is multiplied with at each step: (steps,), and the last one from there on.

    ::

        warm-up:   k / warmup_steps at step k
        linear:    1 - i / n                    i = 0 … n - 1, the n steps after the warm-up
        cosine:    (1 + cos(π i / n)) / 2

    ``constant`` and ``plateau`` stay at 1 after the warm-up; a plateau's drops come on top of it.

    Example:
        >>> factors("linear", total_steps=6, warmup_steps=2).tolist()
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup = np.arange(1, warmup_steps + 1) / max(warmup_steps, 1)
    if name in ("constant", "plateau"):
        return np.append(warmup, 1.0)
    passed = np.arange(max(total_steps - warmup_steps, 1)) / max(total_steps - warmup_steps, 1)
    return np.append(warmup, 1 - passed if name == "linear" else (1 + np.cos(np.pi * passed)) / 2)

"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections import defaultdict

PARTS = {
    "load": "waiting for the next batch",
    "gather": "embedding rows into x0",
    "forward": "from x0 to the loss",
    "backward": "gradients",
    "update": "clip and Adam",
    "average": "moving average",
    "step": "the captured step on a GPU, all of the above in one",
    "log": "metrics and evaluation",
}


class StepClock:
    """Gives each stretch of time to the part that it ends with; a step ends with "log".

    The first step is left out: it shuffles the rows and loads what later ones find loaded.

    >>> clock = StepClock()
    >>> clock.mark("load")
    >>> list(clock.seconds)
    ['load']
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.steps = -1
        self._last = time.perf_counter()

    def mark(self, part: str) -> None:
        """The time since the last mark was spent on this part."""
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self._last = now
        if part == "log":
            self.steps += 1
            if self.steps == 0:
                self.seconds.clear()

    def rows(self) -> list[tuple[str, str, float, float]]:
        """(part, meaning, milliseconds a step, share) of each part, in the order of a step."""
        total = sum(self.seconds.values())
        return [
            (part, about, 1000 * self.seconds[part] / max(self.steps, 1), self.seconds[part] / total)
            for part, about in PARTS.items()
            if part in self.seconds
        ]


class NoClock(StepClock):
    """Measures nothing."""

    def mark(self, part: str) -> None:
        pass

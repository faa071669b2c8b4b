"""How a training goes: the losses since the last look, and a bar that a person sees on a terminal."""

from __future__ import annotations

import sys
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor


class Window:
    """The losses since the last line of the journal."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.restart()

    def restart(self) -> None:
        self.rows, self.started, self.steps = 0, time.perf_counter(), 0
        self.good: Tensor | None = None
        if self.total is not None:
            self.total.zero_()

    def add(self, losses: Tensor, rows: int) -> None:
        self.total = torch.zeros_like(losses) if self.total is None else self.total
        self.total.add_(losses, alpha=rows)
        self.rows += rows
        self.steps += 1
        if losses.device.type == "cpu":  # elsewhere another small kernel at each step would cost more than it tells
            finite = torch.isfinite(self.total)
            self.good = finite.long() if self.good is None else self.good.add_(finite)

    def means(self) -> list[float]:
        """Of each model; waits for the device."""
        return [] if self.total is None else (self.total / self.rows).tolist()

    def first_bad(self, place: int, step: int) -> int:
        """The step, up to the last one taken, whose loss was the first of a model not to be finite, as far as known."""
        return step if self.good is None else min(step - self.steps + int(self.good[place]) + 1, step)


class TrainingBar:
    """A bar with the loss, the rows per second and the time left, on standard error.

    Args:
        total: how many steps there will be at most.
        start: how many were made before.
        label: what stands before the bar.
        show: ``None`` shows it on a terminal only.
    """

    def __init__(self, *, total: int, label: str, start: int = 0, show: bool | None = None) -> None:
        visible = sys.stderr.isatty() if show is None else show
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f} {task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not visible,
            transient=True,
        )
        self.task = self.progress.add_task(label, total=total, completed=start, note="")
        self.shown, self.visible = 0.0, visible

    def advance(self, step: int) -> None:
        """Show how many steps were made, ten times a second at most."""
        if self.visible and (now := time.monotonic()) > self.shown + 0.1:
            self.progress.update(self.task, completed=step)
            self.shown = now

    def note(self, text: str) -> None:
        self.progress.update(self.task, note=text)

    def __enter__(self) -> TrainingBar:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

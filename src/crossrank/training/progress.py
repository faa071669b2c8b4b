"""What a person sees while a model trains: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

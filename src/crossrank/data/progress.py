"""A progress bar on stderr: rows, rows per second, time left; nothing where stderr is not a terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Phases:
    """One bar per named phase.

    Args:
        shown: False to show nothing even on a terminal.
    """

    def __init__(self, *, shown: bool) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[rows]:,} rows, {task.fields[speed]:,}/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
        )

    def __enter__(self) -> Phases:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def start(self, name: str) -> None:
        """Begin a phase."""
        self._rows = 0
        self._task = self._progress.add_task(name, total=1.0, rows=0, speed=0)

    def add(self, rows: int, share_done: float) -> None:
        """The running phase has done so many more rows, and all in all this share of its work."""
        self._rows += rows
        elapsed = self._progress.tasks[self._task].elapsed or 0.0
        speed = round(self._rows / elapsed) if elapsed else 0
        self._progress.update(self._task, completed=share_done, rows=self._rows, speed=speed)

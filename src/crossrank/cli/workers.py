"""A training in several processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import typer

from crossrank.cli.app import interruptible, out, say, talk


def train_with_workers(workers: int, *, into: Path, how: Callable[[], str]) -> None:
    """Run the command that was typed in several processes; ``how`` tells how to go on after Ctrl-C."""
    from crossrank.training.distributed.launch import run_workers

    words = list(sys.argv[1:])
    at = next(i for i, word in enumerate(words) if word.partition("=")[0] == "--workers")
    del words[at : at + (1 if "=" in words[at] else 2)]
    with interruptible(how):
        status = run_workers([*words, "--set", "training.distributed=true"], workers=workers, into=into)
    if status:
        raise typer.Exit(status)


def on_ray(workers: int) -> Callable[..., Any]:
    """The function that trains on a cluster."""
    from crossrank.training.distributed.on_ray import train_on_ray

    say(f"training on Ray, {workers} workers; the lines of metrics.jsonl in the run's .partial folder tell how it goes")
    return partial(train_on_ray, workers=workers)


def let_the_first_talk() -> None:
    """In all processes but the first, print nothing."""
    if os.environ.get("RANK", "0") != "0":
        out.quiet = talk.quiet = True

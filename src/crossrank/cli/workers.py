"""A training in several processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import typer

from crossrank.cli.app import interruptible, out, talk


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


def let_the_first_talk() -> None:
    """In all processes but the first, print nothing."""
    if os.environ.get("RANK", "0") != "0":
        out.quiet = talk.quiet = True

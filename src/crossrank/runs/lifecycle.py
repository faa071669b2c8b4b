"""A run folder from its first file to its name: absent, unfinished under another name, a run."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crossrank.errors import RunError
from crossrank.files import fresh_partial, partial_of, publish, read_json, writing

PLAN = "plan.json"  # what an unfinished training was asked for
CHECKPOINT = "checkpoint"


def is_run(path: Path) -> bool:
    """Whether a folder is a finished run."""
    return (path / "run.json").is_file()


def has_checkpoint(folder: Path) -> bool:
    return (folder / CHECKPOINT / "position.json").is_file()


def is_interrupted(into: Path) -> bool:
    """Whether the training of a run folder can be resumed."""
    partial = partial_of(into)
    return has_checkpoint(partial) and (partial / PLAN).is_file()  # without its plan, it died while finishing


def plan_in(into: Path) -> dict[str, Any] | None:
    """What the run in a folder was asked for, be it finished or interrupted; None where there is no run."""
    if is_run(into):
        return {**read_json(into / "run.json"), "config": read_json(into / "config.json")}
    return dict(read_json(partial_of(into) / PLAN)) if is_interrupted(into) else None


def claim(into: Path, *, resume: bool, overwrite: bool) -> Path:
    """The folder to work in, or an error where that would lose somebody's work."""
    partial = partial_of(into)
    if into.exists() and not overwrite:
        hint = "Choose another name, or pass --overwrite to replace it."
        raise RunError(f"The run folder {into} must not exist yet; it does.", hint=hint)
    if into.exists() and not is_run(into):
        raise RunError(f"{into} is not a run folder, so it will not be replaced.", hint="Choose another name.")
    if resume and not has_checkpoint(partial):
        raise RunError(f"There is nothing to resume: {partial} has no checkpoint.", hint="Train without --resume.")
    if has_checkpoint(partial) and not resume and not overwrite:
        hint = "Pass --resume to go on with it, or --overwrite to start anew."
        raise RunError(f"{partial} holds an unfinished training.", hint=hint)
    if resume:
        return partial
    with writing(into, RunError):
        return fresh_partial(into)


@contextlib.contextmanager
def making(into: Path, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """The folder to work in, which has its name in the end; where that is not reached, it is kept to be resumed."""
    partial = claim(into, resume=resume, overwrite=overwrite)
    try:
        with writing(into, RunError):
            yield partial
            publish(partial, into)
    except BaseException:
        if not has_checkpoint(partial):
            shutil.rmtree(partial, ignore_errors=True)
        raise

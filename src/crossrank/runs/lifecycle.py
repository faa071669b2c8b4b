"""A run folder from its first file to its name: absent, unfinished under another name, a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crossrank.errors import RunError
from crossrank.files import is_as_written, read_json, writing
from crossrank.folders import (
    MARK,
    PLAN,
    check_replaceable,
    delete,
    fresh_partial,
    has_checkpoint,
    is_marked,
    locked,
    partial_of,
    publish,
    recover,
    remove,
)
from crossrank.runs import written


def is_run(path: Path) -> bool:
    """Whether a folder is a finished run."""
    return is_complete(path) and not is_marked(path)


def is_complete(folder: Path) -> bool:
    """Whether a run lacks nothing but, perhaps, its name."""
    return (folder / "run.json").is_file()


def is_interrupted(into: Path) -> bool:
    """Whether the training of a run folder can be resumed."""
    partial = partial_of(into)
    return has_checkpoint(partial) and (partial / PLAN).is_file()


def plan_in(into: Path) -> dict[str, Any] | None:
    """What the run in a folder was asked for, be it finished or interrupted; None where there is no run."""
    recover(into)
    if is_run(into):
        info, config = read_json(into / "run.json", written.Info), read_json(into / "config.json", written.Settings)
        return {**info, "config": config}
    return read_plan(partial_of(into)) if is_interrupted(into) else None


def read_plan(folder: Path) -> dict[str, Any]:
    """What an unfinished training was asked for."""
    hint = "Train anew with --overwrite."
    if not is_as_written(read_json(folder / PLAN, dict[str, Any], hint=hint)):
        raise RunError(f"{folder} is damaged: {PLAN} is not what was written.", hint=hint)
    plan: dict[str, Any] = read_json(folder / PLAN, written.Plan, hint=hint)
    return plan


def check_free(into: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse what would lose somebody's work, and to resume where there is nothing."""
    partial = partial_of(into)
    check_replaceable(into, "run folder", RunError, overwrite=overwrite, is_one=is_run)
    if resume and not is_interrupted(into):
        raise RunError(f"There is nothing to resume: {partial} has no checkpoint.", hint="Train without --resume.")
    if is_interrupted(into) and not resume and not overwrite:
        hint = "Pass --resume to `crossrank train` to go on with it, or --overwrite to start anew."
        raise RunError(f"{partial} holds an unfinished training.", hint=hint)


def claim(into: Path, *, resume: bool, overwrite: bool) -> Path:
    """The folder to work in, under a lock, or an error where that would lose somebody's work."""
    check_free(into, resume=resume, overwrite=overwrite)
    partial = partial_of(into)
    if is_interrupted(into):
        (partial / MARK).touch()  # older versions had none
    if not resume:
        return fresh_partial(into, RunError)
    for folder in (partial, partial / "encoder"):
        for leftover in folder.glob(".*"):  # of files that were being written
            if leftover.name != MARK:
                delete(leftover)
    return partial


@contextlib.contextmanager
def making_run(into: Path, *, resume: bool, overwrite: bool) -> Iterator[Path]:
    """The folder to work in, which has its name in the end; where that is not reached, it is kept to be resumed."""
    with writing(into, RunError), locked(into, RunError):
        partial = claim(into, resume=resume, overwrite=overwrite)
        try:
            yield partial
            publish(partial, into)
        except BaseException:
            if not has_checkpoint(partial):
                remove(partial)
            raise

"""Runs that are held in memory, as an estimator that is copied or sent elsewhere needs them."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from crossrank.runs.run import Run


def temporary(make: Callable[[Path], Run]) -> Run:
    """A run in a folder that goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="crossrank-"))
    try:
        run = make(folder / "run")
    except BaseException:
        shutil.rmtree(folder)
        raise
    weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    run.model.double()  # in float32 the last digits of a row's answer depend on how many rows stand beside it
    return run


def pack(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder."""
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def unpack(files: Mapping[str, bytes], folder: Path) -> Run:
    """The run that :func:`pack` took in, in a folder again."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return Run.open(folder)

"""Files and folders that are complete or absent."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from crossrank.errors import ConfigError, CrossRankError, RunError
from crossrank.shapes import checked

DAMAGED = "It is damaged: copy it again, or make it anew."


def write_json(path: Path, value: Any) -> None:
    """Write JSON under a temporary name and rename it, so that readers see the old file or the new one."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    temporary.unlink(missing_ok=True)
    with temporary.open("x", encoding="utf-8") as file:  # a new one, lest a link lead elsewhere
        file.write(text)
    temporary.replace(path)


def read_json(path: Path, shape: Any = Any, *, error: type[CrossRankError] = RunError, hint: str = DAMAGED) -> Any:
    """The content of a JSON file, which has a shape (:mod:`crossrank.shapes`), or an error that names the file."""
    with _reading(path, error, hint):
        return checked(shape, json.loads(path.read_text(encoding="utf-8")))


def read_json_lines(path: Path, shape: Any = Any) -> list[Any]:
    """The same of a file with a value in each line."""
    with _reading(path, RunError, DAMAGED):
        lines = path.read_text(encoding="utf-8").splitlines()
        return [checked(shape, json.loads(line), f"line {number}") for number, line in enumerate(lines, 1)]


@contextlib.contextmanager
def _reading(path: Path, error: type[CrossRankError], hint: str) -> Iterator[None]:
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is not a file")  # but a folder, or a device, whose end may never come
        yield
    except ConfigError as problem:
        raise error(f"{path} is not what it must be: {problem.message}", hint=hint) from None
    except (OSError, ValueError, RecursionError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else problem
        raise error(f"{path} must be readable JSON; got: {reason}.", hint=hint) from None


def partial_of(folder: Path) -> Path:
    """What a folder is called until it is complete."""
    return folder.with_name(f"{folder.name}.partial")


def fresh_partial(folder: Path) -> Path:
    """An empty folder to fill and then to :func:`publish`; what an earlier start left behind is removed."""
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def publish(partial: Path, target: Path) -> None:
    """Give a finished folder its name; an older folder of that name goes only once the new one stands."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def checksum(path: Path) -> str:
    """The BLAKE2 checksum of a file's bytes."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))  # but a device, whose end may never come
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def damage(folder: Path, checksums: Mapping[str, str]) -> str | None:
    """What happened to the first file that is not as it was written, if there is one."""
    for name, expected in checksums.items():
        file = folder / name
        if not file.is_file() or checksum(file) != expected:
            return f"{name} {'is not what was written' if file.is_file() else 'is missing'}"
    return None


@contextlib.contextmanager
def writing(place: Path, error: type[CrossRankError]) -> Iterator[None]:
    """Turn what the operating system says about writing into an error with a remedy."""
    try:
        yield
    except OSError as problem:
        hints = {
            errno.ENOSPC: "The disk is full: free some space and run it again.",
            errno.EACCES: "Check who may write there, or choose another folder.",
            errno.EROFS: "That disk is read-only: choose another folder.",
            errno.ENOTDIR: "A file stands where a folder is needed: choose another name.",
        }
        text = os.strerror(problem.errno) if problem.errno else str(problem)
        hint = hints.get(problem.errno or 0, "Check the path, or choose another folder.")
        raise error(f"{place} must be writable; got: {text}.", hint=hint) from problem

"""Files that are complete or absent, and as they were written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from crossrank.errors import ConfigError, CrossRankError, RunError
from crossrank.shapes import checked

DAMAGED = "It is damaged: copy it again, or make it anew."

Read = TypeVar("Read")


def write_json(path: Path, value: Any) -> None:
    """Write JSON under a temporary name and rename it, so that readers see the old file or the new one."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)  # of a killed command; the new one must be new, lest a link lead elsewhere
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_of(path: Path) -> Path:
    """What a file is called until it is complete."""
    return path.with_name(f".{path.name}.crossrank-partial")


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


def write_tensors(path: Path, save: Callable[[Any, Path], None], tensors: Any) -> None:
    """Save tensors with the rights that new files have; safetensors alone would let nobody else read them."""
    path.touch()
    rights = path.stat().st_mode
    save(tensors, path)
    path.chmod(rights)


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of itself, which :func:`is_as_written` compares."""
    rest = _unsigned(content)
    return {**rest, "checksum": checksum_of(rest)}


def is_as_written(content: Mapping[str, Any]) -> bool:
    """Whether a JSON object is what was signed; those of older versions were not.

    >>> is_as_written(signed({"rows": 7})), is_as_written(signed({"rows": 7}) | {"rows": 8})
    (True, False)
    """
    return "checksum" not in content or content["checksum"] == checksum_of(_unsigned(content))


def _unsigned(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != "checksum"}


def checksum_of(content: Any) -> str:
    """The BLAKE2 checksum of what can be written as JSON."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


def checksum(path: Path) -> str:
    """The BLAKE2 checksum of a file's bytes."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", str(path))  # but a device, whose end may never come
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


class Contents:
    """The files of a folder as they were when it was opened: what is read later is the same, or refused.

    Args:
        folder: the folder.
        checksums: of its files, by name.
        error: of the kind of folder.
        hint: what to do where it is damaged.
    """

    def __init__(self, folder: Path, checksums: Mapping[str, str], error: type[CrossRankError], *, hint: str) -> None:
        self.folder, self.checksums, self.error, self.hint = folder, checksums, error, hint
        self._stamps = {name: stamp(folder / name) for name in checksums}

    def verify(self) -> None:
        """Compare the checksum of every file with the one that was written; the error names the first that differs."""
        for name, expected in self.checksums.items():
            file = self.folder / name
            try:
                found = checksum(file)
            except FileNotFoundError:
                raise self.error(f"{self.folder} is damaged: {name} is missing.", hint=self.hint) from None
            except OSError as problem:
                raise self.error(f"{file} must be readable; got: {problem.strerror}.", hint=self.hint) from None
            if found != expected:
                raise self.error(f"{self.folder} is damaged: {name} is not what was written.", hint=self.hint)

    def read_json(self, name: str, shape: Any = Any) -> Any:
        """The content of a JSON file, as :func:`read_json` has it."""
        return self.read(name, lambda file: read_json(file, shape, error=self.error, hint=self.hint))

    def read(self, name: str, read: Callable[[Path], Read]) -> Read:
        """What a function reads of a file, or of a folder of files, if it is still the one that was there."""
        value = read(self.folder / name)
        for one in (one for one in self._stamps if one == name or one.startswith(f"{name}/")):
            if stamp(self.folder / one) != self._stamps[one]:
                raise self.error(
                    f"{self.folder} must be the one that was opened; {one} was replaced since.", hint="Open it again."
                )
        return value


def stamp(path: Path) -> tuple[int, ...] | None:
    """What changes when another file takes a file's name, or it is written to; None where there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


@contextlib.contextmanager
def writing(place: Path, error: type[CrossRankError]) -> Iterator[None]:
    """Turn what the operating system says about writing into an error with a remedy."""
    try:
        yield
    except CrossRankError:
        raise
    except Exception as problem:  # libraries have errors of their own that quote the system's
        quoted = re.search(r"\(os error (\d+)\)", str(problem))
        number = problem.errno if isinstance(problem, OSError) else int(quoted[1]) if quoted else None
        if number is None and not isinstance(problem, OSError):
            raise
        hints = {
            errno.ENOSPC: "The disk is full: free some space and run it again.",
            errno.EDQUOT: "Your share of the disk is used up: free some space and run it again.",
            errno.EACCES: "Check who may write there, or choose another folder.",
            errno.EROFS: "That disk is read-only: choose another folder.",
            errno.ENOTDIR: "A file stands where a folder is needed: choose another name.",
        }
        text = os.strerror(number) if number else str(problem)
        hint = hints.get(number or 0, "Check the path, or choose another folder.")
        raise error(f"{place} must be writable; got: {text}.", hint=hint) from problem

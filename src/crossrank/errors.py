"""Every error that crossrank raises on purpose.

A message reads ``<contract>; got <evidence>.`` and the hint says what to do next. The command line prints the message
on one line and the hint on another; in Python both stand in ``str(error)``.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any


class CrossRankError(Exception):
    """The parent of all errors below.

    >>> print(ConfigError("rank must be positive; got rank=0.", hint="Try rank=16."))
    rank must be positive; got rank=0. Try rank=16.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message} {hint}" if hint else message)
        self.message = message
        self.hint = hint


class ConfigError(CrossRankError):
    """A setting is unknown, of the wrong type, or outside its range."""


class SchemaError(CrossRankError):
    """A schema contradicts itself or does not fit the table."""


class DataError(CrossRankError):
    """A table or an encoded dataset holds something it must not hold."""


class ShapeError(CrossRankError):
    """A tensor does not have the shape a layer was built for."""


class RunError(CrossRankError):
    """A run folder is missing, incomplete, from another format version, or in the way."""


class BundleError(CrossRankError):
    """An exported model is missing, damaged or in the way, or does not answer as its run does."""


class ServerError(CrossRankError):
    """A server refuses a request, or cannot be reached; ``status`` is its answer's, 0 where there is none."""

    def __init__(self, message: str, *, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class MissingExtraError(CrossRankError):
    """An optional package is needed and not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the '{extra}' extra; it is not installed.", hint=f"Run: pip install 'crossrank[{extra}]'"
        )


def needed(module: str, purpose: str, extra: str) -> Any:
    """A module of an optional package.

    Raises:
        MissingExtraError: where it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(purpose, extra) from None


def listing(names: Iterable[str], *, most: int = 6) -> str:
    """Quoted names for an error message, cut after a few.

    >>> listing(["a", "b", "c"], most=2)
    "'a', 'b' and 1 more"
    """
    quoted = [f"'{name}'" for name in names]
    if len(quoted) > most:
        return f"{', '.join(quoted[:most])} and {len(quoted) - most} more"
    return ", ".join(quoted) if quoted else "none"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the nearest known name, or nothing.

    >>> did_you_mean("device_tpye", ["device_type", "hour"])
    "Did you mean 'device_type'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"Did you mean '{near[0]}'?" if near else ""


def first_line(error: BaseException) -> str:
    """Of what an error says, or its name where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")


@contextlib.contextmanager
def quietly(level: int = logging.WARNING) -> Iterator[None]:
    """Without what libraries tell their developers, up to a level."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

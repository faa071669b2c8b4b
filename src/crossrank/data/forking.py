"""Polars after a fork: its threads stay behind with the parent, and whatever waits for them would wait for ever."""

from __future__ import annotations

import os

from crossrank.errors import DataError

_state = {"used": False, "left behind": False}


def use_polars() -> None:
    """Called before polars works.

    Raises:
        DataError: in a process that was forked from one in which it had worked.
    """
    if _state["left behind"]:
        raise DataError(
            "A process that reads tables must not be forked from one that has read some; this one is.",
            hint='Start it anew instead: multiprocessing.get_context("spawn").',
        )
    _state["used"] = True


def _forked() -> None:
    _state["left behind"] |= _state["used"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

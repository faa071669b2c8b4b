"""Work on many columns at once: polars and numpy let other threads run while they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
WORTH_A_THREAD = 4096


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="crossrank-columns")


def for_each(items: Iterable[T], work: Callable[[T], R], *, num_rows: int) -> list[R]:
    """``work(item)`` of each item, in order; in threads where there are enough rows.

    >>> for_each([1, 2], lambda number: number * 10, num_rows=5)
    [10, 20]
    """
    return [work(item) for item in items] if num_rows < WORTH_A_THREAD else list(_pool().map(work, items))

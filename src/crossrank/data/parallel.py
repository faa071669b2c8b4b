"""Work on many columns at once: polars and numpy let other threads run while they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")
WORTH_A_THREAD = 4096
NUM_THREADS = os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="crossrank-columns")


def for_each(items: Iterable[T], work: Callable[[T], R], *, num_rows: int) -> list[R]:
    """``work(item)`` of each item, in order; in threads where there are enough rows.

    Where several fail, the error of the first is raised. Each thread takes item after item by itself: handing them out
    one by one would cost as much as some of them.

    >>> for_each([1, 2], lambda number: number * 10, num_rows=5)
    [10, 20]
    """
    if num_rows < WORTH_A_THREAD:
        return [work(item) for item in items]
    waiting = enumerate(items)
    done: dict[int, R] = {}
    failed: dict[int, BaseException] = {}

    def take_items() -> None:
        for position, item in waiting:
            try:
                done[position] = work(item)
            except BaseException as error:
                failed[position] = error
                break

    wait([_pool().submit(take_items) for _ in range(NUM_THREADS)])
    if failed:
        raise failed[min(failed)]
    return [done[position] for position in range(len(done))]

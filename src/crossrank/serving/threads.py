"""Parts of one ranking side by side, in threads that sleep between requests.

As many work as torch may use threads, each without any of torch's own: those spin after a product and before the next,
and are waited for wherever they are, on a busy machine longer than they help. Here the caller makes each part that no
other thread has begun, so that it waits for nothing but what is being made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")
READ = 8  # multiply-adds that take as long as a number of a long table
SMALL = 2**24  # multiply-adds that take no longer in one thread than threads take to meet


@contextmanager
def threads_for(count: int) -> Iterator[None]:
    """Torch's threads, or none but the caller's for so few multiply-adds. What other threads use stays."""
    threads = torch.get_num_threads()
    if threads == 1 or count > SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def parts_for(work: int) -> int:
    """In how many parts so many multiply-adds are divided."""
    return max(1, min(torch.get_num_threads(), work // SMALL))


def side_by_side(calls: Sequence[Callable[[], T]], work: int) -> list[T]:
    """What each of some calls finds, which are of so many multiply-adds together; few are made as torch makes them."""
    if len(calls) == 1 or parts_for(work) == 1:
        return [call() for call in calls]
    first, *others = calls
    begun = [_pool(torch.get_num_threads() - 1).submit(_alone, call) for call in others]
    found = [_alone(first)]
    left = [_alone(call) if one.cancel() else one for call, one in zip(others, begun, strict=True)]
    return found + [one.result() if isinstance(one, Future) else one for one in left]


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="crossrank")


def _alone(call: Callable[[], T]) -> T:
    with torch.inference_mode(), threads_for(0):
        return call()

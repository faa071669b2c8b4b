"""Parts of one ranking side by side, in threads that sleep between requests.

As many threads work as torch may use, each in no others but itself. Torch's own spin after each product, and are waited
for wherever they are: on a busy machine longer than they help. Here whoever asks for a part that no thread has begun
makes it, so that a ranking waits for nothing but what is being made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
ENOUGH = 2**21  # multiply-adds that take longer than a thread takes to wake up
SMALL = 2**24  # multiply-adds that take no longer in one thread than torch's take to meet on a busy machine


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


class Begun(Generic[T]):
    """A call that another thread makes, or, where none has begun it yet, the one that asks for what it finds.

    Args:
        call: in inference mode, and without torch's threads.
        work: its multiply-adds; few are left to the one that asks, with what torch makes of them.
    """

    def __init__(self, call: Callable[[], T], work: int) -> None:
        threads, self._call = torch.get_num_threads(), call
        self._future: Future[T] | None = None
        self._found: list[T] = []  # by the one that asks first
        self._lock = Lock()
        if threads > 1 and work >= ENOUGH:
            self._future = _pool(threads - 1).submit(_alone, call)

    def take(self) -> None:
        """Make the call here unless a thread has begun it."""
        with self._lock:
            if not self._found and self._future is None:
                self._found = [self._call()]
            elif not self._found and self._future is not None and self._future.cancel():
                self._found = [_alone(self._call)]

    def result(self) -> T:
        self.take()
        return self._found[0] if self._found or self._future is None else self._future.result()


def side_by_side(calls: Sequence[Callable[[], T]], work: int) -> list[T]:
    """What each of some calls finds, which are of so many multiply-adds together."""
    if len(calls) == 1 or parts_for(work) == 1:
        return [call() for call in calls]
    begun = [Begun(call, work) for call in calls[1:]]
    first = _alone(calls[0])
    for one in begun:
        one.take()
    return [first, *(one.result() for one in begun)]


def parts_for(work: int) -> int:
    """In how many parts so many multiply-adds are divided."""
    return max(1, min(torch.get_num_threads(), work // ENOUGH))


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="crossrank")


def _alone(call: Callable[[], T]) -> T:
    with torch.inference_mode(), threads_for(0):
        return call()

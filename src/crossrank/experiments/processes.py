"""Work that is spread over processes, on one thread each: the same sums whatever else runs at the same time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Thread
from typing import Any, TypeAlias

import torch

from crossrank.ray import EngineName, cluster

Map: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


@contextmanager
def workers(jobs: int | None = None, engine: EngineName = "local") -> Iterator[Map]:
    """A map over as many processes, one for each core where left out; for one job the plain map of this process.

    On Ray there are as many as the cluster has processors.
    """
    if engine == "ray":
        with cluster() as tasks:
            yield lambda work, items: tasks.map(_on_one_thread, [(work, item) for item in items])
        return
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        with torch_threads(1):
            yield map
        return
    with ProcessPoolExecutor(jobs, _Spawn(), initializer=_begin) as pool:
        try:
            yield pool.map
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _on_one_thread(job: tuple[Callable[[Any], Any], Any]) -> Any:
    work, item = job
    with torch_threads(1):
        return work(item)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Inside, torch works on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Worker(SpawnProcess):
    """A process that hears no Ctrl-C before it can end without a word."""

    def start(self) -> None:
        if not hasattr(signal, "pthread_sigmask"):
            return super().start()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # which it inherits
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Spawn(SpawnContext):
    Process = _Worker


def _begin() -> None:
    """A worker ends with its parent, lest it go on writing where the next call has begun, and silently on Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def wait() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    torch.set_num_threads(1)
    Thread(target=wait, daemon=True).start()

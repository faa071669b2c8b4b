"""Rows of many requests scored together.

A request waits until the loop has read what else has arrived, or for ``max_wait`` seconds in all; then up to
``max_batch`` waiting rows are scored in one pass, in the order in which they came. A request with more rows is scored
piece by piece, and others come in between. While a pass runs the next requests gather in the sockets, so batches grow
with the load by themselves. What would make more than ``queue`` rows wait is refused at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from crossrank.serving.http.served import Row, Scores, Served


class BusyError(Exception):
    """More rows are waiting than may."""


class Answer(Protocol):
    """Who is told the scores: a future, or a connection."""

    def done(self) -> bool: ...
    def set_result(self, scores: Scores, /) -> None: ...
    def set_exception(self, error: Exception, /) -> None: ...


class Job(NamedTuple):
    model: Served
    rows: Sequence[Row]
    answer: Answer
    until: float


class Batcher:
    """Gathers jobs and answers them; belongs to one event loop.

    Args:
        max_batch: rows of a pass.
        max_wait: seconds that the first of a batch waits for others.
        queue: rows that may wait.
        seconds: that a request may take in all.
        watch: called after each pass with the model, its rows, their scores and the unseen values.
    """

    def __init__(
        self,
        *,
        max_batch: int,
        max_wait: float,
        queue: int,
        seconds: float = 10.0,
        watch: Callable[[Served, Sequence[Row], Scores, dict[str, int]], None] = lambda *_: None,
    ) -> None:
        self.max_batch, self.max_wait, self.queue, self.seconds = max_batch, max_wait, queue, seconds
        self.watch = watch
        self.waiting = 0
        self._jobs: deque[Job] = deque()
        self._next: asyncio.Handle | None = None

    async def score(self, model: Served, rows: Sequence[Row]) -> Scores:
        """The scores of rows, in their order.

        Raises:
            BusyError: where too many rows are waiting already.
            TimeoutError: where its turn came too late.
        """
        self.check_room(len(rows))
        pieces = [rows[start : start + self.max_batch] for start in range(0, len(rows), self.max_batch)] or [rows]
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        scores = []
        for piece in pieces:
            answer: asyncio.Future[Scores] = loop.create_future()
            self.submit(Job(model, piece, answer, until))
            scores.append(await answer)
        return scores[0] if len(scores) == 1 else np.concatenate(scores)

    def check_room(self, num_rows: int) -> None:
        """BusyError where too many rows are waiting already."""
        if self.waiting and self.waiting + min(num_rows, self.max_batch) > self.queue:
            raise BusyError

    def submit(self, job: Job) -> None:
        """Let a job of at most ``max_batch`` rows wait for its pass."""
        loop = asyncio.get_running_loop()
        self._jobs.append(job)
        self.waiting += len(job.rows)
        if self.max_wait and self.waiting >= self.max_batch and self._next is not None:
            self._next.cancel()
            self._next = loop.call_soon(self._pass)
        elif self._next is None:
            self._next = loop.call_later(self.max_wait, self._pass) if self.max_wait else loop.call_soon(self._pass)

    def _pass(self) -> None:
        jobs: list[Job] = []
        self._next, room, now = None, self.max_batch, asyncio.get_running_loop().time()
        while self._jobs and len(self._jobs[0].rows) <= room and (not jobs or self._jobs[0].model is jobs[0].model):
            job = self._jobs.popleft()
            self.waiting -= len(job.rows)
            if job.answer.done():  # its client has gone
                continue
            if job.until < now:
                job.answer.set_exception(TimeoutError())
            else:
                room -= len(job.rows)
                jobs.append(job)
        if self._jobs:
            self._next = asyncio.get_running_loop().call_soon(self._pass)
        if jobs:
            self._answer(jobs)

    def _answer(self, jobs: Sequence[Job]) -> None:
        """One pass for all; where a row of them cannot be scored, one for each, so that only its own request fails."""
        model, rows = jobs[0].model, [row for job in jobs for row in job.rows]
        try:
            scores, unseen = model.score(rows)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
            else:
                for job in jobs:
                    self._answer([job])
            return
        start = 0
        for job in jobs:
            job.answer.set_result(scores[start : start + len(job.rows)])
            start += len(job.rows)
        self.watch(model, rows, scores, unseen)

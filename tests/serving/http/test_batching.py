"""Rows of many requests scored together."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from crossrank.errors import DataError
from crossrank.serving.http.batching import Batcher, BusyError


class Doubling:
    """A model that doubles numbers and remembers its passes."""

    def __init__(self) -> None:
        self.passes: list[int] = []

    def score(self, rows):
        self.passes.append(len(rows))
        if any(row["x"] < 0 for row in rows):
            raise DataError("x must not be below 0.")
        return np.array([2 * row["x"] for row in rows], np.float32), {}


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"x": value} for value in values]


def test_requests_that_are_there_together_are_scored_in_one_pass() -> None:
    model, seen = Doubling(), []

    async def ask():
        batcher = Batcher(max_batch=64, max_wait=0, queue=100, watch=lambda *facts: seen.append(facts))
        return await asyncio.gather(*(batcher.score(model, numbers(i, i + 100)) for i in range(20)))

    answers = asyncio.run(ask())
    assert [answer.tolist() for answer in answers] == [[2 * i, 2 * i + 200] for i in range(20)]
    assert model.passes == [40] and len(seen) == 1


def test_a_pass_has_at_most_max_batch_rows_and_one_model() -> None:
    one, other = Doubling(), Doubling()

    async def ask():
        batcher = Batcher(max_batch=8, max_wait=0, queue=1000)
        jobs = [batcher.score(model, numbers(*range(3))) for model in (one, one, one, other, one)]
        return await asyncio.gather(*jobs, batcher.score(other, numbers(*range(20))))

    answers = asyncio.run(ask())
    assert answers[-1].tolist() == [2 * i for i in range(20)]
    assert one.passes == [6, 3, 3]
    assert other.passes == [3, 8, 8, 4]


def test_a_request_waits_for_others_no_longer_than_it_may() -> None:
    model = Doubling()

    async def ask():
        batcher = Batcher(max_batch=4, max_wait=0.05, queue=100)
        late = asyncio.create_task(batcher.score(model, numbers(1)))
        await asyncio.sleep(0.005)
        await asyncio.gather(late, batcher.score(model, numbers(2)))
        start = asyncio.get_running_loop().time()
        await asyncio.gather(*(batcher.score(model, numbers(i)) for i in range(4)))  # full: nothing to wait for
        return asyncio.get_running_loop().time() - start

    assert asyncio.run(ask()) < 0.04
    assert model.passes == [2, 4]


def test_a_bad_row_fails_its_own_request_alone() -> None:
    model = Doubling()

    async def ask():
        batcher = Batcher(max_batch=64, max_wait=0, queue=100)
        jobs = (batcher.score(model, numbers(value)) for value in (1, -1, 2))
        return await asyncio.gather(*jobs, return_exceptions=True)

    first, bad, last = asyncio.run(ask())
    assert (first.tolist(), last.tolist()) == ([2], [4])
    assert isinstance(bad, DataError)


def test_what_would_make_too_many_rows_wait_is_refused_and_what_was_accepted_is_answered() -> None:
    model = Doubling()

    async def ask():
        batcher = Batcher(max_batch=4, max_wait=0, queue=10)
        jobs = (batcher.score(model, numbers(i)) for i in range(30))
        return await asyncio.gather(*jobs, return_exceptions=True), batcher.waiting

    answers, waiting = asyncio.run(ask())
    assert [answer.tolist() for answer in answers[:10]] == [[2 * i] for i in range(10)]
    assert all(isinstance(answer, BusyError) for answer in answers[10:])
    assert waiting == 0


def test_a_request_that_was_given_up_is_not_scored() -> None:
    model = Doubling()

    async def ask():
        batcher = Batcher(max_batch=4, max_wait=0.01, queue=10)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await batcher.score(model, numbers(1))
        return (await batcher.score(model, numbers(2))).tolist(), batcher.waiting

    assert asyncio.run(ask()) == ([4], 0)
    assert model.passes == [1]


def test_a_request_whose_turn_comes_too_late_is_told_so() -> None:
    model = Doubling()

    async def ask():
        batcher = Batcher(max_batch=4, max_wait=0.02, queue=10, seconds=0.001)
        with pytest.raises(TimeoutError):
            await batcher.score(model, numbers(1))

    asyncio.run(ask())
    assert model.passes == []


def test_a_full_queue_answers_503_and_when_to_come_again(make_client, rows) -> None:
    client = make_client()
    client.app.batcher = SimpleNamespace(score=full)
    answer = client.post("/score", json=rows[0])
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"


async def full(*_):
    raise BusyError

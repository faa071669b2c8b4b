"""Work that is spread over processes."""

from __future__ import annotations

import math

import pytest
import torch

from crossrank.experiments.processes import torch_threads, workers


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_order(jobs):
    with workers(jobs) as each:
        assert list(each(math.factorial, range(6))) == [1, 1, 2, 6, 24, 120]


@pytest.mark.parametrize("jobs", [1, 2])
def test_work_has_one_thread_and_the_caller_keeps_its_own(jobs):
    before = torch.get_num_threads()
    with workers(jobs) as each:
        assert list(each(_threads, range(2))) == [1, 1]
    assert torch.get_num_threads() == before


def _threads(_: int) -> int:
    return torch.get_num_threads()


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_a_piece_of_work_reaches_the_caller(jobs):
    with pytest.raises(ValueError), workers(jobs) as each:
        list(each(math.factorial, [-1]))


def test_the_number_of_threads_comes_back_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(KeyError), torch_threads(1):
        raise KeyError
    assert torch.get_num_threads() == before

"""Rows written, spread and summed as one would write it down."""

from __future__ import annotations

import pytest
import torch

from crossrank.training import table_rows
from crossrank.training.table_rows import Spread, put, sums_at


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "width"), [(0, 3), (1, 1), (7, 5)])
def test_put_writes_these_rows_and_no_others(dtype, count, width) -> None:
    table, rows = torch.randn(9, width, dtype=dtype), torch.randperm(9)[:count]
    expected, values = table.clone(), torch.randn(count, width, dtype=dtype)
    for row, value in zip(rows, values, strict=True):
        expected[row] = value
    put(table, rows, values)
    assert torch.equal(table, expected)


@pytest.mark.parametrize("largest", [2**16, 4])  # by radix, and where there are too many places for that
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("count", "length"), [(5, 0), (5, 1), (6, 40)])
def test_the_sum_at_each_place_is_that_of_a_loop(monkeypatch, largest, dtype, count, length) -> None:
    monkeypatch.setattr(table_rows, "NUM_SHORT", largest)
    places, values = torch.randint(0, count, (length,)), torch.randn(length, 3, dtype=dtype)
    expected = torch.zeros(count, 3, dtype=dtype)
    for place, value in zip(places, values, strict=True):
        expected[place] += value
    torch.testing.assert_close(sums_at(places, values, count), expected)


def test_places_beyond_two_bytes_are_summed_where_they_are() -> None:
    places = torch.tensor([0, 65_535, 65_536, 65_536])
    for count in (65_536, 65_537):
        inside = places[places < count]
        sums = sums_at(inside, torch.ones(len(inside), 2), count)
        assert sums.sum(dim=1).nonzero()[:, 0].tolist() == inside.unique().tolist()


def test_the_gradient_of_spread_vectors_is_their_sum() -> None:
    vectors = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Spread.apply(x, torch.tensor([2, 0, 2, 2, 3])), vectors)

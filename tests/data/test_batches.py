from __future__ import annotations

import threading
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.data import Split
from crossrank.data.batches import prefetch
from crossrank.data.rows import EncodedRows, LabeledRows, offsets_of
from crossrank.errors import ConfigError, DataError


def split_of(num_rows, **options):
    """A split whose values tell the row: row i has label i, ids (i, i + 1), number -i, and i % 3 times i in its bag."""
    rows = np.arange(num_rows)
    lengths = rows % 3
    bag = (np.repeat(rows, lengths).astype(np.uint32), offsets_of(lengths))
    encoded = EncodedRows(
        np.stack([rows, rows + 1], axis=1).astype(np.uint32), -rows[:, None].astype(np.float32), (bag,)
    )
    labels = rows.astype(np.float32)
    return Split(LabeledRows(encoded, labels, labels / 2, rows.astype(np.uint32)), **options)


def labels_of(batches):
    return [batch.labels.int().tolist() for batch in batches]


def flat(batches):
    return list(chain.from_iterable(batches))


def check_batch(batch):
    """All parts of a batch speak of the same rows."""
    rows = batch.labels.int()
    assert torch.equal(batch.features.categorical, torch.stack([rows, rows + 1], dim=1))
    assert torch.equal(batch.features.numeric[:, 0], -batch.labels)
    assert torch.equal(batch.weights, batch.labels / 2) and torch.equal(batch.groups, rows)
    (bag,) = batch.features.bags
    assert torch.equal(bag.ids, torch.repeat_interleave(rows, rows % 3))
    assert torch.equal(bag.offsets.diff(), rows.long() % 3) and len(bag.offsets) == len(batch) + 1


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("num_rows", [0, 1, 7, 12])
def test_batches_hold_every_row_once_with_all_that_belongs_to_it(num_rows, seed):
    batches = list(split_of(num_rows).batches(4, seed=seed))
    for batch in batches:
        check_batch(batch)
    assert sorted(flat(labels_of(batches))) == list(range(num_rows))
    assert [len(batch) for batch in batches] == [4] * (num_rows // 4) + [num_rows % 4] * (num_rows % 4 > 0)


def test_without_a_seed_rows_come_in_order():
    assert labels_of(split_of(5).batches(2)) == [[0, 1], [2, 3], [4]]


SMALL_WINDOW = {"window_bytes": 40 * 30}


@pytest.mark.parametrize("options", [{}, SMALL_WINDOW], ids=["whole", "in windows"])
def test_the_order_depends_on_seed_and_epoch_alone(options, monkeypatch):
    monkeypatch.setattr("crossrank.data.split_rows.BLOCK_BYTES", 40 * 4)
    split = split_of(200, **options)
    first = labels_of(split.batches(16, seed=1, epoch=2))
    assert labels_of(split.batches(16, seed=1, epoch=2)) == first
    for other in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}, {"seed": 2, "epoch": 1}):
        assert labels_of(split.batches(16, **other)) != first
    assert sorted(flat(first)) == list(range(200))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 4), st.booleans(), st.integers(0, 3), st.integers(1, 3000))
def test_ranks_share_the_rows_and_resume_anywhere(num_rows, batch_size, world_size, drop_last, start, window_bytes):
    split = split_of(num_rows, window_bytes=window_bytes)
    options = {"seed": 5, "epoch": 1, "drop_last": drop_last, "world_size": world_size}
    ranks = [labels_of(split.batches(batch_size, rank=rank, **options)) for rank in range(world_size)]
    count = split.num_batches(batch_size, drop_last=drop_last, world_size=world_size)
    assert all(len(batches) == count for batches in ranks)
    seen = sorted(row for batches in ranks for batch in batches for row in batch)
    assert len(seen) == len(set(seen)) == (count * batch_size * world_size if drop_last else num_rows)
    for step in range(count):
        sizes = [len(batches[step]) for batches in ranks]
        assert max(sizes) - min(sizes) <= 1 and max(sizes) <= batch_size
    resumed = labels_of(split.batches(batch_size, rank=world_size - 1, start_batch=start, **options))
    assert resumed == ranks[-1][start:]


def test_a_split_larger_than_the_window_is_still_mixed_from_all_parts(monkeypatch):
    monkeypatch.setattr("crossrank.data.split_rows.BLOCK_BYTES", 40 * 8)
    split = split_of(4000, window_bytes=40 * 400)
    order = np.array(flat(labels_of(split.batches(100, seed=0))))
    assert np.ptp(order[:100]) > 2000  # blocks from all over the split
    assert np.abs(np.diff(order[:100])).min() > 0 and (np.diff(order) == 1).mean() < 0.05  # neighbours are parted
    assert len(set(order[:400] // 8)) < 150  # of 500, so only a part of the split is needed at a time


def test_the_shuffle_is_even():
    """Each row comes first about equally often: chi-square over many epochs."""
    split = split_of(10)
    firsts = np.array([next(split.batches(1, seed=0, epoch=epoch)).labels.item() for epoch in range(1000)])
    expected = 100.0
    assert (((np.bincount(firsts.astype(int), minlength=10) - expected) ** 2) / expected).sum() < 27.9  # p = 0.001


def test_take_gives_the_asked_rows_in_order():
    batch = split_of(10).take(np.array([7, 2, 2]))
    check_batch(batch)
    assert batch.labels.tolist() == [7, 2, 2]
    with pytest.raises(DataError, match="Rows must be from 0 to 9; got -1 to 10"):
        split_of(10).take(np.array([-1, 10]))


def test_a_batch_moves_as_a_whole():
    batch = next(split_of(7).batches(7)).to("meta")
    moved = [batch.labels, batch.weights, batch.groups, *batch.features[:2], *batch.features.bags[0]]
    assert {tensor.device.type for tensor in moved} == {"meta"}


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 1, "rank": 2, "world_size": 2}])
def test_impossible_batches_are_refused_before_the_first(options):
    with pytest.raises(ConfigError, match="batch_size must be at least 1 and rank below world_size"):
        split_of(3).batches(**options)


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "crossrank-prefetch"]


def test_the_thread_ends_when_the_consumer_stops_early():
    batches = split_of(1000).batches(1)
    next(batches)
    assert _threads()
    batches.close()
    assert not _threads()


def test_an_error_in_the_thread_reaches_the_consumer():
    def items():
        yield 1
        raise DataError("broken")

    received = prefetch(items(), depth=1)
    assert next(received) == 1
    with pytest.raises(DataError, match="broken"):
        next(received)
    assert not _threads()

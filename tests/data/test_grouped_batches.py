"""Batches that keep the rows of a group together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossrank.data import Split
from crossrank.data.rows import EncodedRows, LabeledRows
from crossrank.errors import ConfigError


def split_of(groups, **options):
    """A split whose label tells the row, and which has these groups."""
    rows = np.arange(len(groups))
    encoded = EncodedRows(rows[:, None].astype(np.uint32), -rows[:, None].astype(np.float32))
    given = None if groups is None else np.asarray(groups, np.uint32)
    return Split(LabeledRows(encoded, rows.astype(np.float32), None, given), **options)


def rows_of(batches):
    return [batch.labels.long().tolist() for batch in batches]


def sizes(draw, most):
    return np.repeat(np.arange(50), draw.integers(1, most + 1, 50))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 6), max_size=80), st.integers(1, 9), st.integers(1, 3), st.sampled_from([None, 5]),
    st.integers(0, 4), st.integers(1, 3000),
)  # fmt: skip
def test_ranks_share_the_rows_and_resume_anywhere(groups, batch_size, world_size, seed, start, window_bytes) -> None:
    split = split_of(groups, window_bytes=window_bytes)
    options = {"seed": seed, "epoch": 1, "world_size": world_size, "by_group": True}
    ranks = [rows_of(split.batches(batch_size, rank=rank, **options)) for rank in range(world_size)]
    count = split.num_batches(batch_size, world_size=world_size)
    assert all(len(batches) == count for batches in ranks)
    assert sorted(row for batches in ranks for batch in batches for row in batch) == list(range(len(groups)))
    filled = [len(batch) for batches in ranks for batch in batches]
    assert all(size <= 2 * batch_size for size in filled)
    pieces = sum(-(-groups.count(one) // batch_size) for one in {*groups})
    assert pieces < count * world_size or all(filled)
    resumed = rows_of(split.batches(batch_size, rank=world_size - 1, start_batch=start, **options))
    assert resumed == ranks[-1][start:]


def test_a_group_that_fits_into_a_batch_is_never_divided() -> None:
    draw = np.random.default_rng(0)
    groups = draw.permutation(sizes(draw, 9))
    for epoch in range(5):
        batches = rows_of(split_of(groups).batches(40, seed=1, epoch=epoch, by_group=True))
        found = [set(groups[batch]) for batch in batches]
        assert sum(map(len, found)) == 50  # each group in one batch
        assert max(map(len, batches)) < 50


def test_groups_are_shuffled_by_seed_and_epoch_alone() -> None:
    groups = sizes(np.random.default_rng(0), 9)
    split = split_of(groups)
    first = rows_of(split.batches(16, seed=1, epoch=2, by_group=True))
    assert rows_of(split.batches(16, seed=1, epoch=2, by_group=True)) == first
    for other in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}, {"seed": 2, "epoch": 1}):
        assert rows_of(split.batches(16, by_group=True, **other)) != first
    together = [frozenset(groups[batch]) for batch in first]
    again = [frozenset(groups[batch]) for batch in rows_of(split.batches(16, seed=1, epoch=3, by_group=True))]
    assert not {*together} & {*again}  # others are neighbours in another epoch


def test_without_a_seed_groups_come_in_order() -> None:
    assert rows_of(split_of([1, 0, 1, 0, 2]).batches(2, by_group=True)) == [[1, 3], [0, 2], [4]]


@pytest.mark.parametrize("most", [1024, 3])
def test_a_group_larger_than_a_batch_is_cut_in_other_places_each_epoch(most, monkeypatch) -> None:
    monkeypatch.setattr("crossrank.data.batches.MOST_TOGETHER", most)
    groups = np.array([0] * 30 + [1, 1, 2, 2, 2])
    split, cuts = split_of(groups), []
    for epoch in range(2):
        batches = rows_of(split.batches(7, seed=1, epoch=epoch, by_group=True))
        parts = [frozenset(row for row in batch if row < 30) for batch in batches]
        assert sorted(row for part in parts for row in part) == list(range(30))
        assert max(map(len, batches)) <= 14
        cuts.append({*parts})
    assert not cuts[0] & cuts[1] - {frozenset()}


def test_rows_without_groups_are_refused() -> None:
    split = split_of([0, 1])
    ungrouped = Split(LabeledRows(split.rows.encoded, split.labels))
    with pytest.raises(ConfigError, match=r"need groups; the dataset has none\. Name the group column"):
        ungrouped.batches(2, by_group=True)

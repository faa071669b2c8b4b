"""Metrics of the order that scores give: over all rows (AUC), or inside each group (grouped AUC, NDCG, MRR).

Rows are sorted once, by group and then by falling score; everything after works on *ties*, the runs of rows with one
group and one score, so equal scores never earn or lose anything by the order in which rows happen to stand. The sort is
the cost: O(N log N) time, O(N) memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crossrank.errors import DataError
from crossrank.schema.label import MAX_GRADE

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.intp]


class Rows(NamedTuple):
    """Checked columns of one length. Shape: (N,) each."""

    labels: Floats
    scores: Floats
    weights: Floats


def read_rows(labels: ArrayLike, scores: ArrayLike, weights: ArrayLike | None = None, *, binary: bool = True) -> Rows:
    """The columns as float64, or a DataError that names the first bad row.

    Raises:
        DataError: for a column that is not one finite number per row, a negative weight, or, where ``binary``, a label
            other than 0 and 1.
    """
    read_scores = _read("Scores", scores)
    rows = len(read_scores)
    read_labels = _read("Labels", labels, rows=rows)
    read_weights = np.ones(rows) if weights is None else _read("Weights", weights, rows=rows)
    if binary:
        _refuse("Labels must be 0 or 1", read_labels, (read_labels != 0) & (read_labels != 1))
    _refuse("Weights must not be negative", read_weights, read_weights < 0)
    return Rows(read_labels, read_scores, read_weights)


def auc(labels: ArrayLike, scores: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The chance that a positive row scores above a negative one, a tie counting half; exact.

    ``sum_{i positive, j negative} w_i w_j ([s_i > s_j] + [s_i = s_j] / 2) / (sum_i w_i  sum_j w_j)``

    Limits: nan where one of the two classes is absent (or weighs nothing), so also without rows.

    Args:
        labels: 0 or 1 for each row. Shape: (N,).
        scores: any finite numbers; only their order counts. Shape: (N,).
        weights: how many rows each row stands for; one if left out. Shape: (N,).

    >>> auc([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.3])
    0.625
    """
    rows = read_rows(labels, scores, weights)
    values, _ = _auc_by_group(rows, _sort_ties(rows.scores, None))
    return float(values[0]) if len(values) else float("nan")


def grouped_auc(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """The mean of each group's AUC, groups weighted by their rows: the GAUC of Deep Interest Network.

    ``sum_g n_g AUC_g / sum_g n_g``, where n_g is the number of rows (impressions) of group g, or their total weight. Of
    grades, AUC_g is the share of pairs with different grades that the scores put in the right order, a tie counting
    half.

    Limits: groups with one class or grade only have no AUC and are left out of both sums; nan where no group is left.

    Args:
        labels: 0 or 1, or grades. Shape: (N,).
        scores, weights: as in :func:`auc`.
        groups: equal values belong together, such as users or queries; any order of rows. Shape: (N,).

    >>> grouped_auc([1, 0, 0, 1, 1], [0.9, 0.1, 0.8, 0.2, 0.5], ["a", "a", "b", "b", "c"])  # 1, 0 and none
    0.5
    """
    rows = read_rows(labels, scores, weights, binary=False)
    values, mass = _auc_by_group(rows, _sort_ties(rows.scores, _read_groups(groups, len(rows.scores))))
    known = ~np.isnan(values)
    return weighted_mean(values[known], mass[known])


def ndcg(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, k: int, weights: ArrayLike | None = None) -> float:
    """Normalised discounted cumulative gain of the first k rows of each group, averaged over groups.

    ``DCG@k = sum_{r <= k} (2^label_r - 1) / log2(r + 1)`` over ranks r = 1, 2, …; ``NDCG@k`` is DCG@k divided by the
    DCG@k of the best order. Rows of one score get the expected value over all orders among them. A group counts by the
    mean weight of its rows, so that weights of one change nothing; a row of weight 0 is not there.

    Limits: groups without a positive label have no best order and are left out; nan where no group is left.

    Args:
        labels: grades from 0 to 50, not only 0 and 1. Shape: (N,).
        scores, groups, weights: as in :func:`grouped_auc`.
        k: how many rows of each group are looked at.

    >>> round(ndcg([0, 1, 0], [0.9, 0.5, 0.1], ["q", "q", "q"], k=10), 4)  # the click stands second: 1 / log2(3)
    0.6309
    """
    if k < 1:
        raise DataError(f"k must be at least 1; got {k}.", hint="Usual is k=10.")
    rows, codes = _read_ranked(labels, scores, groups, weights)
    _refuse(f"Grades must be from 0 to {MAX_GRADE}", rows.labels, (rows.labels < 0) | (rows.labels > MAX_GRADE))
    gains = np.exp2(rows.labels) - 1
    best = _dcg(gains, _sort_ties(gains, codes), k)
    known = best > 0
    ties = _sort_ties(rows.scores, codes)
    return weighted_mean(_dcg(gains, ties, k)[known] / best[known], _group_weights(rows.weights, ties)[known])


def mrr(labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, *, weights: ArrayLike | None = None) -> float:
    """Mean reciprocal rank: one over the rank of each group's first positive row, averaged over groups.

    Rows of one score get the expected value over all orders among them: with m such rows after a better ones, p of them
    positive, the first positive follows j negatives with chance ``p / (m - j) prod_{i < j} (m - p - i) / (m - i)``.
    Weights count as in :func:`ndcg`.

    Limits: groups without a positive label are left out; nan where no group is left.

    Args:
        labels: above 0 is positive. Shape: (N,).
        scores, groups, weights: as in :func:`grouped_auc`.

    >>> mrr([0, 1, 1, 0], [0.9, 0.5, 0.8, 0.1], ["q", "q", "r", "r"])  # ranks 2 and 1
    0.75
    """
    rows, codes = _read_ranked(labels, scores, groups, weights)
    ties = _sort_ties(rows.scores, codes)
    positives = np.add.reduceat((rows.labels > 0)[ties.order].astype(np.intp), ties.starts)  # (T,)
    hit = np.flatnonzero(positives)
    hit = hit[_changes(ties.groups[hit])]  # (G,) the first tie with a positive, for each group that has one
    tries = ties.sizes[hit] - positives[hit] + 1  # how many ranks the first positive may take
    first = np.cumsum(tries) - tries  # (G,) where each group's tries start in the arrays below
    j = np.arange(tries.sum()) - np.repeat(first, tries)
    size, positive, rank = (np.repeat(values[hit], tries) for values in (ties.sizes, positives, ties.ranks))
    # The last factor of each group is 0 and never used; 1 instead keeps the running sum of logarithms finite.
    step = np.log(np.maximum(size - positive - j, 1) / (size - j))
    missed = np.cumsum(step) - step
    missed -= np.repeat(missed[first], tries)
    chance = np.exp(missed) * positive / (size - j)
    values = np.add.reduceat(chance / (rank + 1 + j), first)
    return weighted_mean(values, _group_weights(rows.weights, ties)[ties.groups[hit]])


class _Ties(NamedTuple):
    """T runs of rows with one group and one score, after sorting by group and falling score."""

    order: Integers  # (N,) the rows as sorted
    starts: Integers  # (T,) the first sorted row of each tie
    sizes: Integers  # (T,)
    ranks: Integers  # (T,) how many rows of its group stand before it
    groups: Integers  # (T,) the number of its group: 0, 0, 1, …
    group_starts: Integers  # (G,) the first tie of each group


def _sort_ties(scores: Floats, groups: NDArray[Any] | None) -> _Ties:
    falling = -scores
    order = np.argsort(falling) if groups is None else np.lexsort((falling, groups))
    new_group = _changes(np.zeros_like(order) if groups is None else groups[order])  # (N,)
    starts = np.flatnonzero(new_group | _changes(scores[order]))
    group_starts = np.flatnonzero(new_group[starts])
    numbers = np.cumsum(new_group[starts]) - 1
    ranks = starts - starts[group_starts][numbers]
    return _Ties(order, starts, np.diff(starts, append=len(order)), ranks, numbers, group_starts)


def _auc_by_group(rows: Rows, ties: _Ties) -> tuple[Floats, Floats]:
    """Each group's AUC, nan for one class only, and its total weight. Shape: (G,) both."""
    labels, weights = rows.labels[ties.order], rows.weights[ties.order]
    wins, pairs = np.zeros((2, len(ties.group_starts)))  # (G,) each
    for grade in np.unique(labels)[1:]:  # against all lower ones
        positive = np.add.reduceat(weights * (labels == grade), ties.starts)  # (T,)
        negative = np.add.reduceat(weights * (labels < grade), ties.starts)
        above = np.cumsum(positive) - positive
        above -= above[ties.group_starts][ties.groups]
        wins += np.add.reduceat(negative * (above + positive / 2), ties.group_starts)
        pairs += np.multiply(*(np.add.reduceat(mass, ties.group_starts) for mass in (positive, negative)))
    values = np.divide(wins, pairs, out=np.full_like(wins, np.nan), where=pairs > 0)
    first = ties.starts[ties.group_starts]
    return values, np.add.reduceat(weights, first) if len(first) else np.zeros(0)


def _dcg(gains: Floats, ties: _Ties, k: int) -> Floats:
    """Each group's expected DCG@k. Shape: (G,)."""
    ranks = min(k, len(gains))
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, ranks + 2)))])  # of the first 0, 1, … ranks
    stop = np.minimum(ties.ranks + ties.sizes, ranks)
    share = (discounts[stop] - discounts[np.minimum(ties.ranks, ranks)]) / ties.sizes  # (T,) each row's mean discount
    return np.add.reduceat(np.add.reduceat(gains[ties.order], ties.starts) * share, ties.group_starts)


def _group_weights(weights: Floats, ties: _Ties) -> Floats:
    """The mean weight of each group's rows. Shape: (G,)."""
    first = ties.starts[ties.group_starts]  # (G,) the first sorted row of each group
    return np.add.reduceat(weights[ties.order], first) / np.diff(first, append=len(ties.order))


def _changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value differs from the one before it; the first always does."""
    changed = np.ones(len(values), dtype=bool)
    changed[1:] = values[1:] != values[:-1]
    return changed


def weighted_mean(values: Floats, weights: Floats) -> float:
    """The mean, nan where nothing weighs anything."""
    total = weights.sum()
    return float((weights * values).sum() / total) if total > 0 else float("nan")


def _read(name: str, values: ArrayLike, *, rows: int | None = None) -> Floats:
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers; {error}.") from None
    if column.ndim != 1 or len(column) != (len(column) if rows is None else rows):
        wanted = "(rows,)" if rows is None else f"({rows},), as the scores have"
        raise DataError(f"{name} must have the shape {wanted}; got {column.shape}.")
    _refuse(f"{name} must be finite", column, ~np.isfinite(column))
    return column


def _read_ranked(
    labels: ArrayLike, scores: ArrayLike, groups: ArrayLike, weights: ArrayLike | None
) -> tuple[Rows, NDArray[Any]]:
    """The rows that weigh anything, and their groups."""
    rows = read_rows(labels, scores, weights, binary=False)
    there = rows.weights > 0
    return Rows(*(column[there] for column in rows)), _read_groups(groups, len(there))[there]


def _read_groups(groups: ArrayLike, rows: int) -> NDArray[Any]:
    column = np.asarray(groups)
    if column.shape != (rows,):
        raise DataError(f"Groups must have the shape ({rows},), as the scores have; got {column.shape}.")
    return column


def _refuse(contract: str, column: Floats, bad: NDArray[np.bool_]) -> None:
    if bad.any():
        row = int(bad.argmax())
        raise DataError(f"{contract}; got {column[row]:g} in row {row:,} and {bad.sum() - 1:,} more like it.")

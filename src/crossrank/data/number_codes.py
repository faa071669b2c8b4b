"""Numbers as more than one scalar: the id of their value, and piecewise-linear pieces.

All of them see a number after its logarithm, if its column takes one.

- **values**: an embedded slot. Training numbers are put into bins that do not overlap, and a number has the id of the
  bin it lies in or nearest to: ``id = FIRST_ID + how many thresholds are at or below x``, with a threshold halfway
  between the largest number of each bin and the smallest of the next; beyond the ends the last bin counts. A number
  weighs half its share of the rows and half its share of the distinct numbers. Where those seen at least three times
  are at most 256 and have most of the weight, each is a bin. Otherwise bins have equal weights, so that a number that
  most rows have is alone, and the others are still told apart.
- **pieces**: a numeric slot of K numbers ``z_k = clip((x - t_{k-1}) / (t_k - t_{k-1}), 0, 1)``, the edges t at equal
  steps through the sorted distinct numbers. Beyond the ends nothing changes any more. An outlier among the training
  numbers widens the last piece only.

A missing number has an id of its own. As pieces it is all zeros, and a slot of its own says so, also beside a scalar
where **missing** is asked for; where no training row lacks the number, such a slot would learn nothing, and the mean of
the pieces stands for it.

Left to itself (``auto``), a column is encoded by all three where the label is binary or a number, it has more than two
distinct numbers, at least 1,000 training rows have one, and the table has at most 32 numeric columns: each costs some
33 elements of x0. With up to 128 columns it is a scalar with pieces where the label is binary and at least 2,000
training rows have a number. Otherwise it is a scalar, with a slot that says where it is missing if there are 1,000
training rows to learn it from. Where the label is binary, each number is a bin only where there are 100 training rows
for each, other bins have 500 in the mean, and a column has 8 to 16 pieces, the fewer the more columns there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from crossrank.data.distinct import Counts, DistinctNumbers
from crossrank.data.numbers import Doubles
from crossrank.data.rows import Floats, Ids
from crossrank.data.scaling import NumericStatistics, Scaling, log_shifts, undo_logs
from crossrank.data.vocabulary import FIRST_ID, MISSING_ID
from crossrank.schema import Feature, Numeric, Schema

OFTEN = 3  # times that a number is seen, to have an id of its own
MOST_VALUES = 256
ENOUGH_WEIGHT = 0.75
MOST_PIECES, FEWEST_PIECES, ALL_PIECES = 16, 8, 80  # of a column; of all columns, where auto has them
BLOCK_ROWS = 1024  # encoded at a time, so that what lies between stays in the processor's cache
FEWEST_ROWS, FEWEST_DISTINCT, MOST_COLUMNS = 1_000, 2, 32  # where auto has more than a scalar
ROWS_OF_PIECED, MOST_PIECED = 2_000, 128  # where it has pieces though there are more columns
ROWS_OF_VALUE, ROWS_OF_BIN = 100, 500  # training rows in the mean, where auto has values for a binary label


def decide(schema: Schema, known: NumericStatistics, num_distinct: int) -> str:
    """What ``auto`` stands for in a column of which so much is known."""
    kind, columns = schema.label.kind, num_pieced(schema)
    if known.count >= FEWEST_ROWS and num_distinct > FEWEST_DISTINCT:
        if kind in ("binary", "real") and columns <= MOST_COLUMNS:
            return "scalar+values+pieces"
        if kind == "binary" and columns <= MOST_PIECED and known.count >= ROWS_OF_PIECED:
            return "scalar+pieces"
    told = known.missing > 0 and known.count + known.missing >= FEWEST_ROWS
    return "scalar+missing" if told else "scalar"


def num_pieced(schema: Schema) -> int:
    """How many numeric columns have pieces, or may have: whole numbers drafted as ids in order do not."""
    return sum(column.encoding == "auto" or "pieces" in column.encodings for column in schema.numeric)


class NumberVocabulary:
    """The bins of a column's values, by id."""

    def __init__(self, column: Numeric, known: NumericStatistics) -> None:
        self.column = column.name
        self._lows, self._highs = np.asarray(known.lows, np.float64), np.asarray(known.highs, np.float64)
        self.counts, self._shifts = np.asarray(known.counts, np.int64), log_shifts([column])
        self._thresholds = (self._highs[:-1] + self._lows[1:]) / 2

    @property
    def size(self) -> int:
        return len(self.counts)

    @property
    def is_binned(self) -> bool:
        """Whether some numbers share an id."""
        return bool((self._lows < self._highs).any())

    def ids(self, logged: Doubles) -> Ids:
        """(N,), NaN for missing -> (N,)."""
        ids = self._thresholds.searchsorted(logged, "right").astype(np.uint32) + np.uint32(FIRST_ID)
        ids[np.isnan(logged)] = MISSING_ID
        return ids

    def text_of(self, id_: int) -> str:
        low, high = undo_logs(np.array([[ends[id_ - FIRST_ID]] for ends in (self._lows, self._highs)]), self._shifts)
        return f"{low[0]:.6g}" if low == high else f"{low[0]:.6g} to {high[0]:.6g}"

    def middles(self, ids: Ids) -> Doubles:
        """Numbers after their logarithm, one of each bin; NaN for missing."""
        middles = np.full(self.size, np.nan)
        middles[FIRST_ID:] = (self._lows + self._highs) / 2
        return middles[ids]


class NumberSlots:
    """How a numeric column fills slots of x0.

    Attributes:
        values: the bins of its embedded slot, if it has one.
        numeric: its numeric slots, which lie side by side, ``width`` numbers in all.
    """

    def __init__(self, column: Numeric, known: NumericStatistics) -> None:
        name, self._column, self._known = column.name, column, known
        self.value_name = f"{name} (value)"
        self.values = NumberVocabulary(column, known) if "values" in column.encodings else None
        self.scalar, self.pieces = "scalar" in column.encodings, "pieces" in column.encodings
        self.tells_missing = not {"pieces", "missing"}.isdisjoint(column.encodings) and known.missing > 0
        self.numeric = (
            *([Feature(name, "numeric")] if self.scalar else []),
            *([Feature(f"{name} (pieces)", "numeric", 0, len(known.edges or ()) - 1, name)] if self.pieces else []),
            *([Feature(f"{name} (missing)", "numeric", column=name)] if self.tells_missing else []),
        )
        self.width = sum(feature.width for feature in self.numeric)

    @cached_property
    def scaling(self) -> Scaling:
        return Scaling([self._column], {self._column.name: self._known})

    @cached_property
    def _alone(self) -> NumberFloats:
        return NumberFloats([self])

    def floats(self, logged: Doubles) -> Floats:
        """The numeric slots of numbers after their logarithm: (N,) -> (N, width)."""
        return self._alone.of(logged[:, None], self.scaling.scale(logged[:, None]))

    def edges(self) -> tuple[Doubles, Doubles]:
        """The edges of its K pieces, and what stands for those of a missing number: (K + 1,), (K,)."""
        if not self.pieces:
            return np.zeros(1), np.empty(0)
        edges = np.asarray(self._known.edges, np.float64)
        return edges, np.zeros(len(edges) - 1) if self.tells_missing else np.asarray(self._known.piece_means)

    def means(self) -> Floats:
        """The mean over the training rows of each number: (width,)."""
        known = self._known
        scaled = self.scaling.scale(np.array([[np.nan]]))[0]  # a missing number becomes the mean
        share = known.missing / max(known.missing + known.count, 1)
        parts = [scaled] if self.scalar else []
        if self.pieces:
            parts.append(np.asarray(known.piece_means) * (1 - share if self.tells_missing else 1))
        return np.concatenate([*parts, [share] if self.tells_missing else []]).astype(np.float32)

    def numbers(self, floats: Floats, ids: Ids | None) -> Doubles:
        """The numbers behind slots, by the most exact one: (N, width), (N,) -> (N,); NaN where one says it is missing.

        A missing number of which the slots do not say so comes back as what stands for it.
        """
        middles = None if self.values is None or ids is None else self.values.middles(ids)
        if self.scalar:
            numbers = self.scaling.restore(floats[:, :1])[:, 0]
        else:
            edges = np.asarray(self._known.edges)
            logged = edges[0] + floats[:, : len(edges) - 1] @ np.diff(edges) if self.pieces else middles
            numbers = undo_logs(np.asarray(logged)[:, None], log_shifts([self._column]))[:, 0]
        missing = np.zeros(len(floats), bool) if middles is None else np.isnan(middles)
        return np.where(missing | (floats[:, -1] == 1) if self.tells_missing else missing, np.nan, numbers)


class NumberFloats:
    """The numeric slots of several columns side by side, computed at once: for one row, each call of numpy counts."""

    def __init__(self, slots: Sequence[NumberSlots]) -> None:
        edges, filled = zip(*(one.edges() for one in slots), strict=True)
        self._lows = np.concatenate([one[:-1] for one in edges])
        self._widths, self._filled = np.concatenate([*map(np.diff, edges)]), np.concatenate(filled)
        counts = [(int(one.scalar), len(own), int(one.tells_missing)) for one, own in zip(slots, filled, strict=True)]
        kinds = np.concatenate([np.repeat([0, 1, 2], count) for count in counts])  # of each number: (width,)
        columns = np.repeat(np.arange(len(slots)), [sum(count) for count in counts])
        # The places of scalars, pieces and missing, and the column of each
        self._places = [(np.flatnonzero(kinds == kind), columns[kinds == kind]) for kind in (0, 1, 2)]
        self.width = len(kinds)

    def of(self, logged: Doubles, scaled: Floats) -> Floats:
        """Numbers after their logarithm, NaN for missing, and the same scaled: (N, C), (N, C) -> (N, width)."""
        floats = np.empty((len(logged), self.width), np.float32)
        for start in range(0, len(logged), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            self._fill(floats[rows], logged[rows], scaled[rows])
        return floats

    def _fill(self, floats: Floats, logged: Doubles, scaled: Floats) -> None:
        absent, (scalars, pieces, missing) = np.isnan(logged), self._places
        progress = _progress(logged.take(pieces[1], axis=1), self._lows, self._widths)
        if absent.any():
            progress = np.where(absent.take(pieces[1], axis=1), self._filled, progress)
        floats[:, pieces[0]] = progress
        floats[:, scalars[0]] = scaled.take(scalars[1], axis=1)
        floats[:, missing[0]] = absent.take(missing[1], axis=1)


def learn(
    column: Numeric, known: NumericStatistics, distinct: DistinctNumbers, schema: Schema
) -> tuple[Numeric, NumericStatistics]:
    """The column, its encoding decided, and its statistics with the bins and edges that this needs."""
    values, counts = distinct.finish()
    if not len(values):
        values, counts = np.zeros(1), np.zeros(1, np.int64)
    fewest, most = (1, OFTEN), MOST_PIECES
    if column.encoding == "auto":
        column = dataclasses.replace(column, encoding=decide(schema, known, len(values)))
        if schema.label.kind == "binary":
            fewest = ROWS_OF_VALUE, ROWS_OF_BIN
            most = min(MOST_PIECES, max(FEWEST_PIECES, ALL_PIECES // num_pieced(schema)))
    found: dict[str, Any] = {}
    if "values" in column.encodings:
        lows, highs = bins_of(values, counts, *fewest)
        found |= {"lows": lows.tolist(), "highs": highs.tolist(), "counts": [0] * (FIRST_ID + len(lows))}
        ids = NumberVocabulary(column, dataclasses.replace(known, **found)).ids(values)
        found["counts"] = [known.missing, 0, *np.bincount(ids - FIRST_ID, counts).astype(np.int64).tolist()]
    if "pieces" in column.encodings:
        edges = edges_of(values, most)
        means = counts @ pieces_of(values, edges) / max(int(counts.sum()), 1)
        found |= {"edges": edges.tolist(), "piece_means": means.tolist()}
    return column, dataclasses.replace(known, **found)


def coded_like(
    known: Mapping[str, NumericStatistics], found: Mapping[str, NumericStatistics]
) -> dict[str, NumericStatistics]:
    """What was found of numbers, with the bins and edges that are known."""
    codes = ("lows", "highs", "counts", "edges", "piece_means")
    taken = {name: {code: getattr(known[name], code) for code in codes} for name in found if name in known}
    return {name: dataclasses.replace(one, **taken.get(name, {})) for name, one in found.items()}


def bins_of(
    values: Doubles, counts: Counts, rows_of_value: int = 1, rows_of_bin: int = OFTEN
) -> tuple[Doubles, Doubles]:
    """The smallest and the largest number of each bin, of the sorted distinct numbers and how often there is each.

    Args:
        values, counts: these.
        rows_of_value: that there are at least in the mean where each number is a bin.
        rows_of_bin: the same where they are not.
    """
    often, rows = counts >= OFTEN, int(counts.sum())
    weights = (counts / max(rows, 1) + 1 / len(values)) / 2
    if often.sum() <= min(MOST_VALUES, rows // rows_of_value) and weights[often].sum() >= ENOUGH_WEIGHT:
        return values[often], values[often]
    num_bins = min(MOST_VALUES, max(rows // rows_of_bin, 1))
    which = np.floor((weights.cumsum() - weights / 2) * num_bins)
    first = np.append(True, np.diff(which) > 0)
    return values[first], values[np.append(first[1:], True)]


def edges_of(values: Doubles, most: int = MOST_PIECES) -> Doubles:
    """The edges of the pieces, of the sorted distinct numbers; a single one is where the only piece starts."""
    if len(values) < 2:
        return np.array([values[0], values[0] + max(1.0, abs(values[0]))])
    num_pieces = min(most, len(values) - 1)
    return values[np.rint(np.linspace(0, len(values) - 1, num_pieces + 1)).astype(np.int64)]


def pieces_of(logged: Doubles, edges: Doubles) -> Doubles:
    """How far each number has come in each piece: (N,), (K + 1,) -> (N, K)."""
    return _progress(logged[:, None], edges[:-1], np.diff(edges))


def _progress(numbers: Doubles, lows: Doubles, widths: Doubles) -> Doubles:
    """clip((x - low) / width, 0, 1); NaN stays."""
    with np.errstate(over="ignore"):  # a piece may be as narrow as float64 has it
        pieces = (numbers - lows) / widths
    np.maximum(pieces, 0, out=pieces)
    return np.minimum(pieces, 1, out=pieces)

"""Numbers of a table that is read in one pass, looked up by their texts: most columns have few that differ."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.distinct import DistinctNumbers
from crossrank.data.number_codes import learn
from crossrank.data.numbers import Doubles, numbers_of_series, parse_column
from crossrank.data.packed_texts import FIRST_CODE, WordCodes, Words, smallest, texts_of_words
from crossrank.data.rows import Positions
from crossrank.data.scaling import Moments, NumericStatistics, log_shifts, take_logs
from crossrank.data.table import Chunk
from crossrank.schema import Numeric, Schema

MOST_REMEMBERED = 1 << 16  # distinct texts of a column; beyond, parsing is as quick as looking up


class NumberReader:
    """Reads a numeric column and takes its logarithm, once for each distinct text while there are few.

    Attributes:
        known: the numbers by their code.
    """

    def __init__(self, column: Numeric, schema: Schema) -> None:
        self._column, self._name, self._schema = column, column.name, schema
        self._markers, self._decimal, self._shifts = column.markers, column.decimal, log_shifts([column])
        self._codes, self.known = WordCodes(), np.full(FIRST_CODE, np.nan)
        self._moments = Moments(quantiles=schema.label.kind == "real" and column.standardize)
        self._distinct = None if column.encoding == "scalar" else DistinctNumbers()

    def add(self, chunk: Chunk, rows: Positions | None) -> NDArray[Any]:
        """The column as codes or as numbers; some of the rows (all if None) count for the moments."""
        words = chunk.words.get(self._name)
        if words is None or self._codes.size > MOST_REMEMBERED:
            numbers = self._parse(chunk)
            self._count(numbers if rows is None else numbers.take(rows, mode="clip"))
            return numbers
        codes = self._codes.code(words)
        if not self._learn():
            self._parse(chunk)  # raises, with the place
        self._codes.count(codes if rows is None else codes.take(rows, mode="clip"))
        return smallest(codes)

    def read(self) -> tuple[Words, Doubles]:
        """The words by their codes, and the numbers that they are."""
        return self._codes.words, self.known

    def again(self, values: NDArray[Any], rows: Positions, words: Words, known: Doubles) -> None:
        """What another reader made of a chunk, as if this one had read it, digit for digit.

        The other may have met fewer words before, never more: where it has numbers, so would this one.

        Args:
            values: its codes or numbers.
            rows: those that count.
            words: by its codes.
            known: its numbers, by its codes.
        """
        if values.dtype == np.float64:
            self._count(values[rows])
        elif self._codes.size > MOST_REMEMBERED:
            self._count(known[values[rows]])
        else:
            codes = self._codes.code(words[values])
            self._learn()
            self._codes.count(codes[rows])

    def _count(self, numbers: Doubles, counts: NDArray[np.int64] | None = None) -> None:
        self._moments.add(numbers, counts)
        if self._distinct is not None:
            self._distinct.add(numbers, counts)

    def finish(self) -> tuple[Numeric, NumericStatistics]:
        """The column, its encoding decided, and what is known of it."""
        self._count(self.known, self._codes.counts)
        statistics = self._moments.finish()
        if self._distinct is None:
            return self._column, statistics
        return learn(self._column, statistics, self._distinct, self._schema)

    def _parse(self, chunk: Chunk) -> Doubles:
        numbers = numbers_of_series(chunk.column(self._name), chunk.where, self._markers, self._decimal)
        return take_logs(numbers, self._shifts)

    def _learn(self) -> bool:
        """Read the texts that the last codes brought; returns whether all are numbers."""
        new = self._codes.words[len(self.known) :]
        if not len(new):
            return True
        numbers, bad = parse_column(texts_of_words(new), self._markers, self._decimal)
        self.known = np.append(self.known, take_logs(numbers, self._shifts))
        return not bad.any()

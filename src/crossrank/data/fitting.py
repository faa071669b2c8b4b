"""One streaming pass that learns vocabularies and statistics, and codes the rows it sees on the way.

A value gets a provisional code when it first appears. The codes can be written down as the pass goes; when it is over
and the frequencies are known, a table per column translates codes into ids. So text is parsed and looked up only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crossrank.data.cells import pieces_of_series
from crossrank.data.encoder import Encoder, NumericStatistics, side_by_side, take_log
from crossrank.data.numbers import Doubles, Where, numbers_of_columns
from crossrank.data.rows import EncodedRows, Ids, NumpyBag
from crossrank.data.text import text_of_series
from crossrank.data.vocabulary import (
    FIRST_ID,
    MISSING_ID,
    UNSEEN_ID,
    HashedVocabulary,
    Vocabulary,
    hashed_ids,
)
from crossrank.schema import Categorical, Multivalent, Schema

if TYPE_CHECKING:
    import polars as pl

MISSING_CODE = 0


@dataclass(frozen=True)
class CodedRows:
    """A chunk between the passes: provisional codes by column, numbers after their logarithm with NaN for missing."""

    num_rows: int
    codes: list[Ids]
    bags: list[NumpyBag]
    numbers: list[Doubles]

    def encode(self, encoder: Encoder, tables: Mapping[str, Ids | None]) -> EncodedRows:
        """The rows as the finished encoder sees them; ``tables`` lead from codes to ids."""
        schema, num_rows = encoder.schema, self.num_rows
        ids = [
            _translate(codes, tables[column.name]) for column, codes in zip(schema.categorical, self.codes, strict=True)
        ]
        bags = tuple(
            (_translate(codes, tables[column.name]), offsets)
            for column, (codes, offsets) in zip(schema.multivalent, self.bags, strict=True)
        )
        return EncodedRows(side_by_side(ids, num_rows), encoder.scale(self.numbers, num_rows), bags)


class EncoderBuilder:
    """Learns an encoder from chunks.

    Cost: memory for the distinct values of the columns that keep a vocabulary, and one chunk.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._counters = {column.name: _counter(column) for column in (*schema.categorical, *schema.multivalent)}
        self._moments = {column.name: _Moments() for column in schema.numeric}

    def add(self, frame: pl.DataFrame, training: NDArray[np.bool_] | None, where: Where) -> CodedRows:
        """Learn from the training rows of a chunk (all if None), and code all of its rows."""
        import polars as pl

        rows = None if training is None else np.flatnonzero(training)
        names = [column.name for column in self.schema.categorical]
        texts = pl.DataFrame([text_of_series(frame[name]).alias(name) for name in names])
        coded = texts.select([self._counters[name].codes(name) for name in names])
        codes = [column.to_numpy() for column in coded.get_columns()]
        for name, column in zip(names, codes, strict=True):
            self._counters[name].count(column if rows is None else column[rows])
        bags = [self._add_bags(frame, column, training) for column in self.schema.multivalent]
        numeric = self.schema.numeric
        numbers = numbers_of_columns(frame, [column.name for column in numeric], where)
        logged = [take_log(*pair) for pair in zip(numeric, numbers, strict=True)]
        for column, values in zip(numeric, logged, strict=True):
            self._moments[column.name].add(values if rows is None else values[rows])
        return CodedRows(len(frame), codes, bags, logged)

    def _add_bags(self, frame: pl.DataFrame, column: Multivalent, training: NDArray[np.bool_] | None) -> NumpyBag:
        pieces, offsets = pieces_of_series(frame[column.name], column.separator)
        counter = self._counters[column.name]
        codes = pieces.to_frame("pieces").select(counter.codes("pieces"))["pieces"].to_numpy()
        counter.count(codes if training is None else codes[np.repeat(training, np.diff(offsets))])
        return codes, offsets

    def finish(self) -> tuple[Encoder, dict[str, Ids | None]]:
        """The encoder, and for each embedded column the table from codes to ids; None where they are the same."""
        finished = {name: counter.finish() for name, counter in self._counters.items()}
        vocabularies = {name: vocabulary for name, (vocabulary, _) in finished.items()}
        statistics = {name: moments.finish() for name, moments in self._moments.items()}
        return Encoder(self.schema, vocabularies, statistics), {name: table for name, (_, table) in finished.items()}


def _translate(codes: Ids, table: Ids | None) -> Ids:
    return codes if table is None else table[codes]


def _counter(column: Categorical | Multivalent) -> _ValueCounter | _HashCounter:
    return _ValueCounter(column) if column.hash_size is None else _HashCounter(column.hash_size)


class _ValueCounter:
    """Codes values in a growing dictionary: 0 is missing, the others are numbered from 1 as they come."""

    def __init__(self, column: Categorical | Multivalent) -> None:
        import polars as pl

        self._column = column
        self._categories = pl.Categories.random()
        self._type = pl.Categorical(self._categories)
        self._alive = pl.Series([], dtype=self._type)  # polars forgets the dictionary when nothing uses it any more
        self._counts = np.zeros(1, np.int64)

    def codes(self, name: str) -> pl.Expr:
        import polars as pl

        return (pl.col(name).cast(self._type).to_physical() + 1).fill_null(MISSING_CODE)

    def count(self, codes: Ids) -> None:
        self._counts = _add(self._counts, np.bincount(codes, minlength=1))

    def finish(self) -> tuple[Vocabulary, Ids]:
        import polars as pl

        texts = self._categories.to_series()
        self._counts = _add(self._counts, np.zeros(len(texts) + 1, np.int64))
        frame = pl.DataFrame({"text": texts, "count": self._counts[1:], "code": np.arange(1, len(texts) + 1)})
        frame = frame.filter(pl.col("count") >= max(self._column.min_count, 1))
        kept = frame.sort("count", "text", descending=[True, False]).head(self._column.max_size or len(frame))
        table = np.full(len(texts) + 1, UNSEEN_ID, np.uint32)
        table[MISSING_CODE] = MISSING_ID
        table[kept["code"].to_numpy()] = np.arange(FIRST_ID, FIRST_ID + len(kept))
        counts = np.empty(FIRST_ID + len(kept), np.int64)
        counts[FIRST_ID:] = kept["count"].to_numpy()
        counts[MISSING_ID] = self._counts[MISSING_CODE]
        counts[UNSEEN_ID] = self._counts.sum() - counts[FIRST_ID:].sum() - counts[MISSING_ID]
        letters = np.frombuffer("".join(kept["text"].to_list()).encode("utf-8"), np.uint8)
        ends = kept["text"].str.len_bytes().to_numpy().astype(np.int64).cumsum()
        return Vocabulary(letters, ends, counts), table


class _HashCounter:
    """Codes values by their final ids at once."""

    def __init__(self, hash_size: int) -> None:
        self._hash_size = hash_size
        self._counts = np.zeros(FIRST_ID + hash_size, np.int64)

    def codes(self, name: str) -> pl.Expr:
        import polars as pl

        return pl.col(name).map_batches(lambda texts: hashed_ids(texts, self._hash_size), return_dtype=pl.UInt32)

    def count(self, codes: Ids) -> None:
        self._counts = _add(self._counts, np.bincount(codes, minlength=1))

    def finish(self) -> tuple[HashedVocabulary, None]:
        return HashedVocabulary(self._counts), None


def _add(counts: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two count arrays, the shorter one meaning zeros at its end."""
    if len(more) > len(counts):
        counts, more = more.astype(np.int64), counts
    counts[: len(more)] += more
    return counts


class _Moments:
    """Mean and deviation over chunks by Chan's pairwise update, which loses no digits however many rows there are."""

    def __init__(self) -> None:
        self._count, self._missing = 0, 0
        self._mean, self._squares = 0.0, 0.0
        self._low, self._high = np.inf, -np.inf

    def add(self, values: Doubles) -> None:
        present = values[~np.isnan(values)]
        self._missing += len(values) - len(present)
        if not len(present):
            return
        mean = float(present.mean())
        total = self._count + len(present)
        shift = mean - self._mean
        self._squares += float(np.square(present - mean).sum()) + shift**2 * self._count * len(present) / total
        self._mean += shift * len(present) / total
        self._count = total
        self._low, self._high = min(self._low, float(present.min())), max(self._high, float(present.max()))

    def finish(self) -> NumericStatistics:
        if self._low >= self._high:  # constant, or no value at all: rounding must not pass for a deviation
            return NumericStatistics(self._low if self._count else 0.0, 1.0, self._count, self._missing)
        deviation = float(np.sqrt(self._squares / self._count))
        return NumericStatistics(self._mean, deviation or 1.0, self._count, self._missing)

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
from crossrank.data.encoder import Encoder, side_by_side
from crossrank.data.numbers import Doubles, Where, numbers_of_frame
from crossrank.data.parallel import for_each
from crossrank.data.rows import EncodedRows, Ids, NumpyBag
from crossrank.data.scaling import Moments, log_shifts, take_logs
from crossrank.data.text import text_of_series
from crossrank.data.vocabulary import FIRST_ID, MISSING_ID, UNSEEN_ID, HashedVocabulary, Vocabulary, hashed_ids
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
    numbers: Doubles

    def encode(self, encoder: Encoder, tables: Mapping[str, Ids]) -> EncodedRows:
        """The rows as the finished encoder sees them; ``tables`` lead from codes to ids."""
        one, many = encoder.schema.categorical, encoder.schema.multivalent
        ids = [tables[column.name].take(codes, mode="clip") for column, codes in zip(one, self.codes, strict=True)]
        bags = [(tables[column.name][codes], ends) for column, (codes, ends) in zip(many, self.bags, strict=True)]
        return EncodedRows(side_by_side(ids, self.num_rows), encoder.scaling.scale(self.numbers), tuple(bags))


class EncoderBuilder:
    """Learns an encoder from chunks.

    Cost: memory for the distinct values of the columns that keep a vocabulary, and one chunk.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        embedded: list[Categorical | Multivalent] = [*schema.categorical, *schema.multivalent]
        self._counters = {column.name: _counter(column) for column in embedded}
        self._moments = [Moments() for _ in schema.numeric]
        self._num_rows = 0

    def add(self, frame: pl.DataFrame, training: NDArray[np.bool_] | None, where: Where) -> CodedRows:
        """Learn from the training rows of a chunk (all if None), and code all of its rows."""
        rows = None if training is None else np.flatnonzero(training)

        def code(column: Categorical) -> Ids:
            counter = self._counters[column.name]
            codes = counter.code(text_of_series(frame[column.name]))
            counter.count(codes if rows is None else codes.take(rows, mode="clip"))
            return codes

        codes = for_each(self.schema.categorical, code, num_rows=len(frame))
        bags = [self._add_bags(frame, column, training) for column in self.schema.multivalent]
        numbers = numbers_of_frame(frame, [column.name for column in self.schema.numeric], where)
        logged = take_logs(numbers, log_shifts(self.schema.numeric))
        for column, moments in zip(logged.T, self._moments, strict=True):
            moments.add(column if rows is None else column[rows])
        self._num_rows += len(frame)
        return CodedRows(len(frame), codes, bags, logged)

    def _add_bags(self, frame: pl.DataFrame, column: Multivalent, training: NDArray[np.bool_] | None) -> NumpyBag:
        pieces, offsets = pieces_of_series(frame[column.name], column.separator)
        counter = self._counters[column.name]
        codes = counter.code(pieces)
        counter.count(codes if training is None else codes[np.repeat(training, np.diff(offsets))])
        return codes, offsets

    def finish(self) -> tuple[Encoder, dict[str, Ids]]:
        """The encoder, and for each embedded column the table from codes to ids."""
        finished = for_each(self._counters.values(), lambda counter: counter.finish(), num_rows=self._num_rows)
        vocabularies = dict(zip(self._counters, (vocabulary for vocabulary, _ in finished), strict=True))
        tables = dict(zip(self._counters, (table for _, table in finished), strict=True))
        names = [column.name for column in self.schema.numeric]
        statistics = dict(zip(names, (moments.finish() for moments in self._moments), strict=True))
        return Encoder(self.schema, vocabularies, statistics), tables


def _counter(column: Categorical | Multivalent) -> _ValueCounter | _HashCounter:
    return _ValueCounter(column) if column.hash_size is None else _HashCounter(column.hash_size)


class _ValueCounter:
    """Codes values in a growing dictionary, where "" is the first entry and stands for missing values."""

    def __init__(self, column: Categorical | Multivalent) -> None:
        import polars as pl

        self._column = column
        self._type = pl.Categorical(pl.Categories.random())
        self._alive = pl.Series([""], dtype=self._type)  # polars forgets a dictionary that nothing uses any more
        self._counts = np.zeros(1, np.int64)
        self._size = 1

    def code(self, texts: pl.Series) -> Ids:
        codes = texts.cast(self._type).to_physical().fill_null(MISSING_CODE).to_numpy()
        self._size = max(self._size, int(codes.max(initial=0)) + 1)
        return codes

    def count(self, codes: Ids) -> None:
        self._counts = _add(self._counts, np.bincount(codes, minlength=1))

    def finish(self) -> tuple[Vocabulary, Ids]:
        import polars as pl

        often = np.flatnonzero(self._counts >= max(self._column.min_count, 1)).astype(np.uint32)
        often = often[often != MISSING_CODE]
        texts = pl.Series(often).cat.to(self._type).cast(pl.String)
        frame = pl.DataFrame({"text": texts, "code": often, "count": self._counts[often]})
        kept = frame.sort("count", "text", descending=[True, False]).head(self._column.max_size or len(frame))
        codes = kept["code"].to_numpy()
        table = np.full(self._size, UNSEEN_ID, np.uint32)
        table[MISSING_CODE] = MISSING_ID
        table[codes] = np.arange(FIRST_ID, FIRST_ID + len(codes))
        missing, known = self._counts[MISSING_CODE], self._counts[codes]
        counts = np.concatenate([[missing, self._counts.sum() - missing - known.sum()], known])
        letters = np.frombuffer(kept["text"].str.join("").item().encode("utf-8"), np.uint8)
        ends = kept["text"].str.len_bytes().to_numpy().astype(np.int64).cumsum()
        return Vocabulary(letters, ends, counts), table


class _HashCounter:
    """Codes values by their final ids at once."""

    def __init__(self, hash_size: int) -> None:
        self._hash_size = hash_size
        self._counts = np.zeros(FIRST_ID + hash_size, np.int64)

    def code(self, texts: pl.Series) -> Ids:
        return hashed_ids(texts, self._hash_size)

    def count(self, codes: Ids) -> None:
        self._counts = _add(self._counts, np.bincount(codes, minlength=1))

    def finish(self) -> tuple[HashedVocabulary, Ids]:
        return HashedVocabulary(self._counts), np.arange(len(self._counts), dtype=np.uint32)


def _add(counts: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two count arrays, the shorter one meaning zeros at its end."""
    if len(more) > len(counts):
        counts, more = more.astype(np.int64), counts
    counts[: len(more)] += more
    return counts

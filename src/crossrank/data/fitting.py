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
    numbers: Doubles

    def encode(self, encoder: Encoder, tables: Mapping[str, Ids | None]) -> EncodedRows:
        """The rows as the finished encoder sees them; ``tables`` lead from codes to ids."""
        schema = encoder.schema
        ids = [
            _translate(codes, tables[column.name]) for column, codes in zip(schema.categorical, self.codes, strict=True)
        ]
        bags = tuple(
            (_translate(codes, tables[column.name]), offsets)
            for column, (codes, offsets) in zip(schema.multivalent, self.bags, strict=True)
        )
        return EncodedRows(side_by_side(ids, self.num_rows), encoder.scaling.scale(self.numbers), bags)


class EncoderBuilder:
    """Learns an encoder from chunks.

    Cost: memory for the distinct values of the columns that keep a vocabulary, and one chunk.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        embedded: list[Categorical | Multivalent] = [*schema.categorical, *schema.multivalent]
        self._counters = {column.name: _counter(column) for column in embedded}
        self._moments = Moments(len(schema.numeric))

    def add(self, frame: pl.DataFrame, training: NDArray[np.bool_] | None, where: Where) -> CodedRows:
        """Learn from the training rows of a chunk (all if None), and code all of its rows."""
        rows = None if training is None else np.flatnonzero(training)

        def code(column: Categorical) -> Ids:
            counter = self._counters[column.name]
            codes = counter.code(text_of_series(frame[column.name]))
            counter.count(codes if rows is None else codes[rows])
            return codes

        codes = for_each(self.schema.categorical, code, num_rows=len(frame))
        bags = [self._add_bags(frame, column, training) for column in self.schema.multivalent]
        numbers = numbers_of_frame(frame, [column.name for column in self.schema.numeric], where)
        logged = take_logs(numbers, log_shifts(self.schema.numeric))
        self._moments.add(logged if rows is None else logged[rows])
        return CodedRows(len(frame), codes, bags, logged)

    def _add_bags(self, frame: pl.DataFrame, column: Multivalent, training: NDArray[np.bool_] | None) -> NumpyBag:
        pieces, offsets = pieces_of_series(frame[column.name], column.separator)
        counter = self._counters[column.name]
        codes = counter.code(pieces)
        counter.count(codes if training is None else codes[np.repeat(training, np.diff(offsets))])
        return codes, offsets

    def finish(self) -> tuple[Encoder, dict[str, Ids | None]]:
        """The encoder, and for each embedded column the table from codes to ids; None where they are the same."""
        finished = {name: counter.finish() for name, counter in self._counters.items()}
        vocabularies = {name: vocabulary for name, (vocabulary, _) in finished.items()}
        statistics = dict(zip((column.name for column in self.schema.numeric), self._moments.finish(), strict=True))
        return Encoder(self.schema, vocabularies, statistics), {name: table for name, (_, table) in finished.items()}


def _translate(codes: Ids, table: Ids | None) -> Ids:
    return codes if table is None else table[codes]


def _counter(column: Categorical | Multivalent) -> _ValueCounter | _HashCounter:
    return _ValueCounter(column) if column.hash_size is None else _HashCounter(column.hash_size)


class _ValueCounter:
    """Codes values in a growing dictionary, where "" is the first entry and stands for missing values."""

    def __init__(self, column: Categorical | Multivalent) -> None:
        import polars as pl

        self._column = column
        self._categories = pl.Categories.random()
        self._type = pl.Categorical(self._categories)
        self._alive = pl.Series([""], dtype=self._type)  # polars forgets a dictionary that nothing uses any more
        self._counts = np.zeros(1, np.int64)

    def code(self, texts: pl.Series) -> Ids:
        return texts.cast(self._type).to_physical().fill_null(MISSING_CODE).to_numpy()

    def count(self, codes: Ids) -> None:
        self._counts = _add(self._counts, np.bincount(codes, minlength=1))

    def finish(self) -> tuple[Vocabulary, Ids]:
        import polars as pl

        texts = self._categories.to_series()
        seen = _add(self._counts, np.zeros(len(texts), np.int64))
        frame = pl.DataFrame({"text": texts, "count": seen, "code": np.arange(len(texts))}).slice(MISSING_CODE + 1)
        often = frame.filter(pl.col("count") >= self._column.min_count, pl.col("count") > 0)
        kept = often.sort("count", "text", descending=[True, False]).head(self._column.max_size or len(often))
        codes = kept["code"].to_numpy()
        table = np.full(len(texts), UNSEEN_ID, np.uint32)
        table[MISSING_CODE] = MISSING_ID
        table[codes] = np.arange(FIRST_ID, FIRST_ID + len(kept))
        missing, known = seen[MISSING_CODE], seen[codes]
        counts = np.concatenate([[missing, seen.sum() - missing - known.sum()], known])
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

    def finish(self) -> tuple[HashedVocabulary, None]:
        return HashedVocabulary(self._counts), None


def _add(counts: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of two count arrays, the shorter one meaning zeros at its end."""
    if len(more) > len(counts):
        counts, more = more.astype(np.int64), counts
    counts[: len(more)] += more
    return counts

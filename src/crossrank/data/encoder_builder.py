"""One streaming pass that learns vocabularies and statistics, and codes the rows it sees on the way.

A value gets a provisional code when it first appears. The codes can be written down as the pass goes; when it is over
and the frequencies are known, a table per column translates codes into ids. So text is parsed and looked up only once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossrank.data.derived import chunk_with_derived
from crossrank.data.encoder import Encoder
from crossrank.data.multivalent_cells import pieces_of_series
from crossrank.data.number_reader import NumberReader
from crossrank.data.numbers import Doubles
from crossrank.data.on_demand import pl
from crossrank.data.packed_texts import FIRST_CODE, MISSING_CODE, Codes, Places, TextCodes, Words, smallest
from crossrank.data.parallel import for_each
from crossrank.data.rows import EncodedRows, Ids, Positions
from crossrank.data.table import Chunk
from crossrank.data.text import text_of_series
from crossrank.data.vocabulary import FIRST_ID, MISSING_ID, UNSEEN_ID, HashedVocabulary, Vocabulary, hashed_ids
from crossrank.schema import Categorical, Multivalent, Numeric, Schema

Lookups: TypeAlias = dict[str, NDArray[Any]]
Counted: TypeAlias = "tuple[pl.Series | Words, Places]"  # values by their codes from the first on; counts of all codes
CACHED_ROWS = 16_384  # encoded at once: columns are written side by side while the rows are in the caches


@dataclasses.dataclass(frozen=True)
class CodedRows:
    """A chunk between the passes: by column the codes of values, and the codes of numbers or the numbers themselves.

    Numbers are those after their logarithm, with NaN for missing.
    """

    num_rows: int
    codes: list[Codes]
    bags: list[tuple[Codes, Positions]]
    numbers: list[NDArray[Any]]

    def encode(self, encoder: Encoder, lookups: Lookups) -> EncodedRows:
        """The rows as the finished encoder sees them; ``lookups`` lead from codes to ids and numbers of x0."""
        schema = encoder.schema
        ids = np.empty((self.num_rows, len(schema.categorical) + len(encoder.values)), np.uint32)
        floats = np.empty((self.num_rows, sum(slots.width for slots in encoder.numbers.values())), np.float32)

        def fill(start: int) -> None:
            rows = slice(start, start + CACHED_ROWS)
            for place, (column, codes) in enumerate(zip(schema.categorical, self.codes, strict=True)):
                ids[rows, place] = lookups[column.name].take(codes[rows], mode="clip")
            id_place, first = len(schema.categorical), 0
            for (name, slots), values in zip(encoder.numbers.items(), self.numbers, strict=True):
                part, is_code = values[rows], values.dtype != np.float64
                table = lookups[name].take(part, axis=0, mode="clip") if is_code else slots.floats(part)
                floats[rows, first : first + slots.width] = table
                first += slots.width
                if slots.values is not None:
                    known = lookups[slots.value_name]
                    ids[rows, id_place] = known.take(part, mode="clip") if is_code else slots.values.ids(part)
                    id_place += 1

        for_each(range(0, self.num_rows, CACHED_ROWS), fill, num_rows=self.num_rows, stages=2)
        many = zip(schema.multivalent, self.bags, strict=True)
        bags = tuple((lookups[column.name].take(codes, mode="clip"), offsets) for column, (codes, offsets) in many)
        return EncodedRows(ids, floats, bags)


class EncoderBuilder:
    """Learns an encoder from chunks.

    Cost: memory for the distinct values of the columns that keep a vocabulary, and one chunk.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        embedded: list[Categorical | Multivalent] = [*schema.categorical, *schema.multivalent]
        self._counters = {column.name: counter_of(column) for column in embedded}
        self._numbers = {column.name: NumberReader(column, schema) for column in schema.numeric}
        self._num_rows = 0

    def add(self, chunk: Chunk, training: NDArray[np.bool_] | None) -> CodedRows:
        """Learn from the training rows of a chunk (all if None), and code all of its rows."""
        chunk = chunk_with_derived(chunk, self.schema)
        rows = None if training is None or training.all() else np.flatnonzero(training)

        def code(column: Categorical) -> Codes:
            counter, words = self._counters[column.name], chunk.words.get(column.name)
            codes = counter.code(text_of_series(chunk.frame[column.name]) if words is None else words)
            counter.count(codes if rows is None else codes.take(rows, mode="clip"))
            return smallest(codes)

        def read(column: Numeric) -> NDArray[Any]:
            return self._numbers[column.name].add(chunk, rows)

        num_rows = len(chunk.frame)
        codes = for_each(self.schema.categorical, code, num_rows=num_rows, stages=2)
        bags = [self._add_bags(chunk.frame, column, training) for column in self.schema.multivalent]
        numbers = for_each(self.schema.numeric, read, num_rows=num_rows, stages=2)
        self._num_rows += num_rows
        return CodedRows(num_rows, codes, bags, numbers)

    def _add_bags(
        self, frame: pl.DataFrame, column: Multivalent, training: NDArray[np.bool_] | None
    ) -> tuple[Codes, Positions]:
        pieces, offsets = pieces_of_series(frame[column.name], column.separator)
        counter = self._counters[column.name]
        codes = counter.code(pieces)
        counter.count(codes if training is None else codes[np.repeat(training, np.diff(offsets))])
        return smallest(codes), offsets

    def finish(self) -> tuple[Encoder, Lookups]:
        """The encoder, and for each column the table from codes to ids, or to numbers of x0; nothing is added then."""
        finished = for_each(self._counters.values(), lambda counter: counter.finish(), num_rows=self._num_rows)
        vocabularies = dict(zip(self._counters, (vocabulary for vocabulary, _ in finished), strict=True))
        lookups: Lookups = dict(zip(self._counters, (table for _, table in finished), strict=True))
        learned = {name: reader.finish() for name, reader in self._numbers.items()}
        schema = self.schema.with_numeric(column for column, _ in learned.values())
        encoder = Encoder(schema, vocabularies, {name: statistics for name, (_, statistics) in learned.items()})
        lookups |= number_lookups(encoder, [reader.known for reader in self._numbers.values()])
        self._counters.clear()  # their memory is wanted
        return encoder, lookups

    def counted(self, name: str) -> Counted:
        """The values of an embedded column so far, and how often there was each."""
        return self._counters[name].counted()

    def read(self, name: str) -> tuple[Words, Doubles]:
        """The words of a numeric column by their codes, and the numbers that they are."""
        return self._numbers[name].read()


def number_lookups(encoder: Encoder, known: Sequence[Doubles]) -> Lookups:
    """From the codes of numbers to those of x0, and to the ids of their values, given each column's by their codes."""
    lookups: Lookups = {}
    for (name, slots), numbers in zip(encoder.numbers.items(), known, strict=True):
        lookups[name] = slots.floats(numbers)  # (codes, width)
        if slots.values is not None:
            lookups[slots.value_name] = slots.values.ids(numbers)
    return lookups


def counter_of(column: Categorical | Multivalent) -> ValueCounter | HashCounter:
    return ValueCounter(column) if column.hash_size is None else HashCounter(column.hash_size)


class ValueCounter:
    """Codes values in a growing dictionary."""

    def __init__(self, column: Categorical | Multivalent) -> None:
        self._column = column
        self._codes = TextCodes()

    def code(self, texts: pl.Series | Words) -> Ids:
        return self._codes.code(texts if isinstance(texts, np.ndarray) else self._codes.words_of(texts))

    def count(self, codes: Ids) -> None:
        self._codes.count(codes)

    def counted(self) -> Counted:
        return self._codes.values(), self._codes.counts

    def add(self, counted: Counted) -> Ids:
        """What another one counted; returns the code here of each code there."""
        values, counts = counted
        codes = np.append(np.arange(FIRST_CODE, dtype=np.uint32), self.code(values))
        self._codes.count(codes, counts)
        return codes

    def finish(self) -> tuple[Vocabulary, Ids]:
        counted = self._codes.counts
        often = np.flatnonzero(counted >= max(self._column.min_count, 1)).astype(np.uint32)
        often = often[often >= FIRST_CODE]
        frame = pl.DataFrame({"key": self._codes.keys(often), "code": often, "count": counted[often]})
        kept = frame.sort("count", "key", descending=[True, False]).head(self._column.max_size or len(frame))
        codes = kept["code"].to_numpy()
        table = np.full(self._codes.size, UNSEEN_ID, np.uint32)
        table[MISSING_CODE] = MISSING_ID
        table[codes] = np.arange(FIRST_ID, FIRST_ID + len(codes))
        missing, known = counted[MISSING_CODE], counted[codes]
        counts = np.concatenate([[missing, counted.sum() - missing - known.sum()], known])
        return Vocabulary(*self._codes.letters(codes), counts), table


class HashCounter:
    """Codes values by their final ids at once."""

    def __init__(self, hash_size: int) -> None:
        self._hash_size = hash_size
        self._counts = np.zeros(FIRST_ID + hash_size, np.int64)

    def code(self, texts: pl.Series | Words) -> Ids:
        return hashed_ids(texts, self._hash_size)

    def count(self, codes: Ids) -> None:
        np.add.at(self._counts, codes, 1)

    def counted(self) -> Counted:
        return np.empty(0, np.uint64), self._counts

    def add(self, counted: Counted) -> Ids:
        self._counts += counted[1]
        return np.arange(len(self._counts), dtype=np.uint32)

    def finish(self) -> tuple[HashedVocabulary, Ids]:
        return HashedVocabulary(self._counts), np.arange(len(self._counts), dtype=np.uint32)

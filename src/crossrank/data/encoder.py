"""The encoder: what training rows taught about each column, and how a row becomes numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.cell_codes import CellCodes
from crossrank.data.derived import rows_with_derived, with_derived
from crossrank.data.encoder_files import description, load_encoder, save_encoder, tensors
from crossrank.data.forking import use_polars
from crossrank.data.multivalent_cells import pieces_of_series, pieces_of_value
from crossrank.data.number_codes import NumberFloats, NumberSlots, NumberVocabulary
from crossrank.data.numbers import Doubles, Where, in_data_frame, numbers_of_frame, numbers_of_rows
from crossrank.data.on_demand import pl
from crossrank.data.parallel import for_each
from crossrank.data.picking import Cells, Row, cells_of, check_columns
from crossrank.data.rows import EncodedRows, Floats, Ids, NumpyBag, offsets_of, side_by_side
from crossrank.data.scaling import NumericStatistics, Scaling, take_logs
from crossrank.data.text import text_of_series, texts_of_cells
from crossrank.data.vocabulary import MISSING_ID, UNSEEN_ID, UNSEEN_TEXT, AnyVocabulary
from crossrank.errors import SchemaError, did_you_mean, listing
from crossrank.schema import Categorical, Feature, Schema

if TYPE_CHECKING:
    from crossrank.data.table import Table

__all__ = ["MISSING_ID", "UNSEEN_ID", "Encoder"]


class Encoder:
    """Turns raw rows into ids and numbers, the same way in training and serving.

    Args:
        schema: what each column means.
        vocabularies: the ids of each categorical and multivalent column.
        statistics: mean and deviation of each numeric column.
        crosses: the cells of each cross, which :mod:`crossrank.data.crossing` learns from encoded rows.

    Example:
        >>> import polars as pl
        >>> from crossrank.schema import Categorical, Label, Numeric, Schema
        >>> schema = Schema([Categorical(name="country"), Numeric(name="age")], Label(name="click"))
        >>> frame = pl.DataFrame({"country": ["de", "fr", "de", None], "age": [20, 30, 40, None]})
        >>> encoder = Encoder.fit(frame, schema)
        >>> rows = encoder.encode_rows([{"country": "fr", "age": 30}, {"country": "xx", "age": None}])
        >>> rows.categorical.tolist(), rows.numeric.tolist()
        ([[3], [1]], [[0.0], [0.0]])
    """

    def __init__(
        self,
        schema: Schema,
        vocabularies: Mapping[str, AnyVocabulary],
        statistics: Mapping[str, NumericStatistics],
        crosses: Sequence[CellCodes] = (),
    ) -> None:
        self.schema = schema
        self.crosses = {one.cross.name: one for one in crosses}
        self.vocabularies = dict(vocabularies)
        self.statistics = dict(statistics)

    @classmethod
    def fit(
        cls,
        table: Table,
        schema: Schema,
        *,
        assign: Callable[[pl.DataFrame, int], NDArray[np.bool_] | None] | None = None,
        progress: Callable[[int, float], None] | None = None,
    ) -> Encoder:
        """Learn from the training rows of a table, in one pass and without holding it in memory.

        Args:
            table: what :func:`crossrank.data.open_table` opens.
            schema: what each column means.
            assign: which rows of a chunk to learn from, given the chunk and the position of its first row; all if None.
            progress: called with the rows read so far and the share of the table that is done.
        """
        from crossrank.data.encoder_builder import EncoderBuilder
        from crossrank.data.table import open_table

        if schema.crosses:
            raise SchemaError(
                "An encoder is fitted without labels, so its schema must have no crosses; got "
                f"{listing(cross.name for cross in schema.crosses)}.",
                hint="crossrank.data.prepare learns crosses too.",
            )
        table = open_table(table)
        check_columns(schema.inputs, table.columns, table.name)
        builder = EncoderBuilder(schema)
        rows = 0
        for chunk in table.chunks(list(schema.inputs)):
            builder.add(chunk, assign(chunk.frame, chunk.first_row) if assign else None)
            rows += len(chunk.frame)
            if progress:
                progress(rows, chunk.share_done)
        return builder.finish()[0]

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """What a model sees: categorical, multivalent, numeric features, each kind in the order of the schema.

        What crosses add comes last of its kind.
        """
        added = [feature for codes in self.crosses.values() for feature in codes.features]
        sizes = {name: vocabulary.size for name, vocabulary in self.vocabularies.items()}
        return (
            *(Feature(column.name, "categorical", sizes[column.name]) for column in self.schema.categorical),
            *(Feature(name, "categorical", values.size, column=values.column) for name, values in self.values.items()),
            *(feature for feature in added if feature.kind == "categorical"),
            *(Feature(column.name, "multivalent", sizes[column.name]) for column in self.schema.multivalent),
            *(feature for slots in self.numbers.values() for feature in slots.numeric),
            *(feature for feature in added if feature.kind == "numeric"),
        )

    def with_crosses(self, crosses: Sequence[CellCodes]) -> Encoder:
        """The same with these crosses in place of those it has."""
        schema = self.schema.with_crosses([one.cross for one in crosses])
        return Encoder(schema, self.vocabularies, self.statistics, crosses)

    def add_cells(self, rows: EncodedRows) -> EncodedRows:
        """Rows without crosses as they are with them, all training rows being before them."""
        if not self.crosses:
            return rows
        ids, floats = zip(*(one.encode(rows.categorical) for one in self.crosses.values()), strict=True)
        categorical, numeric = (
            np.concatenate([first, *others], axis=1)
            for first, others in ((rows.categorical, ids), (rows.numeric, floats))
        )
        return EncodedRows(categorical, numeric, rows.bags)

    @cached_property
    def numbers(self) -> dict[str, NumberSlots]:
        """How each numeric column fills slots of x0."""
        return {column.name: NumberSlots(column, self.statistics[column.name]) for column in self.schema.numeric}

    @cached_property
    def values(self) -> dict[str, NumberVocabulary]:
        """The bins of the numbers that are embedded by their value, by the name of the slot."""
        return {slots.value_name: slots.values for slots in self.numbers.values() if slots.values is not None}

    @cached_property
    def _number_floats(self) -> NumberFloats | None:
        """None where all numbers are scalars."""
        alone = all(column.encodings == ("scalar",) for column in self.schema.numeric)
        return None if alone else NumberFloats([*self.numbers.values()])

    @cached_property
    def fingerprint(self) -> str:
        """Equal for encoders that give equal answers."""
        digest = hashlib.blake2b(description(self).encode(), digest_size=16)
        for name, array in sorted(tensors(self).items()):
            digest.update(f"{name}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def counts(self, name: str) -> NDArray[np.int64]:
        """Training occurrences of an embedded feature's values by id, missing and unseen included."""
        known = self._counted
        if name not in known:
            raise SchemaError(f"Counts are kept for {listing(known)}; got '{name}'.", hint=did_you_mean(name, known))
        return known[name].counts

    @cached_property
    def _counted(self) -> dict[str, AnyVocabulary | NumberVocabulary | CellCodes]:
        crosses = {name: one for name, one in self.crosses.items() if one.cross.ids}
        return {**self.vocabularies, **self.values, **crosses}

    def encode(self, frame: pl.DataFrame, *, where: Where = in_data_frame) -> EncodedRows:
        """Encode the feature columns of a data frame; other columns and their order do not matter.

        Args:
            frame: the rows.
            where: the place of a row, for messages.

        Raises:
            SchemaError: for a column that is missing.
            DataError: for a number that cannot be read.
        """
        use_polars()
        check_columns(self.schema.inputs, frame.columns, "the data frame")
        frame = with_derived(frame, self.schema, where)

        def look_up(column: Categorical) -> Ids:
            return self.vocabularies[column.name].ids(text_of_series(frame[column.name]))

        ids = for_each(self.schema.categorical, look_up, num_rows=len(frame))
        bags = []
        for column in self.schema.multivalent:
            pieces, offsets = pieces_of_series(frame[column.name], column.separator)
            bags.append((self.vocabularies[column.name].ids(pieces), offsets))
        value_ids, floats = self.number_slots(numbers_of_frame(frame, self.schema.numeric, where))
        return self.add_cells(EncodedRows(side_by_side([*ids, *value_ids], len(frame)), floats, tuple(bags)))

    def encode_rows(self, rows: Sequence[Mapping[str, object]]) -> EncodedRows:
        """Encode rows given as dictionaries, without polars; the same numbers as :meth:`encode`.

        Raises:
            SchemaError: for a column that is missing; a missing value is None.
            DataError: for a number that cannot be read.
        """
        for position, row in enumerate(rows, 1):
            if not self._needed <= row.keys():
                check_columns(self.schema.inputs, row, f"row {position:,}")
        rows = rows_with_derived(rows, self.schema)
        categories, numbers = self._picked
        texts = [texts_of_cells(categories(row)) for row in rows]
        ids = [[id_of(text) for id_of, text in zip(self._lookups, row, strict=True)] for row in texts]
        bags: list[NumpyBag] = []
        for column in self.schema.multivalent:
            id_of = self.vocabularies[column.name].id_of
            cells = [[id_of(text) for text in pieces_of_value(row[column.name], column.separator)] for row in rows]
            bag_ids = np.fromiter(chain.from_iterable(cells), np.uint32)
            bags.append((bag_ids, offsets_of(np.array([len(cell) for cell in cells], np.int64))))
        categorical = np.array(ids, np.uint32).reshape(len(rows), len(self._lookups))
        value_ids, floats = self.number_slots(numbers_of_rows([numbers(row) for row in rows], self.schema.numeric))
        if value_ids:
            categorical = np.concatenate([categorical, *(column[:, None] for column in value_ids)], axis=1)
        return self.add_cells(EncodedRows(categorical, floats, tuple(bags)))

    @cached_property
    def _needed(self) -> Set[str]:
        return frozenset(self.schema.inputs)

    @cached_property
    def _picked(self) -> tuple[Callable[[Row], Cells], Callable[[Row], Cells]]:
        """What takes the categorical and the numeric cells out of a row."""
        categorical, numeric = self.schema.categorical, self.schema.numeric
        return cells_of([column.name for column in categorical]), cells_of([column.name for column in numeric])

    @cached_property
    def _lookups(self) -> list[Callable[[str | None], int]]:
        return [self.vocabularies[column.name].id_of for column in self.schema.categorical]

    @cached_property
    def scaling(self) -> Scaling:
        """How numbers are made fit for a network."""
        return Scaling(self.schema.numeric, self.statistics)

    def number_slots(self, numbers: Doubles) -> tuple[list[Ids], Floats]:
        """The ids of the slots of values, each (N,), and all numeric slots: (N, C) -> (N, W)."""
        logged = take_logs(numbers, self.scaling.shifts)
        scaled = self.scaling.scale(logged)
        if self._number_floats is None:
            return [], scaled
        ids = [one.values.ids(logged[:, k]) for k, one in enumerate(self.numbers.values()) if one.values is not None]
        return ids, self._number_floats.of(logged, scaled)

    def raw_numbers(self, rows: EncodedRows) -> Doubles:
        """The numbers behind encoded rows, a column for each numeric one of the schema; NaN where known to be missing.

        Shape: N rows -> (N, C).
        """
        numbers = np.empty((len(rows), len(self.numbers)))
        start, ids = 0, iter(rows.categorical.T[len(self.schema.categorical) :])
        for place, slots in enumerate(self.numbers.values()):
            floats = rows.numeric[:, start : start + slots.width]
            numbers[:, place] = slots.numbers(floats, next(ids) if slots.values is not None else None)
            start += slots.width
        return numbers

    def decode(self, rows: EncodedRows) -> dict[str, list[Any]]:
        """The values behind encoded rows; what was not seen in training reads ``<unseen>``, what was missing None.

        Numbers come back within float32 accuracy, or as the middle of their bin where they are nothing but its id. A
        missing number that is encoded as a scalar alone comes back as the mean it was replaced with.
        """
        values: dict[str, list[Any]] = {}
        for position, column in enumerate(self.schema.categorical):
            values[column.name] = self._texts(column.name, rows.categorical[:, position])
        for many, (ids, offsets) in zip(self.schema.multivalent, rows.bags, strict=True):
            texts = self._texts(many.name, ids)
            cells = [texts[start:stop] for start, stop in pairwise(offsets)]
            values[many.name] = [None if cell == [None] else cell for cell in cells]
        for name, numbers in zip(self.numbers, self.raw_numbers(rows).T, strict=True):
            values[name] = [None if np.isnan(number) else number for number in numbers.tolist()]
        return values

    def _texts(self, name: str, ids: NDArray[np.integer]) -> list[str | None]:
        special = {MISSING_ID: None, UNSEEN_ID: UNSEEN_TEXT}
        text_of = self.vocabularies[name].text_of
        return [special[id_] if id_ in special else text_of(id_) for id_ in ids.tolist()]

    def save(self, folder: Path) -> None:
        """Write ``encoder.json`` and ``vocabulary.safetensors`` into a folder."""
        save_encoder(self, folder)

    @classmethod
    def load(cls, folder: Path | str) -> Encoder:
        """Read what :meth:`save` wrote; needs no polars."""
        return load_encoder(cls, Path(folder))

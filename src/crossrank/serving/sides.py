"""Which columns are the context's and which the item's, and rows put together from both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossrank.data import Encoder
from crossrank.data.encoder import check_columns
from crossrank.data.rows import EncodedRows, NumpyBag
from crossrank.errors import SchemaError, did_you_mean, listing
from crossrank.schema import InputLayout, Schema
from crossrank.serving.polynomial import Sides

if TYPE_CHECKING:
    import polars as pl

    from crossrank.data.numbers import Where


def item_columns(schema: Schema, present: Iterable[str], source: str, given: Sequence[str] | None) -> frozenset[str]:
    """The columns of a table that describe an item: those given, or declared in the schema, or found in the catalogue.

    Args:
        schema: each column may have a side.
        present: the columns of the catalogue.
        source: what messages call it.
        given: the item's columns where the caller names them, whatever the schema says.

    Raises:
        SchemaError: where these disagree.
    """
    present = set(present)
    for name in given or ():
        if name not in schema.inputs:
            raise SchemaError(
                f"The item's columns must be columns of the schema, {listing(schema.inputs)}; got '{name}'.",
                hint=did_you_mean(name, schema.inputs),
            )
    declared = {column.input: column.side for column in schema.in_table if column.side is not None}
    if given is not None:
        declared = {name: "item" if name in given else "context" for name in schema.inputs}
    check_columns([name for name, side in declared.items() if side == "item"], present, source)
    for name, side in declared.items():
        if given is None and side == "context" and name in present:
            raise SchemaError(
                f"Column '{name}' is the context's by the schema, so {source} must not have it; it does.",
                hint="Leave it out there, or name the item's columns: Ranker.open(run, item=[...]).",
            )
    found = frozenset(name for name in schema.inputs if declared.get(name, "item") == "item" and name in present)
    if not found:
        raise SchemaError(
            f"{source[0].upper()}{source[1:]} must have columns of the schema, {listing(schema.inputs)}; got "
            f"{listing(sorted(present))}."
        )
    return found


class Joiner:
    """Encodes the two halves of rows, and puts halves together.

    Args:
        encoder: of the run.
        item: the columns of a table that describe an item; the others are the context's.
    """

    def __init__(self, encoder: Encoder, item: frozenset[str]) -> None:
        self.encoder, self.plain = encoder, encoder.with_crosses([])
        self.item = item
        inputs = encoder.schema.inputs
        self.inputs = {True: [n for n in inputs if n in item], False: [n for n in inputs if n not in item]}
        features = self.plain.features
        sides = {column.name: column.input in item for column in encoder.schema.encoded}
        self.sides: dict[str, bool | None] = dict(sides)  # of each column: is it the item's? None: both
        for cross in encoder.schema.crosses:
            of = {sides[name] for name in cross.of}
            self.sides[cross.name] = of.pop() if len(of) == 1 else None
        by_kind = {
            kind: [sides[one.column] for one in features if one.kind == kind for _ in range(one.width)]
            for kind in ("categorical", "multivalent", "numeric")
        }
        self._ids, self._numbers = np.array(by_kind["categorical"], bool), np.array(by_kind["numeric"], bool)
        self._bags = by_kind["multivalent"]

    @property
    def shared(self) -> list[str]:
        """The crosses of both sides."""
        return [name for name, side in self.sides.items() if side is None]

    def places(self, layout: InputLayout) -> Sides:
        """Where in x0 each side stands."""
        parts: dict[bool | None, list[int]] = {True: [], False: []}
        for slot in layout.slots:
            parts[self.sides[slot.column]] += range(slot.start, slot.stop)
        return Sides(*(torch.tensor(parts[side], dtype=torch.int64) for side in (False, True)))

    def half_rows(self, rows: Sequence[Mapping[str, Any]], *, item: bool, called: str) -> EncodedRows:
        """Dictionaries with the columns of one side; the other side is missing."""
        for position, row in enumerate(rows, 1):
            check_columns(self.inputs[item], row, f"{called} {position:,}" if item else called)
        blank = dict.fromkeys(self.encoder.schema.inputs)
        return self.plain.encode_rows([{**blank, **{name: row[name] for name in self.inputs[item]}} for row in rows])

    def half_frame(self, frame: pl.DataFrame, where: Where) -> EncodedRows:
        """The same of a data frame of items."""
        import polars as pl

        blank = (pl.lit(None, pl.String).alias(name) for name in self.inputs[False])
        return self.plain.encode(frame.select(self.inputs[True]).with_columns(blank), where=where)

    def whole(self, rows: EncodedRows) -> EncodedRows:
        """Halves with the crosses of their own columns."""
        return self.encoder.add_cells(rows)

    def joined(self, context: EncodedRows, items: EncodedRows) -> EncodedRows:
        """One context with each item, complete."""
        count = len(items)
        bags: list[NumpyBag] = []
        for own, ours, theirs in zip(self._bags, items.bags, context.bags, strict=True):
            ids, offsets = theirs
            bags.append(ours if own else (np.tile(ids, count), np.arange(count + 1) * offsets[-1]))
        return self.encoder.add_cells(
            dataclasses.replace(
                items,
                categorical=np.where(self._ids, items.categorical, context.categorical),
                numeric=np.where(self._numbers, items.numeric, context.numeric),
                bags=tuple(bags),
            )
        )

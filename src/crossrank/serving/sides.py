"""Which columns are the context's and which the item's, and rows put together from both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from crossrank.data import Encoder
from crossrank.data.on_demand import pl
from crossrank.data.picking import check_columns
from crossrank.data.rows import EncodedRows
from crossrank.errors import SchemaError, did_you_mean, listing
from crossrank.schema import InputLayout, Schema
from crossrank.schema.layout import Slot

if TYPE_CHECKING:
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
        self._blank = dict.fromkeys(inputs)
        features = self.plain.features
        sides = {column.name: column.input in item for column in encoder.schema.encoded}
        self.sides: dict[str, bool | None] = dict(sides)  # of each column: is it the item's? None: both
        self.shared: dict[str, list[bool]] = {}  # the crosses of both sides: which of their columns are the item's
        for cross in encoder.schema.crosses:
            of = [sides[name] for name in cross.of]
            self.sides[cross.name] = of[0] if len({*of}) == 1 else None
            if self.sides[cross.name] is None:
                self.shared[cross.name] = of
        by_kind = {
            kind: [sides[one.column] for one in features if one.kind == kind for _ in range(one.width)]
            for kind in ("categorical", "multivalent", "numeric")
        }
        self._ids, self._numbers = np.array(by_kind["categorical"], bool), np.array(by_kind["numeric"], bool)
        self._bags = by_kind["multivalent"]

    def places(self, layout: InputLayout) -> tuple[Tensor, Tensor, Tensor]:
        """Where in x0 the context stands, where the item, and where the crosses of both, one cross after the other."""
        shared = [slot for name in self.shared for slot in layout.slots if slot.column == name]
        context, item = ([slot for slot in layout.slots if self.sides[slot.column] is own] for own in (False, True))
        return _places(context), _places(item), _places(shared)

    def half_rows(self, rows: Sequence[Mapping[str, Any]], *, item: bool, called: str) -> EncodedRows:
        """Dictionaries with the columns of one side; the other side is missing."""
        for position, row in enumerate(rows, 1):
            check_columns(
                self.inputs[item], row, f"{called} {position:,}" if item or len(rows) > 1 else f"the {called}"
            )
        own = self.inputs[item]
        return self.plain.encode_rows([self._blank | {name: row[name] for name in own} for row in rows])

    def half_frame(self, frame: pl.DataFrame, where: Where) -> EncodedRows:
        """The same of a data frame of items."""
        blank = (pl.lit(None, pl.String).alias(name) for name in self.inputs[False])
        return self.plain.encode(frame.select(self.inputs[True]).with_columns(blank), where=where)

    def joined(self, contexts: EncodedRows, items: EncodedRows) -> EncodedRows:
        """Each context with each item, complete: those of the first context first."""
        theirs = contexts.take(np.repeat(np.arange(len(contexts)), len(items)))
        ours = items.take(np.tile(np.arange(len(items)), len(contexts)))
        bags = zip(self._bags, ours.bags, theirs.bags, strict=True)
        return self.encoder.add_cells(
            EncodedRows(
                np.where(self._ids, ours.categorical, theirs.categorical),
                np.where(self._numbers, ours.numeric, theirs.numeric),
                tuple(own if of_item else other for of_item, own, other in bags),
            )
        )


def _places(slots: Sequence[Slot]) -> Tensor:
    return torch.tensor([place for slot in slots for place in range(slot.start, slot.stop)], dtype=torch.int64)

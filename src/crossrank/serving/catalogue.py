"""A table of items, and what is known of each before any request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from crossrank.data.picking import check_columns
from crossrank.data.rows import SCORING_ROWS, EncodedRows, concatenate_encoded
from crossrank.data.table import open_table
from crossrank.errors import DataError, did_you_mean
from crossrank.serving.pairing import Known, KnownItems, Pairing
from crossrank.serving.pruning import Pruning

Precision = Literal["float32", "bfloat16"]
NAME = "the catalogue"
FEW = 2_000  # ids that an unknown one is compared with; to compare 10,000 took 38 ms


class Items(NamedTuple):
    """Some items as they were given: their columns, how many, and chunks of ids, encoded halves and raw rows."""

    columns: Sequence[str]
    chunks: Callable[[Pairing, str], Iterator[tuple[list[Any], EncodedRows, Sequence[Mapping[str, Any]]]]]


class Catalogue:
    """The items of a ranker.

    Args:
        pairing: the model with its sides.
        source: what :func:`open_items` opened.
        id_column: the column that names an item.
        precision: of the numbers that are kept; bfloat16 halves them.
    """

    def __init__(self, pairing: Pairing, source: Items, *, id_column: str, precision: Precision) -> None:
        check_columns([id_column], source.columns, NAME)
        self.pairing, self.id_column = pairing, id_column
        self.ids: list[Any] = []
        self.raw: list[Sequence[Mapping[str, Any]]] = []
        known: list[Known] = []
        blank = pairing.joiner.half_rows([dict.fromkeys(pairing.joiner.inputs[False])], item=False, called="context")
        for ids, rows, raw in source.chunks(pairing, id_column):
            pairing.check(blank, rows)
            self.ids += ids
            self.raw.append(raw)
            part = pairing.know(rows)
            if isinstance(part, KnownItems):
                part = dataclasses.replace(part, rows=part.rows.to(getattr(torch, precision)))
            known.append(part)
        if not self.ids:
            raise DataError("A catalogue must have at least one item; got none.")
        joined: Known = (
            KnownItems.joined([one for one in known if isinstance(one, KnownItems)])
            if isinstance(known[0], KnownItems)
            else concatenate_encoded([one for one in known if isinstance(one, EncodedRows)])
        )
        self.known = pairing.with_products(joined)
        pairing.know_values()
        self.place_of = {id_: place for place, id_ in enumerate(self.ids)}
        if len(self.place_of) < len(self.ids):
            twice = next(id_ for place, id_ in enumerate(self.ids) if self.place_of[id_] != place)
            raise DataError(
                f"Each item must have an id of its own; '{twice}' is that of several rows of column '{id_column}'.",
                hint="Keep one row for each item.",
            )
        self._places = _places_of_numbers(self.ids)
        self.pruning = Pruning.of(
            pairing, self.known
        )  # tells the items that may be the best; None where all are scored

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bytes_per_item(self) -> float:
        """The memory that is read to score an item."""
        if isinstance(self.known, KnownItems):
            return self.known.bytes_each
        arrays = [self.known.categorical, self.known.numeric, *(part for bag in self.known.bags for part in bag)]
        return sum(array.nbytes for array in arrays) / len(self)

    def places(self, ids: Sequence[Any]) -> NDArray[np.int64]:
        """Where items stand."""
        if self._places is not None and set(map(type, ids)) == {int}:
            numbers = np.array(ids)
            inside = numbers[(numbers >= 0) & (numbers < len(self._places))].astype(np.int64)
            places: NDArray[np.int64] = self._places[inside]
            if len(places) == len(ids) and (places >= 0).all():
                return places
        try:
            return np.array([self.place_of[id_] for id_ in ids], np.int64)
        except (KeyError, TypeError):
            unknown = next(id_ for id_ in ids if not _known(id_, self.place_of))
            near = did_you_mean(str(unknown), map(str, self.ids)) if len(self) < FEW else ""
            raise DataError(f"A candidate must be an item of the catalogue; got {unknown!r}.", hint=near) from None

    def take(self, places: NDArray[np.int64]) -> Known:
        return self.known.take(places)

    def row(self, id_: Any) -> Mapping[str, Any]:
        """An item as it was given."""
        place = self.place_of[id_]
        for part in self.raw:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(place)


def _places_of_numbers(ids: Sequence[Any]) -> NDArray[np.int64] | None:
    """Where the item of each number stands, -1 for no item; None where ids are others, or too far apart.

    One look into an array costs a fraction of one into a dictionary that the processor's caches do not hold.
    """
    if not all(type(id_) is int for id_ in ids) or min(ids) < 0 or max(ids) >= 8 * len(ids) + 1024:
        return None
    places = np.full(max(ids) + 1, -1, np.int64)
    places[ids] = np.arange(len(ids))
    return places


def _known(id_: Any, places: Mapping[Any, int]) -> bool:
    try:
        return id_ in places
    except TypeError:
        return False


class _FrameRows(Sequence[Mapping[str, Any]]):
    """The rows of a data frame as dictionaries."""

    def __init__(self, frame: Any) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return int(self.frame.height)

    def __getitem__(self, place: Any) -> Any:
        return self.frame.row(place, named=True)


def open_items(source: Any) -> Items:
    """A list of dictionaries, a data frame, or a path to a table."""
    if isinstance(source, list) and all(isinstance(row, Mapping) for row in source):
        return Items(list(source[0]) if source else [], lambda pairing, id_: _chunks_of_rows(source, pairing, id_))
    table = open_table(source)

    def chunks(pairing: Pairing, id_: str) -> Iterator[Any]:
        wanted = list(dict.fromkeys([id_, *pairing.joiner.inputs[True]]))
        for chunk in table.chunks(wanted, rows=SCORING_ROWS):
            rows = pairing.joiner.half_frame(chunk.frame, chunk.where)
            yield chunk.frame[id_].to_list(), rows, _FrameRows(chunk.frame)

    return Items(table.columns, chunks)


def _chunks_of_rows(rows: list[Mapping[str, Any]], pairing: Pairing, id_: str) -> Iterator[Any]:
    for start in range(0, len(rows), SCORING_ROWS):
        some = rows[start : start + SCORING_ROWS]
        for position, row in enumerate(some, start + 1):
            check_columns([id_], row, f"item {position:,} of {NAME}")
        yield [row[id_] for row in some], pairing.joiner.half_rows(some, item=True, called="item"), some

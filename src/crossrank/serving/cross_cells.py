"""The cells of crosses of a context's and an item's columns, found for one context and many items at once.

A context's values are those of few cells, which stand side by side where the cells are sorted by them; which of these
is an item's is told by one number of the item, known before any request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from crossrank.data.cell_codes import CellCodes, CellKeys
from crossrank.data.rows import Ids, Positions

NO_CELL = np.array([2**64 - 1], np.uint64)  # a key is smaller
OFTEN = 8  # a look into a table is this much faster than a search


class SharedCells:
    """The cells of one cross.

    Args:
        codes: what the training rows taught about them.
        of_item: of each column of the cross, whether it is the item's.

    Attributes:
        ids, numbers: of each cell, what the encoder makes of it; the last one stands for all cells that are not known.
    """

    def __init__(self, codes: CellCodes, of_item: Sequence[bool]) -> None:
        columns = [[place for place, own in enumerate(of_item) if own is side] for side in (False, True)]
        cells, sizes = codes.cells.ids(codes.keys), codes.cells.sizes
        keys = [CellKeys(tuple(own), tuple(sizes[i] for i in own)).keys(cells) for own in columns]
        order = np.lexsort(keys[::-1])
        self._context, self._item = (
            CellKeys(tuple(codes.cells.places[i] for i in own), tuple(sizes[i] for i in own)) for own in columns
        )
        self._contexts, starts = np.unique(keys[0][order], return_index=True)
        self._starts = np.append(starts, len(order))
        self._items, numbers = np.unique(keys[1], return_inverse=True)
        self._cells = numbers[order].astype(np.uint32)  # the item's number, ascending among those of a context
        self.ids, self.numbers = codes.encode_keys(np.append(codes.keys[order], NO_CELL))

    def items(self, categorical: Ids) -> NDArray[np.uint32]:
        """The number of each item, the largest for one of no cell: (N, F) -> (N,)."""
        keys = self._item.keys(categorical)
        places = np.searchsorted(self._items, keys)
        known = self._items[places.clip(max=len(self._items) - 1)] == keys
        return np.where(known, places, len(self._items)).astype(np.uint32)

    def of_contexts(self, categorical: Ids, num_items: int) -> list[Callable[[NDArray[np.uint32]], Positions]]:
        """For each context, what finds the cells of items by their numbers: (N,) -> (N,)."""
        keys = self._context.keys(categorical)
        places = np.searchsorted(self._contexts, keys).clip(max=len(self._contexts) - 1)
        known = self._contexts[places] == keys
        starts, stops = self._starts[places], np.where(known, self._starts[places + 1], self._starts[places])
        return [self._finder(*ends, num_items) for ends in zip(starts.tolist(), stops.tolist(), strict=True)]

    def _finder(self, start: int, stop: int, num_items: int) -> Callable[[NDArray[np.uint32]], Positions]:
        cells, unknown = self._cells[start:stop], len(self._cells)
        if not len(cells):
            return lambda items: np.full(len(items), unknown)
        if OFTEN * num_items > len(self._items):
            table = np.full(len(self._items) + 1, unknown)
            table[cells] = np.arange(start, stop)
            return lambda items: table[items]

        def find(items: NDArray[np.uint32]) -> Positions:
            places = np.searchsorted(cells, items).clip(max=len(cells) - 1)
            return np.where(cells[places] == items, start + places, unknown)

        return find

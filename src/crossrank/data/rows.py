"""Encoded rows as plain numpy arrays; torch is imported where they become tensors, because preparing needs none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from crossrank.nn.features import Features

Ids: TypeAlias = NDArray[np.uint32]
Floats: TypeAlias = NDArray[np.float32]
Positions: TypeAlias = NDArray[np.int64]
NumpyBag: TypeAlias = tuple[Ids, Positions]
SCORING_ROWS = 8192  # rows scored at a time; fixed, since the sum order inside a matrix product may depend on it


@dataclass(frozen=True)
class EncodedRows:
    """N encoded rows.

    Shape: categorical (N, F), numeric (N, M); per multivalent column ids (total,) and offsets (N + 1,), where row i
    owns ``ids[offsets[i]:offsets[i + 1]]``. Where the last K numbers depend on an order of the rows (training rows with
    statistics of crosses), ``orders`` (N, O - 1, K) are these numbers in the other orders.
    """

    categorical: Ids
    numeric: Floats
    bags: tuple[NumpyBag, ...] = ()
    orders: Floats | None = None

    def __len__(self) -> int:
        return len(self.categorical)

    def features(self) -> Features:
        """The same rows as tensors that share this memory; ids as int32, the smallest type that torch indexes with."""
        import torch

        from crossrank.nn.features import Bag, Features

        bags = tuple(
            Bag(id_tensor(ids), torch.from_numpy(np.require(offsets, None, "W"))) for ids, offsets in self.bags
        )
        return Features(id_tensor(self.categorical), torch.from_numpy(self.numeric), bags)

    def take(self, rows: Positions, *, epoch: int = 0) -> EncodedRows:
        """A copy of some rows, in the given order, with the numbers of an epoch."""
        bags = tuple(_take_bag(bag, rows) for bag in self.bags)
        numeric, other = _take(self.numeric, rows), self.numbers_in(epoch)
        if other is not None:
            numeric[:, -other.shape[1] :] = other[rows]
        return EncodedRows(_take(self.categorical, rows), numeric, bags)

    def slice(self, start: int, stop: int) -> EncodedRows:
        """A copy of consecutive rows."""
        bags = tuple(_slice_bag(bag, start, stop) for bag in self.bags)
        return EncodedRows(self.categorical[start:stop].copy(), self.numeric[start:stop].copy(), bags)

    def numbers_in(self, epoch: int) -> Floats | None:
        """The last K numbers in the order that is an epoch's turn; None where they are those of ``numeric``: (N, K)."""
        turn = 0 if self.orders is None else epoch % (self.orders.shape[1] + 1)
        return None if self.orders is None or turn == 0 else self.orders[:, turn - 1]


@dataclass(frozen=True)
class LabeledRows:
    """N encoded rows with labels (N,), or (N, K) of K tasks, nan where one is not known; and where there are any
    weights, group numbers and ranks of times, (N,) each."""

    encoded: EncodedRows
    labels: Floats
    weights: Floats | None = None
    groups: Ids | None = None
    times: Ids | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Positions, *, epoch: int = 0) -> LabeledRows:
        """A copy of some rows, in the given order, with the numbers of an epoch."""
        return self._each(self.encoded.take(rows, epoch=epoch), lambda array: _take(array, rows))

    def slice(self, start: int, stop: int) -> LabeledRows:
        """A copy of consecutive rows."""
        return self._each(self.encoded.slice(start, stop), lambda array: array[start:stop].copy())

    def _each(self, encoded: EncodedRows, change: Callable[[Any], Any]) -> LabeledRows:
        others = (None if array is None else change(array) for array in (self.weights, self.groups, self.times))
        return LabeledRows(encoded, change(self.labels), *others)


def concatenate_encoded(parts: Sequence[EncodedRows]) -> EncodedRows:
    """The same of rows without labels."""
    bags = []
    for column in zip(*(part.bags for part in parts), strict=True):
        lengths = np.concatenate([np.diff(offsets) for _, offsets in column])
        bags.append((np.concatenate([ids for ids, _ in column]), offsets_of(lengths)))
    categorical = np.concatenate([part.categorical for part in parts])
    return EncodedRows(categorical, np.concatenate([part.numeric for part in parts]), tuple(bags))


def concatenate(parts: Sequence[LabeledRows]) -> LabeledRows:
    """Rows of several parts, one after the other."""

    def join(arrays: Sequence[Any]) -> Any:
        return None if arrays[0] is None else np.concatenate(arrays)

    encoded = concatenate_encoded([part.encoded for part in parts])
    targets = zip(*((part.labels, part.weights, part.groups, part.times) for part in parts), strict=True)
    return LabeledRows(encoded, *map(join, targets))


def id_tensor(ids: Ids) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.require(ids, None, "W").view(np.int32))  # data frames lend read-only memory


def side_by_side(columns: Sequence[Ids], num_rows: int) -> Ids:
    """F columns of N ids -> (N, F)."""
    ids = np.empty((num_rows, len(columns)), np.uint32)
    for position, column in enumerate(columns):
        ids[:, position] = column
    return ids


def offsets_of(lengths: NDArray[np.integer]) -> Positions:
    """Where each row starts, and after the last where it ends: (N,) -> (N + 1,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _take(array: Any, rows: Positions) -> Any:
    out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    return np.take(array, rows, axis=0, out=out, mode="clip")  # mode "raise" would copy through a buffer


def _take_bag(bag: NumpyBag, rows: Positions) -> NumpyBag:
    ids, offsets = bag
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    taken = offsets_of(lengths)
    shift = np.repeat(starts - taken[:-1], lengths)  # from a place in the new ids to its place in the old
    return ids[shift + np.arange(taken[-1])], taken


def _slice_bag(bag: NumpyBag, start: int, stop: int) -> NumpyBag:
    ids, offsets = bag
    cut = offsets[start : stop + 1]
    return ids[cut[0] : cut[-1]].copy(), cut - cut[0]

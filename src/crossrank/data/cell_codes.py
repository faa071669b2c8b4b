"""How a cross of columns fills slots of x0: the ids of cells, and their statistics.

A cell is told by the encoded ids of its columns, as one number: ``key = (id_1 v_2 + id_2) v_3 + id_3 …`` with the
vocabulary sizes v. So encoded rows are enough, and a raw table is not needed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossrank.data.ordered import FIRST_FORM, Form, Prior, statistics
from crossrank.data.rows import Floats, Ids, Positions
from crossrank.data.vocabulary import FIRST_ID, UNSEEN_ID
from crossrank.errors import SchemaError, did_you_mean, listing
from crossrank.schema import Cross, Feature, LabelKind

Keys = NDArray[np.uint64]


@dataclasses.dataclass(frozen=True)
class CellKeys:
    """Cells as numbers: the places of their columns among the encoded ids, and the columns' vocabulary sizes."""

    places: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def of(cls, columns: Sequence[str], features: Sequence[Feature]) -> CellKeys:
        """The cells of some columns out of the features that an encoder makes."""
        single = {feature.column: feature for feature in features if feature.kind == "categorical"}
        for name in columns:
            if name not in single:
                raise SchemaError(
                    f"A cross is of columns whose values have ids, one in each row: {listing(single)}; got '{name}'.",
                    hint=did_you_mean(name, single) or "A number has ids where its encoding has values.",
                )
        sizes = tuple(single[name].vocab_size for name in columns)
        if math.prod(sizes) >= 2**64:
            raise SchemaError(
                f"A cross must have fewer than 2^64 possible cells; {listing(columns)} have {math.prod(sizes):.1e}.",
                hint="Cross fewer columns, or keep fewer of their values.",
            )
        return cls(tuple([*single].index(name) for name in columns), sizes)

    def keys(self, categorical: Ids) -> Keys:
        """(N, F) -> (N,)"""
        keys = np.zeros(len(categorical), np.uint64)
        for place, size in zip(self.places, self.sizes, strict=True):
            keys = keys * np.uint64(size) + categorical[:, place]
        return keys

    def ids(self, keys: Keys) -> Ids:
        """The ids in each of the columns: (N,) -> (N, number of columns)."""
        columns = []
        for size in reversed(self.sizes):
            keys, ids = np.divmod(keys, np.uint64(size))
            columns.append(ids.astype(np.uint32))
        return np.stack(columns[::-1], axis=1)


class CellCodes:
    """What training rows taught about the cells of a cross.

    Args:
        cross: of which columns.
        cells: how they are told.
        known: their keys in order, how many training rows each had, and the sum of these rows' labels: (C,) each.
        prior: of all training rows.
        kind: of the label.
        form: of the statistics.
    """

    def __init__(
        self,
        cross: Cross,
        cells: CellKeys,
        known: tuple[Keys, NDArray[np.int64], NDArray[np.float64]],
        prior: Prior,
        kind: LabelKind,
        form: Form,
    ) -> None:
        self.cross, self.cells, self.prior, self.kind, self.form = cross, cells, prior, kind, form
        self._keys, self._counts, self._sums = known
        often = np.flatnonzero(self._counts >= cross.min_count)
        self._kept = often[np.lexsort((often, -self._counts[often]))]  # by id: the most frequent first
        self._ids = np.full(len(self._keys), UNSEEN_ID, np.uint32)
        self._ids[self._kept] = np.arange(FIRST_ID, FIRST_ID + len(self._kept))

    @property
    def keys(self) -> Keys:
        """Of the cells of the training rows, in order."""
        return self._keys

    @property
    def num_cells(self) -> int:
        return len(self._keys)

    @property
    def size(self) -> int:
        """How many ids there are."""
        return FIRST_ID + len(self._kept)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Training rows by id; a cell is never missing."""
        kept = self._counts[self._kept]
        return np.concatenate([[0, self._counts.sum() - kept.sum()], kept])

    def ids_of(self, id_: int) -> list[int]:
        """The id in each of its columns of a cell that has an id."""
        ids: list[int] = self.cells.ids(self._keys[self._kept[[id_ - FIRST_ID]]])[0].tolist()
        return ids

    def means(self) -> Floats:
        """The mean of the statistics over the training rows: (0 or 2,)."""
        found = statistics(self._counts, self._sums, self.prior, self.kind, self.form)
        means: Floats = (self._counts @ found / self._counts.sum()).astype(np.float32)
        return means[: 2 * self.cross.statistics]

    @property
    def features(self) -> tuple[Feature, ...]:
        cross = self.cross
        ids = Feature(cross.name, "categorical", self.size, embedding_dim=cross.width)
        numbers = Feature(cross.statistics_name, "numeric", 0, 2, cross.name)
        return (*([ids] if cross.ids else []), *([numbers] if cross.statistics else []))

    def encode(self, categorical: Ids) -> tuple[Ids, Floats]:
        """The id of each row's cell, and its statistics over all training rows: (N, F) -> (N, 0 or 1), (N, 0 or 2)."""
        return self.encode_keys(self.cells.keys(categorical))

    def encode_keys(self, keys: Keys) -> tuple[Ids, Floats]:
        """The same of cells told by their keys: (N,) -> (N, 0 or 1), (N, 0 or 2)."""
        places = self.find(keys)
        seen = self._keys[places] == keys
        ids = np.where(seen, self._ids[places], np.uint32(UNSEEN_ID))[:, None]
        counts, sums = (np.where(seen, known[places], 0) for known in (self._counts, self._sums))
        numbers = statistics(counts, sums, self.prior, self.kind, self.form)
        return ids[:, : int(self.cross.ids)], numbers[:, : 2 * self.cross.statistics]

    def find(self, keys: Keys) -> Positions:
        """The place of each key among those of the training rows, the nearest for a new one: (N,) -> (N,)."""
        return np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)

    def tensors(self) -> dict[str, NDArray[Any]]:
        form = self.form.smoothing, self.form.count_scale
        prior = np.array([self.prior.mean, self.prior.deviation, *form], np.float64)
        return {"keys": self._keys, "counts": self._counts, "sums": self._sums, "prior": prior}

    @classmethod
    def load(
        cls,
        cross: Cross,
        features: Sequence[Feature],
        kind: LabelKind,
        tensors: Mapping[str, NDArray[Any]],
    ) -> CellCodes:
        """The inverse of :meth:`tensors`, given the features without crosses."""
        known = tensors["keys"], tensors["counts"], tensors["sums"]
        mean, deviation, *form = tensors["prior"].tolist()
        prior, cells = Prior(mean, deviation), CellKeys.of(cross.of, features)
        return cls(cross, cells, known, prior, kind, Form(*form) if form else FIRST_FORM)

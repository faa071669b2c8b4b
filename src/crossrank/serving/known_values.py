"""What the first products of requests have in common: a value of the context has the same share of them each time.

``W c = Σ_columns W[:, column] e(id) + W[:, numbers] x``, where e(id) is the vector of a value. A click log has few
values that most requests are made of, so the shares of those that most training rows had are kept, as many as memory
allows. A request then reads one row for each of its columns, where W has a row for each element of c.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crossrank.data.rows import EncodedRows, Positions
from crossrank.serving.fused import Kernels, kernels
from crossrank.serving.lookup import Lookup
from crossrank.serving.multiplying import Array

LEAST = 2**19  # numbers of W, below which a core keeps them near


class KnownValues:
    """The shares of some values.

    Args:
        weight: W, (K, C).
        lookup: what finds c.
        counts: of each column of ids, how many training rows had each.
        memory: bytes for the shares.
        compiled: the loops.
    """

    def __init__(
        self, weight: Array, lookup: Lookup, counts: Sequence[NDArray[np.int64]], memory: int, compiled: Kernels
    ) -> None:
        self._sums, self._of_each = compiled.sums, np.ascontiguousarray(weight.T)  # (C, K)
        starts = np.flatnonzero(np.diff(lookup.columns, prepend=-1))
        self._columns = lookup.columns[starts]
        self._starts = np.append(starts, len(lookup.columns))
        chosen = _most_frequent([counts[column] for column in self._columns], memory // max(weight[:, 0].nbytes, 1))
        self._limits = np.array([ids.max(initial=-1) + 1 for ids in chosen], np.int64)
        self._firsts = np.cumsum(self._limits) - self._limits
        self._place_of = np.full(self._limits.sum(), -1)
        self._kept = np.empty((sum(map(len, chosen)), len(weight)), weight.dtype)  # numpy asks for large pages
        done = 0
        for first, (start, stop), ids in zip(self._firsts, pairwise(self._starts), chosen, strict=True):
            stored = slice(done, done := done + len(ids))
            self._place_of[first + ids] = np.arange(stored.start, stored.stop)
            vectors = lookup.vectors(ids, slice(start, stop))
            torch.mm(
                torch.from_numpy(vectors),
                torch.from_numpy(self._of_each[start:stop]),
                out=torch.from_numpy(self._kept[stored]),
            )

    @classmethod
    def of(cls, weight: Array, lookup: Lookup, counts: Sequence[NDArray[np.int64]], memory: int) -> KnownValues | None:
        """None where nothing is compiled, or there is little to spare."""
        compiled = kernels() if weight.dtype == np.float32 and weight.size >= LEAST and len(lookup.columns) else None
        return None if compiled is None else cls(weight, lookup, counts, memory, compiled)

    def products(self, rows: EncodedRows, c: Tensor) -> Array:
        """``W c`` of one request: (1, C) -> (1, K)."""
        found = np.empty((1, self._of_each.shape[1]), np.float32)
        ids = rows.categorical[0, self._columns].astype(np.int64)
        known = self._starts, self._firsts, self._limits, self._place_of, self._kept
        self._sums(ids, *known, c.numpy()[0], self._of_each, found[0])
        return found


def _most_frequent(counts: Sequence[NDArray[np.int64]], most: int) -> list[Positions]:
    """The ids of each column that are among the so many most frequent ones of all, in order."""
    every = np.concatenate(counts)
    best = np.zeros(len(every), bool)
    best[np.argsort(-every, kind="stable")[:most]] = True
    return [np.flatnonzero(part) for part in np.split(best, np.cumsum([len(one) for one in counts])[:-1])]

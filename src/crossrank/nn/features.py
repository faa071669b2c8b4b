"""The encoded features of a batch of rows, as tensors."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Bag(NamedTuple):
    """One multivalent feature: row i owns ``ids[offsets[i]:offsets[i + 1]]``.

    Shape: ids (N,), offsets (B + 1,).
    """

    ids: Tensor
    offsets: Tensor


class Features(NamedTuple):
    """What a model reads of B rows.

    Shape: categorical (B, F) integer ids, each from its own feature's vocabulary; numeric (B, M); one bag per
    multivalent feature. Any of them may be empty, but ``categorical`` always carries B.
    """

    categorical: Tensor
    numeric: Tensor
    bags: tuple[Bag, ...] = ()

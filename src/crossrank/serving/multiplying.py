"""The products of a ranking, each by the library that is fastest for its shape.

Numpy reads a large matrix or table once at the speed of the memory, row by row in the caller's thread, where torch's
product of a matrix and a vector needs twice as long and wakes threads for it. Products of matrices are torch's, small
ones in the caller's thread too: threads that have other work, or spin, are waited for longer than they help.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from crossrank.serving.threads import threads_for

Array: TypeAlias = NDArray[Any]
NARROW = 4096  # numbers of M(c) from which torch's product is the faster one
PIECE = 256  # rows
FEW = 2**21  # multiply-adds that torch finds faster than oneDNN


class Dense:
    """``W x + b`` of many rows: (..., P) -> (..., Q).

    By oneDNN, for which W is laid out before: in float32 about a tenth faster than what torch takes of itself, unless
    the products are few.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.packed = weight, None
        if weight.dtype in _onednn_types():
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)

    def __call__(self, rows: Tensor, bias: Tensor | None = None) -> Tensor:
        count = rows.numel() * len(self.weight)
        with threads_for(count):
            if self.packed is not None and count > FEW:
                found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, bias, "none", [], "")
                return found
            return F.linear(rows, self.weight, bias)


@cache
def _onednn_types() -> list[torch.dtype]:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return []
    return [torch.float32, *([torch.bfloat16] if torch.ops.mkldnn._is_mkldnn_bf16_supported() else [])]


def dots(rows: Tensor, others: Tensor) -> Tensor:
    """The inner product of each row with the one beside it: (..., P), (..., P) -> (...).

    By numpy, which reads long tables at the speed of the memory; torch's product needs two to three times as long.
    """
    return torch.from_numpy(np.vecdot(rows.numpy(), others.numpy()))


def matvecs(matrix: Array, vectors: Array) -> Array:
    """What a matrix makes of each vector: (P, C), (B, C) -> (B, P).

    Of one vector by numpy, row by row in the caller's thread, which reads a large matrix at the speed of the memory.
    """
    if len(vectors) == 1:
        found: Array = np.vecdot(matrix, vectors[:, None])
        return found
    return (torch.from_numpy(vectors) @ torch.from_numpy(matrix).T).numpy()


def dots_of_each(rows: Tensor, others: Tensor) -> Tensor:
    """The inner products of each request's vector with its rows, or the rows of all.

    Shape: rows (B or 1, N, P), others (B, P) -> (B, N).
    """
    if len(rows) == 1:
        return torch.from_numpy(matvecs(rows[0].numpy(), others.numpy()))
    return dots(rows, others[:, None])


def bilinear(t: Tensor, middle: Tensor, s: Tensor) -> Tensor:
    """``tᵀ M s`` of each request and its rows, or the rows of all.

    Shape: t (B, N, T) or (N, T), middle (B, T, S), s as t -> (B, N).
    """
    if t.dim() == 3:
        return dots(torch.bmm(t, middle), s)
    if len(middle) > 1:
        every = (t @ middle.movedim(1, 0).flatten(1)).reshape(len(t), *middle.shape[::2])  # (N, B, S)
        return dots(every, s[:, None]).T
    if middle[0].numel() > NARROW:
        with threads_for(t.numel() * s.shape[1]):
            return dots(t @ middle[0], s)[None]
    # In pieces that numpy's library multiplies without threads of its own, so that ours do not wait for them.
    left, right, count = t.numpy(), middle[0].numpy(), len(t) // PIECE
    pieces = left[: count * PIECE].reshape(count, PIECE, left.shape[1]) @ right  # (count, PIECE, S)
    joined = np.concatenate([pieces.reshape(count * PIECE, right.shape[1]), left[count * PIECE :] @ right])
    return dots(torch.from_numpy(joined), s)[None]

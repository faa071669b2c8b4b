"""Rows of a table: written back, brought to the places that ask for them, and summed over those."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NUM_SHORT = 2**16  # numbers that fit into two bytes


def put(table: Tensor, rows: Tensor, values: Tensor) -> None:
    """``table[rows] = values`` for distinct rows: (R, width), (U,), (U, width)."""
    if table.device.type != "cpu":
        table.index_copy_(0, rows, values)
        return
    # A row as one item: numpy copies it at once, torch takes twice as long.
    kind = np.dtype((np.void, table.element_size() * table.shape[1]))
    whole, parts = (one.detach().numpy().view(kind)[:, 0] for one in (table, values))
    whole[rows.numpy()] = parts


class Spread(torch.autograd.Function):
    """Vectors to all places that ask for them: (U, width), (N,) -> (N, width); back, the sum over a vector's places."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, places: Tensor) -> Tensor:
        ctx.count = len(vectors)
        ctx.save_for_backward(places)
        return vectors.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return sums_at(ctx.saved_tensors[0], gradients[0], ctx.count), None


def sums_at(places: Tensor, values: Tensor, count: int) -> Tensor:
    """The sum of the values at each of ``count`` places: (N,), (N, width) -> (count, width)."""
    if places.device.type != "cpu" or count > NUM_SHORT:
        return values.new_zeros(count, values.shape[1]).index_add_(0, places, values)
    # In the order of places, which numpy finds by radix for short numbers: torch's index_add takes up to twice as long.
    order = torch.from_numpy(np.argsort(places.numpy().astype(np.uint16), kind="stable"))
    stops = torch.bincount(places, minlength=count).cumsum(0)
    starts = torch.cat([stops.new_zeros(1), stops])
    return F.embedding_bag(order, values.contiguous(), starts, mode="sum", include_last_offset=True)

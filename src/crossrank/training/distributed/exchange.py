"""Ids to the processes that hold their rows, and vectors back, where every row has one id of each feature.

TorchRec's exchange serves bags and tables divided by rows too: all first tell each other how many ids there are, and
sort what they got. Here the numbers are known, and what is sent lies in the order in which it is needed. So a step has
one message of ids, one of vectors and one of gradients, where TorchRec's has five.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from crossrank.training.distributed.sharded_tables import RowLookup
from crossrank.training.distributed.world import World

Slot = tuple[str, int, int]  # columns of a table: its name, the first one, how many
Piece = tuple[int, slice, slice]  # columns of x0: their source, which they are there, and which of x0


class Exchange:
    """The vectors of a layer's features. All processes make it, and call it, at the same time.

    Each process is a source of some columns of x0, and so are, as the last one, the tables that all hold.

    Args:
        names: the tables, in the order of the features; none is divided by rows.
        lookups: what of them lies here.
        world: the processes.
    """

    def __init__(self, names: Sequence[str], lookups: Sequence[RowLookup], world: World) -> None:
        self.world = world
        self.own, self.copied = ([one for one in lookups if one.replicated is kind] for kind in (False, True))
        sources: list[Any] = [None] * world.size
        dist.all_gather_object(sources, _slots(self.own))
        sources.append(_slots(self.copied))
        features = [[names.index(name) for name, *_ in slots] for slots in sources]
        self.features = [
            None if numbers == [*range(len(names))] else torch.tensor(numbers, dtype=torch.int64, device=world.device)
            for numbers in features
        ]  # None for all in their order
        self.widths = [sum(width for *_, width in slots) for slots in sources]
        self.pieces = _pieces(names, sources)

    def __call__(self, ids: Tensor, numeric: Tensor, capacity: int) -> Tensor:
        """x0 of rows, of which no process has more than ``capacity``: (B, F), (B, M) -> (B, D)."""
        if len(ids) < capacity:  # no use is made of the vectors that come back for these
            ids = torch.cat([ids, ids.new_zeros(capacity - len(ids), ids.shape[1])])
        *asked, of_copied = (ids if one is None else ids.index_select(1, one) for one in self.features)
        size, own = self.world.size, asked[self.world.rank]
        sent, counts = torch.cat([part.flatten() for part in asked]), [part.numel() for part in asked]
        received, wait = self.world.swap(sent, counts, [own.numel()] * size)
        copied = _vectors(self.copied, of_copied, numeric)
        wait()
        vectors = _vectors(self.own, received.view(size * capacity, own.shape[1]), numeric)
        x0: Tensor = _Assembled.apply(self, vectors, copied, numeric)  # type: ignore[no-untyped-call]
        return x0

    def assemble(self, vectors: Tensor, copied: Tensor, numeric: Tensor) -> Tensor:
        """x0, from vectors of what lies here for the rows of all, and of what all hold for those of this process."""
        size, capacity, widths = self.world.size, len(copied), self.widths[:-1]
        counts = [capacity * width for width in widths]
        received, wait = self.world.swap(vectors.flatten(), [vectors.numel() // size] * size, counts)
        wait()
        parts = (part.view(capacity, width) for part, width in zip(torch.split(received, counts), widths, strict=True))
        sources = [*parts, copied]
        return torch.cat([*(sources[i][: len(numeric), there] for i, there, _ in self.pieces), numeric], dim=1)

    def take_apart(self, gradient: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """The gradients of the vectors that :meth:`assemble` was given, from that of x0."""
        size = self.world.size
        if len(gradient) < capacity:
            gradient = torch.cat([gradient, gradient.new_zeros(capacity - len(gradient), gradient.shape[1])])
        counts = [capacity * width for width in self.widths[:-1]]
        sent, copied = gradient.new_empty(sum(counts)), gradient.new_empty(capacity, self.widths[-1])
        parts = [*torch.split(sent, counts), copied]
        for source, (part, width) in enumerate(zip(parts, self.widths, strict=True)):
            if width:
                pieces = sorted((there.start, here) for i, there, here in self.pieces if i == source)
                torch.cat([gradient[:, here] for _, here in pieces], dim=1, out=part.view(capacity, width))
        own = self.widths[self.world.rank]
        received, wait = self.world.swap(sent, counts, [capacity * own] * size)
        wait()
        if size > 1:
            received /= size  # as TorchRec does: losses are multiplied by it, for what is averaged
        return received.view(size * capacity, own), copied


class _Assembled(torch.autograd.Function):
    """:meth:`Exchange.assemble`."""

    @staticmethod
    def forward(ctx: Any, exchange: Exchange, vectors: Tensor, copied: Tensor, numeric: Tensor) -> Tensor:
        ctx.exchange, ctx.capacity = exchange, len(copied)
        return exchange.assemble(vectors, copied, numeric)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.exchange.take_apart(gradients[0], ctx.capacity), None


def _slots(lookups: Sequence[RowLookup]) -> list[Slot]:
    return [(shard.name, shard.column, shard.width) for lookup in lookups for shard in lookup.shards]


def _pieces(names: Sequence[str], sources: Sequence[Sequence[Slot]]) -> list[Piece]:
    """The columns of x0 in their order, neighbours that are so in their source too as one."""
    found = []
    for source, slots in enumerate(sources):
        stops = accumulate(width for *_, width in slots)
        for (name, column, width), stop in zip(slots, stops, strict=True):
            found.append((names.index(name), column, source, stop - width, width))
    pieces: list[Piece] = []
    first = 0
    for *_, source, start, width in sorted(found):
        there, here = slice(start, start + width), slice(first, first + width)
        if pieces and (pieces[-1][0], pieces[-1][1].stop) == (source, start):
            _, before, place = pieces.pop()
            there, here = slice(before.start, there.stop), slice(place.start, here.stop)
        pieces.append((source, there, here))
        first += width
    return pieces


def _vectors(lookups: Sequence[RowLookup], ids: Tensor, like: Tensor) -> Tensor:
    """(N, number of shards) -> (N, their widths)."""
    parts = zip(lookups, torch.split(ids, [len(lookup.shards) for lookup in lookups], dim=1), strict=True)
    found = [lookup.look_up(part) for lookup, part in parts if lookup.shards]
    if len(found) == 1:
        return found[0]
    return torch.cat(
        [like.new_zeros(len(ids), 0).requires_grad_(), *found], dim=1
    )  # all must take part on the way back

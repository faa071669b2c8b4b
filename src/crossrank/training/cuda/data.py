"""Batches of one fixed size on a device, from arrays that live there or are sent ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossrank.data import Batch, Split
from crossrank.data.parallel import for_each
from crossrank.training.cuda.plain import Taken
from crossrank.training.cuda.update import operations

PIECE_ROWS = 2**20  # of an epoch's order, made and sent together
RESIDENT_SHARE = 0.6  # of the free memory of a device, up to which a split is kept there


class EvaluatedSplit(Split):
    """A split whose batches come on a device."""

    def __init__(self, split: Split, device: torch.device) -> None:
        super().__init__(split.rows, window_bytes=split.window_bytes)
        self.device = device

    def batches(self, batch_size: int, **options: Any) -> Iterator[Batch]:
        for batch in super().batches(batch_size, **options):
            yield batch.to(self.device)


def fits(split: Split, device: torch.device) -> bool:
    """Whether the rows of a split, and their order, can be kept on the device."""
    arrays = [split.categorical, split.numeric, split.labels, *([] if split.weights is None else [split.weights])]
    needed = sum(array.nbytes for array in arrays) + 8 * len(split)
    return needed < RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else True


class ResidentRows:
    """A split kept on the device; a batch is gathered there, or one for each of several seeds.

    The order of an epoch is the same as everywhere. It is made piece by piece by a thread that works ahead, into the
    next epoch too, and sent when its first batch comes.

    Shape: order (rows,), or (models, rows) for as many seeds.
    """

    def __init__(self, split: Split, batch_size: int, *, seed: int | Sequence[int], device: torch.device) -> None:
        self.split, self.batch_size, self.seeds = split, batch_size, np.ravel(seed).tolist()
        weights = np.ones(1, np.float32) if split.weights is None else split.weights
        arrays = (split.categorical.view(np.int32), split.numeric, split.labels, weights)
        self.source = Taken(*(torch.from_numpy(np.array(array)).to(device) for array in arrays))
        self.order = torch.zeros(*np.shape(seed), len(split), dtype=torch.int64, device=device)
        self.start = torch.zeros((), dtype=torch.int64, device=device)
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="crossrank-order")
        self.pieces: dict[int, list[Future[Tensor]]] = {}

    def take(self) -> Taken:
        """The next batch, and a move to the one after it; of several models, each with a leading axis."""
        taken: Taken = operations(self.order.device).take_batch(self.source, self.order, self.start, self.batch_size)
        self.start += self.batch_size
        return taken

    def batches(self, epoch: int, start_batch: int) -> Iterator[range]:
        """The places of each batch's rows in the epoch, once these are there for :meth:`take`."""
        pieces = self._pieces(epoch)
        self._pieces(epoch + 1)
        take_turn(self.source, self.split, epoch)
        self.pieces.pop(epoch - 1, None)
        self.start.fill_(start_batch * self.batch_size)
        sent = start_batch * self.batch_size // PIECE_ROWS
        for first in range(start_batch * self.batch_size, len(self.split), self.batch_size):
            stop = min(first + self.batch_size, len(self.split))
            while sent * PIECE_ROWS < stop:
                piece = pieces[sent].result()
                self.order[..., sent * PIECE_ROWS :][..., : piece.shape[-1]].copy_(piece, non_blocking=True)
                sent += 1
            yield range(first, stop)

    def _pieces(self, epoch: int) -> list[Future[Tensor]]:
        if epoch not in self.pieces:
            orders = [self.split.order(seed, epoch) for seed in self.seeds]
            pinned = self.order.is_cuda

            def make(start: int) -> Tensor:
                stop = min(start + PIECE_ROWS, len(self.split))
                each = for_each(orders, lambda order: order.rows(start, stop), num_rows=len(orders) * (stop - start))
                rows = torch.from_numpy(np.stack(each)).view(*self.order.shape[:-1], -1)
                return rows.pin_memory() if pinned else rows

            starts = range(0, len(self.split), PIECE_ROWS)
            self.pieces[epoch] = [self.worker.submit(make, start) for start in starts]
        return self.pieces[epoch]

    def close(self) -> None:
        self.worker.shutdown(wait=False, cancel_futures=True)


class SentRows:
    """A split that stays where it is; a thread prepares its batches, and they are sent while the device works."""

    def __init__(self, split: Split, batch_size: int, *, seed: int, device: torch.device) -> None:
        self.split, self.batch_size, self.seed = split, batch_size, seed
        shapes = [(batch_size, split.categorical.shape[1]), (batch_size, split.numeric.shape[1]), *[(batch_size,)] * 2]
        types = [torch.int32, *[torch.float32] * 3]

        def buffers(where: torch.device, pin: bool) -> Taken:
            pairs = zip(shapes, types, strict=True)
            return Taken(*(torch.zeros(shape, dtype=kind, device=where, pin_memory=pin) for shape, kind in pairs))

        self.here = buffers(device, False)
        pin = device.type == "cuda"
        self.staged = [buffers(torch.device("cpu"), pin) for _ in range(2)]
        self.sent = [torch.cuda.Event() if pin else None for _ in range(2)]  # type: ignore[no-untyped-call]

    def take(self) -> Taken:
        return Taken(*(part.clone() for part in self.here))

    def batches(self, epoch: int, start_batch: int) -> Iterator[range]:
        batches = self.split.batches(self.batch_size, seed=self.seed, epoch=epoch, start_batch=start_batch)
        for number, batch in enumerate(batches):
            staged, event = self.staged[number % 2], self.sent[number % 2]
            if event:
                event.synchronize()
            fill(staged, batch)
            for target, source in zip(self.here, staged, strict=True):
                target.copy_(source, non_blocking=True)
            if event:
                event.record()
            yield range(len(batch))

    def close(self) -> None:
        pass


def take_turn(source: Taken, split: Split, epoch: int) -> None:
    """Give rows on a device the numbers of an epoch, where they are others in each, in the memory they have."""
    orders = split.rows.encoded.orders
    if orders is not None:
        width, other = orders.shape[2], split.rows.encoded.numbers_in(epoch)
        numbers = split.numeric[:, -width:] if other is None else other
        source.numeric[:, -width:].copy_(torch.from_numpy(np.array(numbers)))


def fill(buffers: Taken, batch: Batch) -> None:
    """A batch in buffers of fixed size; places left over repeat its first row with weight 0."""
    size = len(batch)
    weights = torch.ones(size) if batch.weights is None else batch.weights
    parts = (batch.features.categorical, batch.features.numeric, batch.labels, weights)
    for buffer, part in zip(buffers, parts, strict=True):
        buffer[:size].copy_(part)
        buffer[size:] = part[:1]
    buffers.weights[size:] = 0

"""Batches of a split: their order, and one thread that prepares them ahead."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from crossrank.data.rows import Ids, LabeledRows, Positions, id_tensor
from crossrank.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from crossrank.nn.features import Features

T = TypeVar("T")
MOST_TOGETHER = 1024  # rows of a group in a batch: pairs of rows need memory


@dataclass(frozen=True)
class Batch:
    """Some rows as tensors: features, labels (B,), or (B, K) of K tasks, and where there are any weights and group ids,
    (B,) each."""

    features: Features
    labels: Tensor
    weights: Tensor | None = None
    groups: Tensor | None = None

    @classmethod
    def of(cls, rows: LabeledRows) -> Batch:
        """Rows as tensors that share their memory."""
        import torch

        return cls(
            rows.encoded.features(),
            torch.from_numpy(rows.labels),
            None if rows.weights is None else torch.from_numpy(rows.weights),
            None if rows.groups is None else id_tensor(rows.groups),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same rows on another device."""
        from crossrank.nn.features import Bag, Features

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        bags = tuple(Bag(move(bag.ids), move(bag.offsets)) for bag in self.features.bags)
        return Batch(
            Features(move(self.features.categorical), move(self.features.numeric), bags),
            move(self.labels),
            None if self.weights is None else move(self.weights),
            None if self.groups is None else move(self.groups),
        )


class ShuffledOrder:
    """The order of a split's rows in one epoch: a function of these arguments alone, so any part can be made again.

    The rows, turned by a random number of places, are cut into blocks of neighbours; the blocks are shuffled, and then
    the rows within each window of blocks. A split that fits into one window is shuffled as a whole; of a larger one
    only a window at a time has to be in memory. The window does not depend on what a machine has free: all ranks, and
    a run that is resumed elsewhere, must see one order.
    """

    def __init__(self, num_rows: int, *, seed: int, epoch: int, window_rows: int, block_rows: int) -> None:
        self._num_rows, self._block_rows = num_rows, block_rows
        self._window_blocks = max(window_rows // block_rows, 1)
        self._key = [seed % 2**64, epoch]
        generator = self._generator(0)
        self._turn = int(generator.integers(max(num_rows, 1)))
        full, rest = divmod(num_rows, block_rows)
        self._blocks = np.append(generator.permutation(full), [full] if rest else []).astype(np.int64)
        self._window_number, self._window_rows = -1, np.empty(0, np.int64)

    def rows(self, start: int, stop: int) -> Positions:
        """The rows at positions ``start`` to ``stop`` of the epoch."""
        parts = [np.empty(0, np.int64)]
        while start < stop:
            window, offset = divmod(start, self._window_blocks * self._block_rows)
            parts.append(self._window(window)[offset : offset + stop - start])
            start += len(parts[-1])
        return np.concatenate(parts)

    def _generator(self, stream: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, 0, stream]))

    def _window(self, number: int) -> Positions:
        if number != self._window_number:
            blocks = self._blocks[number * self._window_blocks : (number + 1) * self._window_blocks]
            places = (blocks[:, None] * self._block_rows + np.arange(self._block_rows)).ravel()
            rows = (places[places < self._num_rows] + self._turn) % self._num_rows
            self._generator(number + 1).shuffle(rows)
            self._window_number, self._window_rows = number, rows
        return self._window_rows


class GroupedOrder:
    """The rows of each batch of an epoch, where the rows of a group come together; a function of these arguments alone.

    Groups are shuffled, and a group goes to the batch in which its middle row would stand if batches had equally many
    rows; none stays empty, and none has more than twice ``batch_size`` rows. Groups of more than ``batch_size`` rows,
    or more than ``MOST_TOGETHER``, are cut into about equal parts, other ones in every epoch. No row is left out.

    Args:
        groups: the group of each row. Shape: (N,).
        batch_size: a larger group is cut.
        num_batches: of the epoch, over all ranks.
        key: seed and epoch; None for the stored order.
        window: of so many rows, and of blocks of so many, is the order of groups made; see :class:`ShuffledOrder`.

    Raises:
        ConfigError: where rows have no groups.

    Cost: sorting N numbers once an epoch, and three of them for each row.
    """

    def __init__(
        self,
        groups: Ids | None,
        batch_size: int,
        num_batches: int,
        *,
        key: tuple[int, int] | None,
        window: tuple[int, int],
    ) -> None:
        if groups is None:
            raise ConfigError(
                "Batches of whole groups need groups; the dataset has none.",
                hint="Name the group column in the schema and prepare the dataset again.",
            )
        num_rows = len(groups)
        self._rows = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[self._rows], prepend=-1))
        sizes = np.diff(starts, append=num_rows)
        parts = -(-sizes // min(batch_size, MOST_TOGETHER))  # of each group
        if key is not None:
            generator = np.random.Generator(np.random.Philox(key=[key[0] % 2**64, key[1]], counter=[0, 0, 1, 0]))
            for start, stop in zip(starts[parts > 1], (starts + sizes)[parts > 1], strict=True):
                generator.shuffle(self._rows[start:stop])
        group = np.repeat(np.arange(len(sizes)), parts)
        number = np.arange(len(group)) - np.repeat(np.cumsum(parts) - parts, parts)  # of the part in its group
        cuts = [starts[group] + sizes[group] * (number + side) // parts[group] for side in (0, 1)]
        if key is not None:
            per_part = max(num_rows // max(len(group), 1), 1)
            windows = {"window_rows": max(window[0] // per_part, 1), "block_rows": max(window[1] // per_part, 1)}
            shuffled = ShuffledOrder(len(group), seed=key[0], epoch=key[1], **windows).rows(0, len(group))
            cuts = [cut[shuffled] for cut in cuts]
        self._starts, self._sizes = cuts[0], cuts[1] - cuts[0]
        middles = np.cumsum(self._sizes) - self._sizes / 2
        count = np.arange(num_batches + 1)
        borders = np.searchsorted(middles, num_rows * count / max(num_batches, 1))
        borders = np.maximum.accumulate(borders - count) + count  # a part at least for each batch
        self._borders = np.clip(borders, 0, np.maximum(len(group) - count[::-1], 0))

    def rows(self, batch: int) -> Positions:
        """The rows of a batch."""
        part = slice(*self._borders[batch : batch + 2])
        sizes = self._sizes[part]
        shift = np.repeat(self._starts[part] - (np.cumsum(sizes) - sizes), sizes)
        return self._rows[shift + np.arange(len(shift))]


def prefetch(items: Generator[T], *, depth: int) -> Iterator[T]:
    """The same items, made by a thread that works ahead; it ends when the consumer stops early.

    Args:
        items: what makes them; an exception in it reaches the consumer.
        depth: how many may wait.
    """
    ready: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def offer(entry: tuple[T] | BaseException | None) -> None:
        while not stopped.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(entry, timeout=0.1)
                break

    def work() -> None:
        try:
            for item in items:
                offer((item,))
                if stopped.is_set():
                    break
            offer(None)
        except BaseException as error:
            offer(error)
        finally:
            items.close()

    thread = threading.Thread(target=work, name="crossrank-prefetch", daemon=True)
    thread.start()
    try:
        while (entry := ready.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry[0]
    finally:
        stopped.set()
        thread.join()

"""The rows of one split, and the batches of an epoch."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from crossrank.data.batches import Batch, GroupedOrder, ShuffledOrder, prefetch
from crossrank.data.rows import Floats, Ids, LabeledRows, NumpyBag, Positions
from crossrank.errors import ConfigError, DataError

WINDOW_BYTES = 2**30
BLOCK_BYTES = 2**19
PREFETCHED_BATCHES = 3


class Split:
    """The rows of one split, in memory or mapped from a folder.

    Args:
        rows: the encoded rows with their labels.
        window_bytes: a larger split is shuffled block-wise, with this much of it in memory at a time.
    """

    def __init__(self, rows: LabeledRows, *, window_bytes: int = WINDOW_BYTES) -> None:
        self.rows, self.window_bytes = rows, window_bytes

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def categorical(self) -> Ids:
        return self.rows.encoded.categorical

    @property
    def numeric(self) -> Floats:
        return self.rows.encoded.numeric

    @property
    def bags(self) -> tuple[NumpyBag, ...]:
        return self.rows.encoded.bags

    @property
    def labels(self) -> Floats:
        return self.rows.labels

    @property
    def weights(self) -> Floats | None:
        return self.rows.weights

    @property
    def groups(self) -> Ids | None:
        return self.rows.groups

    def num_batches(self, batch_size: int, *, drop_last: bool = False, world_size: int = 1) -> int:
        """How many batches :meth:`batches` yields on every rank."""
        step = batch_size * world_size
        return self.num_rows // step if drop_last else -(-self.num_rows // step)

    def batches(
        self,
        batch_size: int,
        *,
        seed: int | None = None,
        epoch: int = 0,
        start_batch: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        by_group: bool = False,
    ) -> Iterator[Batch]:
        """The rows of an epoch in batches, prepared ahead by one thread.

        Over all ranks every row comes exactly once, and all ranks get the same number of batches; the rows of the last
        batches are divided evenly, so that a rank's last batch is empty where fewer rows than ranks are left.

        Args:
            batch_size: rows per batch and rank.
            seed: None for the stored order; otherwise the order is a function of seed and epoch.
            epoch: which pass over the rows this is.
            start_batch: where to begin, for a resumed run.
            drop_last: leave out the last batches if they are not full.
            rank: which share of each step to yield.
            world_size: how many ranks share the rows.
            by_group: keep the rows of a group together (:class:`~crossrank.data.batches.GroupedOrder`).
        """
        if batch_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"batch_size must be at least 1 and rank below world_size; got {batch_size}, {rank} and {world_size}."
            )
        count = self.num_batches(batch_size, drop_last=drop_last, world_size=world_size)
        order = None if seed is None or by_group else self.order(seed, epoch)
        key, pace = None if seed is None else (seed, epoch), (batch_size, count * world_size)
        grouped = GroupedOrder(self.groups, *pace, key=key, window=self._window()) if by_group else None

        def make() -> Generator[Batch]:
            for number in range(start_batch, count):
                first = number * batch_size * world_size
                size = min(batch_size * world_size, self.num_rows - first)
                start, stop = (first + size * share // world_size for share in (rank, rank + 1))
                if grouped is not None:
                    yield Batch.of(self.rows.take(grouped.rows(number * world_size + rank), epoch=epoch))
                elif order is None:
                    yield Batch.of(self.rows.slice(start, stop))
                else:
                    yield Batch.of(self.rows.take(order.rows(start, stop), epoch=epoch))

        return prefetch(make(), depth=PREFETCHED_BATCHES)

    def order(self, seed: int, epoch: int) -> ShuffledOrder:
        """The order of the rows in an epoch, the same on every device and machine."""
        window_rows, block_rows = self._window()
        return ShuffledOrder(self.num_rows, seed=seed, epoch=epoch, window_rows=window_rows, block_rows=block_rows)

    def _window(self) -> tuple[int, int]:
        """The rows that are shuffled together, and those of a block."""
        arrays = [self.categorical, self.numeric, self.labels, *(array for bag in self.bags for array in bag)]
        row_bytes = max(sum(array.nbytes for array in arrays) // max(self.num_rows, 1), 1)
        window_rows = max(self.window_bytes // row_bytes, 1)
        return window_rows, min(max(BLOCK_BYTES // row_bytes, 1), window_rows)

    def take(self, rows: Positions) -> Batch:
        """Any rows, in the given order, as a batch."""
        if len(rows) and not (rows.min() >= 0 and rows.max() < self.num_rows):
            raise DataError(f"Rows must be from 0 to {self.num_rows - 1}; got {rows.min()} to {rows.max()}.")
        return Batch.of(self.rows.take(rows))

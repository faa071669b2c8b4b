"""What the training loop sees of a model whose parts lie in several processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crossrank.data import Batch, Split
from crossrank.training.distributed.world import World

if TYPE_CHECKING:
    from crossrank.training.distributed.engine import DistributedEngine


class ShardedModel:
    """What the training loop knows as the model: the network, and its tables wherever they lie."""

    def __init__(self, engine: DistributedEngine) -> None:
        self.engine, self.fill_untrained_rows = engine, engine.fill_untrained_rows
        self.predict_logits = engine.predict_logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine.network, name)

    def state_dict(self) -> dict[str, Tensor]:
        """The weights that are here, those of tables by the part of a table."""
        plain, weights = self.engine.plain.state_dict(), self.engine.network.state_dict()
        own = {name: weight for name, weight in weights.items() if name in plain}
        return own | {f"table.{shard.place}": weight for shard, weight, _ in self.engine.shards()}

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Those of the model, and none of TorchRec's."""
        plain = dict(self.engine.plain.named_buffers())
        return ((name, buffer) for name, buffer in self.engine.network.named_buffers() if name in plain)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, weight in self.state_dict().items():
            weight.copy_(state[name])


class SharedSplit(Split):
    """A split of whose batches each process reads its share."""

    def __init__(self, split: Split, world: World) -> None:
        super().__init__(split.rows, window_bytes=split.window_bytes)
        self.world = world

    def batches(self, batch_size: int, **options: Any) -> Iterator[Batch]:
        share = -(-batch_size // self.world.size)
        return super().batches(share, **options, rank=self.world.rank, world_size=self.world.size)


def interleaved(parts: Sequence[Tensor], world: World) -> Tensor:
    """The rows of each process's share of each batch, in the order of the batches: each (B, ...) -> (N, ...)."""
    counts = torch.tensor([len(part) for part in parts], device=world.device)
    most = world.gather(counts).view(world.size, -1).tolist()
    padded = torch.zeros(max(map(sum, most)), *parts[0].shape[1:], dtype=parts[0].dtype, device=world.device)
    padded[: int(counts.sum())] = torch.cat(list(parts))
    found = world.gather(padded).view(world.size, -1, *padded.shape[1:])
    split = [torch.split(own[: sum(sizes)], sizes) for own, sizes in zip(found, most, strict=True)]
    return torch.cat([part for batch in zip(*split, strict=True) for part in batch])

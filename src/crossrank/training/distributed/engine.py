"""The steps of a training on several processes; an :class:`~crossrank.training.engine.Engine`.

Each process reads its share of a batch. A mean over rows is the sum of every process's share of it. Where a loss
compares rows of a group, the logits of all are gathered, so that every process sees the loss of the whole batch, and
sends back the gradient of its own rows. The norm that is clipped is that of all gradients, wherever they lie. So a step
is what it would be in one process, but for the order of sums.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

from crossrank.data import Batch, Split
from crossrank.data.rows import SCORING_ROWS
from crossrank.errors import ConfigError, quietly
from crossrank.models import Model
from crossrank.models.base import SPECIAL_IDS, evaluating
from crossrank.nn import Features
from crossrank.nn.embedding import embedding_layers
from crossrank.training.device import uses_bfloat16
from crossrank.training.distributed.checkpoint import TABLE, whole_tables
from crossrank.training.distributed.exchange import Exchange
from crossrank.training.distributed.model import ShardedModel, SharedSplit, interleaved
from crossrank.training.distributed.optimizer import DistributedOptimizer
from crossrank.training.distributed.placement import asked_for, plan, specs, tell
from crossrank.training.distributed.sharded_tables import RowSharder, Shard, ShardedEmbedding
from crossrank.training.distributed.world import World
from crossrank.training.engine import SingleEngine
from crossrank.training.lazy import LazyTable
from crossrank.training.loss import penalty


@dataclasses.dataclass
class Share:
    """The rows of a batch that this process reads, and how many all read; of whole groups a step finds that out."""

    batch: Batch
    num_rows: int = 0

    def __len__(self) -> int:
        return self.num_rows


@dataclasses.dataclass(eq=False, kw_only=True)
class DistributedEngine(SingleEngine):
    """Makes the steps together with the other processes.

    The model, whose weights are the first ones, is left as it is until :meth:`close`. The batch size is that of all
    processes together.

    Attributes:
        world: the processes.
    """

    world: World
    optimizer: DistributedOptimizer = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.plain = self.model
        model, settings, rule, world = self.model, self.settings, self.rule, self.world
        if settings.batch_size % world.size:
            raise ConfigError(
                f"training.batch_size must be a multiple of the number of processes, {world.size}; got "
                f"{settings.batch_size}.",
                hint=f"Set training.batch_size={math.ceil(settings.batch_size / world.size) * world.size}.",
            )
        self.share = settings.batch_size // world.size
        self.most = self.share * (2 if self.loss.needs_groups else 1)  # rows; whole groups may take twice as many
        sharded = {id(layer): ShardedEmbedding(layer, str(i)) for i, layer in enumerate(embedding_layers(model))}
        self.network = copy.deepcopy(model, {**sharded})
        self.layers = [layer for layer in sharded.values() if layer.tables is not None]
        self.whole = whole_tables(model)
        slots = [slot.name for slot in model.layout.embedded]
        self.features = {
            table: feature
            for layer in model.tables()
            for table, feature in zip(sharded[id(layer)].names, slots, strict=True)
        }
        spoken = {table: self.features.get(table, table) for table in self.whole}
        chosen = asked_for(settings.placement, spoken)
        with quietly():
            made = plan(self.network, chosen, world=world, batch_size=self.share)
            self.specs = specs(made)
            self.placement = tell(made, spoken)
            env = ShardingEnv.from_process_group(dist.group.WORLD)
            sharders: Any = [RowSharder()]
            self.parallel = DistributedModelParallel(
                self.network, env=env, device=world.device, plan=made, sharders=sharders, init_data_parallel=False
            )
            self.network.to(world.device)
            for layer in self.layers:
                layer.tables.fill(self.whole, rule, self._steps)
                if len(layer.names) == layer.num_single and not any(self._is_by_rows(name) for name in layer.names):
                    layer.exchange = Exchange(layer.names, list(layer.tables.lookups), world)
        self.lookups = [lookup for layer in self.layers for lookup in layer.tables.lookups]
        self.optimizer = DistributedOptimizer(self.network, self.lookups, settings, rule=rule, world=world)
        self.model = cast(Model, ShardedModel(self))
        self.bfloat16 = uses_bfloat16(settings.precision, model.layout.input_dim, world.device)

    def _is_by_rows(self, name: str) -> bool:
        """Whether several processes hold rows of a table."""
        spec = self.specs[name]
        return spec is not None and any(part.shard_offsets[0] for part in spec.shards)

    def _steps(self) -> int:
        return self.optimizer.steps

    def batches(self, epoch: int, start_batch: int) -> Iterator[Share]:
        world, by_group = self.world, self.loss.needs_groups
        ranks: dict[str, Any] = {"rank": world.rank, "world_size": world.size}
        batches = self.split.batches(
            self.share, seed=self.seed, epoch=epoch, start_batch=start_batch, by_group=by_group, **ranks
        )
        size = self.settings.batch_size
        for number, batch in enumerate(batches, start=start_batch):
            yield Share(batch.to(world.device), min(size, self.split.num_rows - number * size))

    def step(self, share: Share) -> Tensor:
        self._expect(self.most)
        batch, world = share.batch, self.world
        with torch.autocast(world.device.type, torch.bfloat16, enabled=self.bfloat16), self._quietly():
            logits = self.parallel(batch.features)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.loss.needs_groups:
            whole = self._gathered(logits, batch)
            share.num_rows, loss = len(whole[0]), self.loss(*whole)
            part = loss.detach() if world.is_first else torch.zeros_like(loss)
        else:
            weights = None if batch.weights is None else batch.weights.to(logits.dtype)
            own = self.loss(logits, batch.labels.to(logits.dtype), weights) if len(logits) else logits.sum()
            loss = own * self._part(share)
            part = loss.detach()
        # Gradients are averaged over processes; each has those of its own rows alone, and the first those of the rest.
        rest = penalty(self.network, self.settings.l2) if world.is_first else 0.0
        self.optimizer.step((loss + rest) * world.size, part)
        return self.optimizer.loss

    def _part(self, share: Share) -> float:
        """How much of a batch this process has, by the weights of its rows."""
        weights = share.batch.weights
        if weights is None:
            return len(share.batch.labels) / share.num_rows
        own = weights.sum(dtype=torch.float64)
        return float(own / self.world.sum(own.clone()).clamp_min(1e-12))

    def _quietly(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self.optimizer.steps else quietly()  # what is told, is told at first

    def _expect(self, rows: int) -> None:
        for layer in self.layers:
            layer.capacity = rows

    def _gathered(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Logits, labels, weights and groups of the rows of all processes; those of this one's logits have a graph."""
        columns = [torch.ones_like(batch.labels), batch.labels, batch.weights, batch.groups]
        wide = logits.detach()[:, None] if logits.dim() == 1 else logits.detach()  # there may be no rows
        held = [column.double()[:, None] for column in columns if column is not None]
        sent = torch.zeros(self.most, wide.shape[1] + len(held), dtype=torch.float64, device=wide.device)
        sent[: len(wide)] = torch.cat([*held, wide], dim=1)
        found = self.world.gather(sent)
        is_row, own = found[:, 0] > 0, self.world.rank * self.most
        before, after = (int(part.sum()) for part in (is_row[:own], is_row[own + self.most :]))
        others = found[is_row][:, len(held) :].to(logits.dtype).reshape(-1, *logits.shape[1:])
        whole = torch.cat([others[:before], logits, others[len(others) - after :]])
        rest = iter(found[is_row].unbind(dim=1)[1 : len(held)])
        labels, weights, groups = (None if column is None else next(rest) for column in columns[1:])
        return whole, labels.to(logits.dtype), None if weights is None else weights.to(logits.dtype), groups  # type: ignore[union-attr]

    def placed(self, split: Split) -> Split:
        return split if self.model is self.plain else SharedSplit(split, self.world)

    def predict_logits(self, batches: Iterable[Features]) -> Tensor:
        """The logits of all processes' rows, where each has its share of every batch."""
        self._expect(-(-SCORING_ROWS // self.world.size))
        device = self.world.device
        with torch.no_grad(), evaluating(self.network), self._quietly():
            parts = [self.network.bounded_logits(_on(device, features)) for features in batches]
        return interleaved(parts, self.world).cpu()

    @torch.no_grad()
    def fill_untrained_rows(self, counts: Mapping[str, ArrayLike]) -> None:
        """As :meth:`Model.fill_untrained_rows`; the mean of a table is summed over those who hold parts of it."""
        for name, table in self.whole.items():
            if name not in self.features:
                continue
            seen = torch.as_tensor(counts[self.features[name]], dtype=torch.float64, device=self.world.device)  # (v,)
            untrained = (seen[:SPECIAL_IDS] == 0).nonzero()[:, 0].tolist()
            if not untrained or seen.sum() == 0:
                continue
            share = (seen / seen.sum()).to(table.dtype)
            held = [(shard, weight) for shard, weight, _ in self.shards() if shard.name == name]
            mean = torch.zeros(table.shape[1], dtype=table.dtype, device=self.world.device)
            for shard, weight in held:
                mean[shard.columns] += share[shard.rows] @ weight
            if self.specs[name] is not None:
                self.world.sum(mean)
            for shard, weight in held:
                for row in untrained:
                    if shard.row <= row < shard.row + shard.num_rows:
                        weight[row - shard.row] = mean[shard.columns]

    def shards(self) -> Iterator[tuple[Shard, Tensor, nn.Parameter | LazyTable]]:
        """Each part of a table that this process holds: what it is, its weights, and what they lie in."""
        for lookup in self.lookups:
            for number, group in enumerate(lookup.groups):
                holder = lookup.weights[number] if lookup.replicated else lookup.tables[number]
                weight = holder.data if isinstance(holder, nn.Parameter) else holder.weight
                for shard in (lookup.shards[i] for i in group):
                    yield shard, weight[shard.held], holder

    def state(self) -> dict[str, Tensor]:
        """What a resumed training needs of this process; the tensors are those that are trained, not copies.

        Every row must belong to the present step.
        """
        optimizer = self.optimizer
        state = {"steps": torch.tensor(optimizer.steps)}
        for name, parameter in optimizer.named.items():
            if not name.startswith(TABLE):
                state |= {f"{key}.{name}": part for key, part in optimizer.parts(parameter).items()}
        for shard, _, holder in self.shards():
            for key, part in optimizer.parts(holder).items():
                state[f"{key}.{TABLE}{shard.place}"] = part[shard.held]
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """What a checkpoint holds is read in place; the rest follows from the number of steps."""
        self.optimizer.go_on_from(int(state["steps"]))

    def close(self) -> None:
        """From now on the model is the plain one."""
        self.model = self.plain


def _on(device: torch.device, features: Features) -> Features:
    return Batch(features, features.numeric[:, :0]).to(device).features

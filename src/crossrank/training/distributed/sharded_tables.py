"""An embedding layer whose tables are divided between processes.

TorchRec, or :mod:`crossrank.training.distributed.exchange`, brings ids to the processes that hold their rows and
vectors back. In between stands :class:`RowLookup`: the rows of this process, as
:class:`~crossrank.training.lazy.LazyTable`, or for tables that every process holds as ordinary parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, ShardingType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection

from crossrank.nn import FeatureEmbedding, Features
from crossrank.training.lazy import LazyTable, Reads
from crossrank.training.rule import UpdateRule
from crossrank.training.table_rows import Spread

SHARDED = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE, ShardingType.COLUMN_WISE)


class ShardedEmbedding(nn.Module):
    """What :class:`FeatureEmbedding` computes, from tables that lie anywhere.

    Every process calls it at the same time, with at most ``capacity`` rows; those it has fewer are sent as rows without
    ids, so that all exchange equally much.

    Args:
        layer: the layer whose place it takes.
        prefix: of its tables' names.
    """

    tables: Any

    def __init__(self, layer: FeatureEmbedding, prefix: str) -> None:
        super().__init__()
        self.num_single, self.dropout, self.dtype = layer.num_single, layer.dropout, layer.weight.dtype
        self.names = [f"{prefix}_{i}" for i in range(len(layer.vocab_sizes))]
        self.capacity = 0
        self.exchange: Callable[[Tensor, Tensor, int], Tensor] | None = None  # instead of TorchRec's
        configs = [
            EmbeddingBagConfig(
                name=name,
                embedding_dim=width,
                num_embeddings=size,
                feature_names=[name],
                pooling=PoolingType.SUM,  # TorchRec's mean adds an epsilon to the count; ours is taken below
            )
            for name, size, width in zip(self.names, layer.vocab_sizes, layer.embedding_dims, strict=True)
        ]
        self.tables = EmbeddingBagCollection(device=torch.device("meta"), tables=configs) if configs else None

    @property
    def weight(self) -> Tensor:
        """None of the tables; what new tensors are made like."""
        return torch.empty(0, dtype=self.dtype)

    def forward(self, features: Features) -> Tensor:
        numeric = features.numeric.to(self.dtype)
        if self.tables is None:
            return numeric
        drops = self.dropout and self.training
        if self.exchange is None:
            vectors = self._vectors(features)
        elif not drops:
            return self.exchange(features.categorical, numeric, self.capacity)
        else:
            vectors = [self.exchange(features.categorical, numeric[:, :0], self.capacity)]
        if drops:
            vectors = [F.dropout(torch.cat(vectors, dim=1), self.dropout)]
        return torch.cat([*vectors, numeric], dim=1)

    def _vectors(self, features: Features) -> list[Tensor]:
        """By TorchRec, the pieces of what stands before the numbers in x0."""
        found = self.tables(self._ids(features))
        sums = found.values()[: len(features.numeric)]
        vectors = [sums]
        if features.bags or found.keys() != self.names:  # TorchRec's order is that of the placements
            parts = dict(zip(found.keys(), sums.split(found.length_per_key(), dim=1), strict=True))
            vectors = [parts[name] for name in self.names]
        for i, bag in enumerate(features.bags, start=self.num_single):
            vectors[i] = vectors[i] / bag.offsets.diff().clamp_min(1)[:, None]
        return vectors

    def _ids(self, features: Features) -> KeyedJaggedTensor:
        """Feature after feature, the ids of the rows, and how many each row has."""
        ids, _, bags = features
        lengths = torch.zeros(len(self.names), self.capacity, dtype=torch.int32, device=ids.device)
        lengths[: self.num_single, : len(ids)] = 1
        for i, bag in enumerate(bags, start=self.num_single):
            lengths[i, : len(ids)] = bag.offsets.diff()
        values = torch.cat([ids.T.flatten().long(), *(bag.ids.long() for bag in bags)])
        return KeyedJaggedTensor(self.names, values, lengths=lengths.flatten())


@dataclasses.dataclass
class Shard:
    """A part of a table: some rows, some columns."""

    name: str  # of the table
    size: tuple[int, int]  # of the whole table
    row: int  # the first
    column: int  # the first
    num_rows: int
    width: int
    first: int = 0  # row in the LazyTable or parameter that holds it

    @property
    def rows(self) -> slice:
        """Its rows in the whole table."""
        return slice(self.row, self.row + self.num_rows)

    @property
    def columns(self) -> slice:
        return slice(self.column, self.column + self.width)

    @property
    def held(self) -> slice:
        """Its rows in what holds it."""
        return slice(self.first, self.first + self.num_rows)

    @property
    def place(self) -> str:
        """A name for this part of the table."""
        return f"{self.name}.{self.row}.{self.column}"


class RowLookup(nn.Module):
    """The lookups of one placement in this process: ids of its shards' rows in, pooled vectors out.

    Args:
        shards: one for each feature that TorchRec sends, in that order.
        replicated: whether every process holds the whole tables.
    """

    def __init__(self, shards: Sequence[Shard], *, replicated: bool) -> None:
        super().__init__()
        self.shards, self.replicated = list(shards), replicated
        self.tables: list[LazyTable] = []
        self.weights = nn.ParameterList()
        self.groups: list[list[int]] = []  # the numbers of the shards of each LazyTable or parameter: one width each
        self.reads = Reads((), lambda: 0)

    def fill(self, initial: Mapping[str, Tensor], rule: UpdateRule, now: Callable[[], int], device: Any) -> None:
        """Take the shards' rows out of whole tables."""
        self.dtype = next(iter(initial.values())).dtype

        def part(shard: Shard) -> Tensor:
            return initial[shard.name][shard.rows, shard.columns].detach().to(device, copy=True)

        for width in dict.fromkeys(shard.width for shard in self.shards):
            group = [i for i, shard in enumerate(self.shards) if shard.width == width]
            first = 0
            for i in group:
                self.shards[i].first, first = first, first + self.shards[i].num_rows
            weight = torch.cat([part(self.shards[i]) for i in group])
            self.groups.append(group)
            if self.replicated:
                self.weights.append(nn.Parameter(weight))
            else:
                self.tables.append(LazyTable(weight, rule, ordered=True))
        self.first = torch.tensor([shard.first for shard in self.shards], device=device)
        self.reads = Reads(self.tables, now)

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        count, stride = len(self.shards), features.stride()
        if count == 0:
            return torch.zeros(stride, 0, dtype=self.dtype, device=features.device(), requires_grad=True)
        lengths, values = features.lengths().view(count, stride), features.values()
        single = len(values) == lengths.numel() and bool((lengths == 1).all())
        if single:
            return self.look_up(values.view(count, stride).T)
        ids, found = values.split(features.length_per_key()), []
        for number, group in enumerate(self.groups):
            rows = torch.cat([ids[i] + self.shards[i].first for i in group])
            found.append(_sums(self._read(number, rows), lengths[group]).view(stride, len(group), -1))
        return self._joined(found)

    def look_up(self, ids: Tensor) -> Tensor:
        """The vectors of one id of each shard, side by side: (B, F) -> (B, the shards' widths)."""
        rows, found = ids + self.first, []
        for number, group in enumerate(self.groups):
            own = rows if len(self.groups) == 1 else rows[:, group]
            found.append(self._read(number, own.flatten()).view(len(ids), len(group), -1))
        return self._joined(found)

    def _joined(self, found: Sequence[Tensor]) -> Tensor:
        """What is (B, F, width) of each width, in the order of the shards: (B, the shards' widths)."""
        if len(found) == 1:
            return found[0].flatten(start_dim=1)
        order = [i for group in self.groups for i in group]
        pieces = [piece for vectors in found for piece in vectors.unbind(dim=1)]
        return torch.cat([pieces[order.index(i)] for i in range(len(order))], dim=1)

    def _read(self, number: int, rows: Tensor) -> Tensor:
        if self.replicated:
            return Spread.apply(self.weights[number], rows)  # type: ignore[no-untyped-call, no-any-return]
        if not torch.is_grad_enabled():
            return self.tables[number].weight.index_select(0, rows)
        return self.reads.read(number, rows)


def _sums(vectors: Tensor, lengths: Tensor) -> Tensor:
    """The sum of each row's vectors; they come feature after feature: (N, width), (F, B) -> (B F, width)."""
    count, stride = lengths.shape
    places = torch.arange(lengths.numel(), device=lengths.device).view(stride, count).T.flatten()
    sums = vectors.new_zeros(lengths.numel(), vectors.shape[1])
    # The backward of this is a lookup; that of torch's embedding_bag takes many times as long.
    return sums.index_add(0, places.repeat_interleave(lengths.flatten()), vectors)


class RowCollection(ShardedEmbeddingBagCollection):
    """TorchRec's sharded collection with :class:`RowLookup` where its own kernels would be."""

    def _create_lookups(self) -> None:
        for placement, sharding in zip(self._sharding_types, self._embedding_shardings, strict=True):
            tables = [table for config in sharding._grouped_embedding_configs for table in config.embedding_tables]
            replicated = placement == ShardingType.DATA_PARALLEL.value
            self._lookups.append(RowLookup([_shard(table) for table in tables], replicated=replicated))

    def init_data_parallel(self) -> None:
        """Nothing: the gradients of all parameters are exchanged as one, by the optimiser."""

    def _initialize_torch_state(self, skip_registering: bool = False) -> None:
        """Nothing: the tables are no parameters of the module, so that nobody averages or saves them unasked."""

    def fill(self, initial: Mapping[str, Tensor], rule: UpdateRule, now: Callable[[], int]) -> None:
        """Take this process's rows out of whole tables, by name."""
        for lookup in self._lookups:
            lookup.fill(initial, rule, now, self._device)

    @property
    def lookups(self) -> Iterator[RowLookup]:
        yield from self._lookups


def _shard(table: Any) -> Shard:
    """What TorchRec says of a part of a table."""
    row, column = table.local_metadata.shard_offsets if table.local_metadata else (0, 0)
    size = (table.num_embeddings, table.embedding_dim)
    return Shard(table.name, size, row, column, table.local_rows, table.local_cols)


class RowSharder(EmbeddingBagCollectionSharder):
    """Makes a :class:`RowCollection` of each collection."""

    def shard(
        self, module: Any, params: Any, env: Any, device: torch.device | None = None, module_fqn: str | None = None
    ) -> RowCollection:
        return RowCollection(module, params, env, fused_params=self.fused_params, device=device, module_fqn=module_fqn)

    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [one.value for one in (*SHARDED, ShardingType.DATA_PARALLEL)]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """What the planner calculates with; :func:`crossrank.training.distributed.placement.plan` has the last word."""
        kernels = EmbeddingComputeKernel
        return [(kernels.DENSE if sharding_type == ShardingType.DATA_PARALLEL.value else kernels.FUSED).value]

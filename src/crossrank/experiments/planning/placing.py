"""Which device holds which part of which table: TorchRec's planner, as a distributed training asks it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

from crossrank.errors import quietly
from crossrank.experiments.planning.cluster import Cluster
from crossrank.experiments.planning.workload import Table, Workload
from crossrank.nn.embedding import embedding_layers
from crossrank.training.distributed.world import has_torchrec

EVENLY = "evenly"  # where TorchRec is not there to ask


@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows and columns of a table, on one device; or all of them on each, where it is data-parallel."""

    table: Table
    placement: str
    device: int
    rows: float
    width: float
    lookups: float = 1.0  # share of the table's lookups that come here
    sent: float = 0.0  # width of the vectors that it sends for each row of a batch

    @property
    def replicated(self) -> bool:
        return self.placement == "data-parallel"


def place(workload: Workload, cluster: Cluster, batch_size: int) -> list[Part]:
    """The parts of all tables.

    With one device there is nothing to place. Without TorchRec every device gets an equal share of each table, of its
    rows and of its vectors: the least memory that any placement needs.

    Args:
        workload: the tables.
        cluster: the devices.
        batch_size: rows of a step, of all devices together.

    Raises:
        ConfigError: where they do not fit, or a placement is asked for a feature that is not embedded.
    """
    count = cluster.num_devices
    if count == 1:
        return [Part(table, "table-wise", 0, table.rows, table.width, sent=table.width) for table in workload.tables]
    if not has_torchrec():
        return [
            Part(table, EVENLY, device, table.rows / count, table.width, 1 / count, table.width / count)
            for table in workload.tables
            for device in range(count)
        ]
    return _ask_torchrec(workload, cluster, batch_size)


def _ask_torchrec(workload: Workload, cluster: Cluster, batch_size: int) -> list[Part]:
    from crossrank.training.distributed.placement import asked_for, plan_ahead, specs, tell
    from crossrank.training.distributed.sharded_tables import ShardedEmbedding

    model, tables = workload.model, {table.name: table for table in workload.tables}
    names = {table.name: table.feature for table in workload.tables}
    chosen = asked_for(workload.config.training.placement, names)
    with quietly():
        divided = {id(layer): ShardedEmbedding(layer, str(i)) for i, layer in enumerate(embedding_layers(model))}
        network = copy.deepcopy(model, {**divided})
        made = plan_ahead(
            network,
            chosen,
            device=cluster.device.kind,
            world_size=cluster.num_devices,
            local_size=cluster.per_machine,
            memory=int(cluster.device_memory),
            batch_size=-(-batch_size // cluster.num_devices),
        )
    where = tell(made, {name: name for name in tables})
    return [part for name, spec in specs(made).items() for part in _parts(tables[name], where[name], spec, cluster)]


def _parts(table: Table, placement: str, spec: Any, cluster: Cluster) -> Sequence[Part]:
    if spec is None:
        return [Part(table, placement, device, table.rows, table.width) for device in range(cluster.num_devices)]
    by_row = placement == "row-wise"
    return [
        Part(
            table,
            placement,
            shard.placement.rank(),
            rows,
            width,
            lookups=rows / table.rows if by_row else 1.0,
            sent=width,
        )
        for shard in spec.shards
        for rows, width in [shard.shard_sizes]
    ]

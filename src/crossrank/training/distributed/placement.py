"""Where each table lies: TorchRec's planner, and what a person decides instead."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.remote_device import _remote_device
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, ShardingType
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.constants import CROSS_NODE_BANDWIDTH, INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.types import ShardingPlan

from crossrank.errors import ConfigError, did_you_mean, first_line, listing
from crossrank.models.build import memory
from crossrank.training.distributed.sharded_tables import RowSharder
from crossrank.training.distributed.world import World

NUMBERS_KEPT = 5  # for each weight of a table: itself, m, v, its average, and the best one so far
PLACEMENTS = {
    "table-wise": ShardingType.TABLE_WISE,
    "row-wise": ShardingType.ROW_WISE,
    "column-wise": ShardingType.COLUMN_WISE,
    "data-parallel": ShardingType.DATA_PARALLEL,
}


def asked_for(placement: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The placement of each table that a person decided; ``names`` are the features of the tables.

    Raises:
        ConfigError: for a feature that is not embedded.
    """
    known = set(names.values())
    for feature in placement:
        if feature not in known | {"all"}:
            raise ConfigError(
                f"training.placement must name embedded features, or 'all'; got '{feature}', known are "
                f"{listing(sorted(known))}.",
                hint=did_you_mean(feature, known),
            )
    chosen = {table: placement.get(feature, placement.get("all")) for table, feature in names.items()}
    return {table: how for table, how in chosen.items() if how is not None}


def plan(model: nn.Module, chosen: Mapping[str, str], *, world: World, batch_size: int) -> ShardingPlan:
    """Which process holds which rows and columns of each table; made by the first process, and told to the others.

    Args:
        model: with collections of tables that are to be divided.
        chosen: the placement of tables that the planner is not to decide, by table.
        world: the processes.
        batch_size: rows of each process in a step.
    """
    local, device = int(os.environ.get("LOCAL_WORLD_SIZE", str(world.size))), world.device
    room = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else memory() // local
    sizes = {"world_size": world.size, "local_size": local, "memory": room, "batch_size": batch_size}
    planner = _planner(model, chosen, device=device.type, **sizes)
    with _fitting(world.size):
        made: ShardingPlan = planner.collective_plan(model, [RowSharder()], dist.group.WORLD)
    return _as_trained(made, world.size)


def plan_ahead(model: nn.Module, chosen: Mapping[str, str], *, device: str, **sizes: int) -> ShardingPlan:
    """The same before there are any processes.

    Args:
        model: as above; its weights may be on torch's meta device.
        chosen: as above.
        device: cpu or cuda.
        sizes: world_size, local_size (of a machine), memory (bytes of each process), batch_size (rows of each).
    """
    planner = _planner(model, chosen, device=device, **sizes)
    with _fitting(sizes["world_size"]):
        made: ShardingPlan = planner.plan(model, [RowSharder()])
    return _as_trained(made, sizes["world_size"])


def _planner(
    model: nn.Module,
    chosen: Mapping[str, str],
    *,
    device: str,
    world_size: int,
    local_size: int,
    memory: int,
    batch_size: int,
) -> EmbeddingShardingPlanner:
    room = memory // NUMBERS_KEPT  # the planner counts weights alone
    inside = CROSS_NODE_BANDWIDTH if device == "cpu" else INTRA_NODE_BANDWIDTH  # gloo knows no faster way
    topology = Topology(
        world_size=world_size,
        local_world_size=local_size,
        compute_device=device,
        hbm_cap=room,
        ddr_cap=room,
        intra_host_bw=inside,
    )
    alone = [ShardingType.TABLE_WISE.value] if world_size == 1 else None  # there is nothing to divide
    collections = [part for part in model.modules() if isinstance(part, EmbeddingBagCollection)]
    tables = [table for collection in collections for table in collection.embedding_bag_configs()]
    constraints = {
        table.name: ParameterConstraints(
            sharding_types=[PLACEMENTS[chosen[table.name]].value] if table.name in chosen else alone,
            min_partition=-(-table.embedding_dim // world_size),  # columns for as many processes as there are, at most
        )
        for table in tables
    }
    return EmbeddingShardingPlanner(topology=topology, batch_size=batch_size, constraints=constraints, debug=False)


@contextlib.contextmanager
def _fitting(processes: int) -> Iterator[None]:
    try:
        yield
    except PlannerError as error:
        raise ConfigError(
            f"The tables must fit into the memory of {processes} processes; TorchRec's planner says: "
            f"{first_line(error)}.",
            hint="Take more or larger machines, narrower embeddings, or leave training.placement out.",
        ) from None


def _as_trained(made: ShardingPlan, processes: int) -> ShardingPlan:
    for table in _tables(made).values():
        table.compute_kernel = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
        if table.ranks and len({*table.ranks}) < len(table.ranks):  # two parts of a table in one process
            table.ranks = [(table.ranks[0] + i) % processes for i in range(len(table.ranks))]
            for part, rank in zip(table.sharding_spec.shards, table.ranks, strict=True):
                part.placement = _remote_device(f"rank:{rank}/{part.placement.device()}")
    return made


def _tables(made: ShardingPlan) -> dict[str, Any]:
    return {name: table for tables in made.plan.values() for name, table in tables.items()}


def specs(made: ShardingPlan) -> dict[str, Any]:
    """For each table which process holds which part; None for one that all hold."""
    return {name: table.sharding_spec for name, table in _tables(made).items()}


def tell(made: ShardingPlan, names: Mapping[str, str]) -> dict[str, str]:
    """The placement of each feature's table, in our words."""
    words = {kind.value: word for word, kind in PLACEMENTS.items()}
    return {names[name]: words[table.sharding_type] for name, table in _tables(made).items()}

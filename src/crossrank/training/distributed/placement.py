"""Where each table lies: TorchRec's planner, and what a person decides instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.remote_device import _remote_device
from torchrec.distributed.embedding_types import EmbeddingComputeKernel, ShardingType
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingPlan

from crossrank.errors import ConfigError, did_you_mean, listing
from crossrank.training.distributed.tables import RowSharder
from crossrank.training.distributed.world import World

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
    local = int(os.environ.get("LOCAL_WORLD_SIZE", str(world.size)))
    topology = Topology(world_size=world.size, local_world_size=local, compute_device=world.device.type)
    shapes = {name.split(".")[-2]: one.shape for name, one in model.named_parameters() if one.device.type == "meta"}
    constraints = {
        name: ParameterConstraints(
            sharding_types=[PLACEMENTS[chosen[name]].value] if name in chosen else None,
            min_partition=-(-width // world.size),  # columns for as many processes as there are, at most
        )
        for name, (_, width) in shapes.items()
    }
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=batch_size, constraints=constraints, debug=False)
    made: ShardingPlan = planner.collective_plan(model, [RowSharder()], dist.group.WORLD)
    for table in _tables(made).values():
        table.compute_kernel = EmbeddingComputeKernel.CUSTOMIZED_KERNEL.value
        if table.ranks and len({*table.ranks}) < len(table.ranks):  # two parts of a table in one process
            table.ranks = [(table.ranks[0] + i) % world.size for i in range(len(table.ranks))]
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

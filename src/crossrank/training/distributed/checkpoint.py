"""Checkpoints of a training on several processes, by torch.distributed.checkpoint.

::

    checkpoint/
      position.json         where the training stands, and which state belongs to it; written last, and at once
      state-1200/           safetensors, written by all processes at a time; each file says which part of what it holds

A table is one entry under one name, whoever holds which rows and columns of it, and so are Adam's m and v of it, its
average and the best weights so far. So a checkpoint can be read by another number of processes, with other placements,
and without TorchRec: :func:`read_best` fills an ordinary model.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties
from torch.distributed._shard.sharded_tensor.shard import Shard as LocalShard
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as read_entries
from torch.distributed.checkpoint.state_dict_saver import save as write_entries

from crossrank.errors import RunError, quietly
from crossrank.files import Contents, checksum, is_as_written, read_json, signed, write_json
from crossrank.folders import CHECKPOINT
from crossrank.models import Model
from crossrank.nn.embedding import embedding_layers
from crossrank.training.checkpoint import ANEW, Position, read_journal

if TYPE_CHECKING:
    from crossrank.training.distributed.engine import DistributedEngine

POSITION = "position.json"
FILE_BYTES = 2**28  # of all processes together; a file is copied in memory before it is written
TABLE = "table."  # the entries of a table: <what>.table.<its name>.<first row>.<first column>


def save(engine: DistributedEngine, folder: Path, position: Position, tensors: Mapping[str, Tensor]) -> None:
    """Write what all processes have beside the old checkpoint, then put it in its place; all call it."""
    place, world = folder / CHECKPOINT, engine.world
    state = place / f"state-{position.step}"
    packed = {name: tensor.contiguous() for name, tensor in tensors.items()}
    entries = _whole(engine, packed) | {f"random.{world.rank}": torch.get_rng_state()}
    with world.together():
        if world.is_first:
            shutil.rmtree(state, ignore_errors=True)
            state.mkdir(parents=True)
    with quietly():
        files, size = dict.fromkeys((f"random.{rank}" for rank in range(world.size)), 1), 0
        for name, entry in entries.items():
            size += math.prod(entry.size()) * 4
            files.setdefault(name, 1 + size // FILE_BYTES)
        writer = HuggingFaceStorageWriter(str(state), fqn_to_index_mapping=files, save_distributed=True)
        write_entries(entries, storage_writer=writer)
    with world.together():
        if world.is_first:
            sums = {file.name: checksum(file) for file in state.iterdir()}
            about = {"state": state.name, "state_checksums": sums, "world_size": world.size}
            write_json(place / POSITION, signed(dataclasses.asdict(position) | about))
            for other in place.iterdir():
                if other.name not in (state.name, POSITION):
                    shutil.rmtree(other, ignore_errors=True)


def load(engine: DistributedEngine, folder: Path) -> tuple[Position, list[str], dict[str, Tensor]]:
    """What :func:`save` wrote, by any number of processes, and the lines of the journal then.

    The weights and their state are read in place.
    """
    with engine.world.together():
        values, state = _position(folder, verify=engine.world.is_first)
    engine.optimizer.begin()
    best = {f"best.{name}": tensor.clone() for name, tensor in engine.model.state_dict().items()}
    buffers = {f"buffer.{name}": tensor for name, tensor in engine.model.named_buffers()}
    tensors = engine.state() | best | buffers
    packed = {name: tensor.contiguous() for name, tensor in tensors.items()}
    entries, own = _whole(engine, packed), f"random.{engine.world.rank}"
    known = engine.world.rank < values["world_size"]
    if known:
        entries[own] = torch.get_rng_state()
    _read(entries, state, alone=False)
    for name, tensor in tensors.items():
        tensor.copy_(packed[name])  # which is the same one mostly
    if known:
        torch.set_rng_state(entries[own])
    position = Position(**{field.name: values[field.name] for field in dataclasses.fields(Position)})
    return position, read_journal(folder)[: position.journal_lines], tensors


def whole_tables(model: Model) -> dict[str, Tensor]:
    """Every table of a plain model, under the name that it has in checkpoints: (v_i, e_i) each."""
    layers = enumerate(embedding_layers(model))
    return {f"{n}_{i}": layer.table(i) for n, layer in layers for i in range(len(layer.vocab_sizes))}


def read_best(model: Model, folder: Path) -> None:
    """Fill a plain model with the best weights of a checkpoint; in one process, which needs no TorchRec."""
    flat = {layer.weight.data_ptr() for layer in embedding_layers(model)}
    plain = {name: tensor for name, tensor in model.state_dict().items() if tensor.data_ptr() not in flat}
    tables = {f"{TABLE}{name}": table.detach() for name, table in whole_tables(model).items()}
    _read(
        {f"best.{name}": tensor for name, tensor in (plain | tables).items()},
        _position(folder, verify=True)[1],
        alone=True,
    )


def _position(folder: Path, *, verify: bool) -> tuple[dict[str, Any], Path]:
    """Where a training stands, and the folder of its state, whose files may be compared with their checksums."""
    values: dict[str, Any] = read_json(folder / CHECKPOINT / POSITION, dict[str, Any])
    if not is_as_written(values):
        raise RunError(f"{folder} is damaged: {POSITION} is not what was written.", hint=ANEW)
    if "world_size" not in values:
        raise RunError(
            f"{folder} must hold a checkpoint of a distributed training; got one of a single process.",
            hint="Resume it without --workers and without training.distributed.",
        )
    state = folder / CHECKPOINT / str(values["state"])
    if verify:
        Contents(state, values["state_checksums"], RunError, hint=ANEW).verify()
    return values, state


def _read(entries: Mapping[str, Tensor], state: Path, *, alone: bool) -> None:
    with quietly():
        read_entries(dict(entries), storage_reader=HuggingFaceStorageReader(str(state)), no_dist=alone)


def _whole(engine: DistributedEngine, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries as they are over all processes: parts of tables become parts of one entry.

    A table that nobody here has rows of is named all the same, since every process has to know of it.
    """
    entries = {name: tensor for name, tensor in tensors.items() if f".{TABLE}" not in name}
    kinds = ["weight", "exp_avg", "exp_avg_sq", *(["average"] if engine.optimizer.rule.decay else [])]
    kinds += ["best"] if any(name.startswith("best.") for name in tensors) else []
    for name, table in engine.whole.items():
        spec = engine.specs[name]
        for kind in kinds:
            prefix = f"{kind}.{TABLE}{name}."
            parts = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
            if spec is None:
                entries[prefix[:-1]] = parts["0.0"]
                continue
            about = spec.build_metadata(table.shape, TensorProperties(dtype=table.dtype))
            local = [
                LocalShard(parts[".".join(map(str, one.shard_offsets))], one)
                for one in about.shards_metadata
                if one.placement.rank() == engine.world.rank
            ]
            entries[prefix[:-1]] = ShardedTensor._init_from_local_shards_and_global_metadata(local, about)
    return entries

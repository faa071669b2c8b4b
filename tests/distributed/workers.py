"""What a process of a training does in the tests; started by torchrun, one job after the other."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from crossrank.data import EncodedDataset
from crossrank.training.checkpoint import Position
from crossrank.training.distributed import checkpoint
from crossrank.training.distributed.engine import DistributedEngine
from crossrank.training.distributed.world import World, joined
from crossrank.training.finish import seeded_model
from crossrank.training.loss import find_loss
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import Config
from crossrank.training.trainer import take_steps

KINDS = ("all_reduce", "all_gather", "all_to_all_single")
ORIGINALS = {kind: getattr(dist, kind) for kind in KINDS}


def engine_for(world: World, dataset: EncodedDataset, config: Config, *, double: bool) -> DistributedEngine:
    model = seeded_model(config, dataset, 0)
    settings = dataclasses.replace(config.training, tables="lazy")
    total = settings.total_steps(dataset.train.num_batches(settings.batch_size))
    return DistributedEngine(
        model.double() if double else model,
        dataset.train,
        settings,
        loss=find_loss(settings.loss, dataset.schema.label.kind),
        rule=UpdateRule(settings, total_steps=total),
        seed=0,
        world=world,
    )


def curve(world: World, dataset: EncodedDataset, values: dict, *, double: bool) -> dict:
    """The losses of all steps, the last norms, and the validation logits of raw and averaged weights."""
    config = Config.parse(values)
    engine = engine_for(world, dataset, config, double=double)
    per_epoch = dataset.train.num_batches(config.training.batch_size)
    losses, rows = [], 0
    for count, loss in take_steps(
        engine, Position(), total_steps=config.training.total_steps(per_epoch), batches_per_epoch=per_epoch
    ):
        losses.append(loss.item())
        rows += count
    counts = {slot.name: dataset.encoder.counts(slot.name) for slot in engine.plain.layout.embedded}
    logits = {}
    for averaged in (False, True):
        with engine.using(averaged=averaged):
            engine.model.fill_untrained_rows(counts)
            valid = engine.placed(dataset.valid)
            logits[averaged] = engine.model.predict_logits(b.features for b in valid.batches(16384)).tolist()
    return {
        "losses": losses, "rows": rows, "raw": logits[False], "averaged": logits[True],
        "placement": engine.placement, "by_torchrec": any(layer.exchange is None for layer in engine.layers),
        "network": sum(p.double().sum().item() for p in engine.network.parameters()),
    }  # fmt: skip


def held(world: World, dataset: EncodedDataset, values: dict) -> dict:
    """Where the tables lie after a step, and the bytes that this process keeps of them."""
    engine = engine_for(world, dataset, Config.parse(values), double=False)
    engine.step(next(iter(engine.batches(0, 0))))
    optimizer = engine.optimizer
    kept = [weight for _, weight, _ in engine.shards()]  # of the best ones so far, a copy
    for table in optimizer.lazy.tables:
        kept += [table.weight, table.state, table.last, table.owner]
    for weight in (weight for lookup in engine.lookups for weight in lookup.weights):
        kept += [weight.grad, *optimizer.parts(weight).values()]
    return {"placement": engine.placement, "bytes": sum(part.nbytes for part in kept)}


def exchanges(world: World, dataset: EncodedDataset, values: dict) -> dict:
    """How often a step sums over all processes, gathers from them, or swaps with them."""
    engine = engine_for(world, dataset, Config.parse(values), double=False)
    batches = iter(engine.batches(0, 0))
    engine.step(next(batches))
    with mock.patch.multiple(dist, **dict.fromkeys(KINDS, mock.DEFAULT)) as calls:
        for name, call in calls.items():
            call.side_effect = ORIGINALS[name]
        engine.step(next(batches))
        return {name: call.call_count for name, call in calls.items()}


def answers(engine: DistributedEngine, dataset: EncodedDataset) -> list[float]:
    """The validation logits of the averaged weights."""
    with engine.using(averaged=True):
        valid = engine.placed(dataset.valid)
        return engine.model.predict_logits(batch.features for batch in valid.batches(16384)).tolist()


def saved(world: World, dataset: EncodedDataset, values: dict, *, folder: str, steps: int) -> dict:
    """Take some steps, note the weights as the best ones, and save a checkpoint; then take some more."""
    engine = engine_for(world, dataset, Config.parse(values), double=False)
    position = Position(best=0.0)
    walk = take_steps(engine, position, total_steps=2 * steps, batches_per_epoch=10**6)
    for _ in range(steps):
        next(walk)
    found = answers(engine, dataset)
    with engine.using(averaged=True):
        best = {f"best.{name}": tensor.clone() for name, tensor in engine.model.state_dict().items()}
    buffers = {f"buffer.{name}": tensor for name, tensor in engine.model.named_buffers()}
    checkpoint.save(engine, Path(folder), position, {**engine.state(), **best, **buffers})
    parts = [shard.place for shard, _, _ in engine.shards()]
    return {"answers": found, "parts": parts, "later": [loss.item() for _, loss in walk]}


def loaded(world: World, dataset: EncodedDataset, values: dict, *, folder: str, steps: int) -> dict:
    """Open the checkpoint, and take the same further steps."""
    engine = engine_for(world, dataset, Config.parse(values), double=False)
    position, _, tensors = checkpoint.load(engine, Path(folder))
    engine.restore(tensors)
    found = answers(engine, dataset)
    walk = take_steps(engine, position, total_steps=2 * steps, batches_per_epoch=10**6)
    return {"answers": found, "later": [loss.item() for _, loss in walk]}


def main() -> None:
    jobs, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    with joined("cpu") as world:
        for number, job in enumerate(jobs):
            result = globals()[job.pop("job")](world, EncodedDataset.open(job.pop("dataset")), **job)
            (out / f"{number}.{world.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()

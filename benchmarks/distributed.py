"""A step of a distributed training: crossrank, and TorchRec's own DLRM_DCN, on the same gloo processes.

    .venv-distributed/bin/python benchmarks/distributed.py            1, 2 and 4 processes, a few minutes
    .venv-distributed/bin/python benchmarks/distributed.py --quick    few steps
    python benchmarks/distributed.py --gpu                            one process on a GPU, three shapes

Both have the same formula (dense arch, low-rank cross layers, over arch), the same tables, the same rows and the same
global batch, which the processes share. They take turns in one run, so that a busy moment of the machine meets both
alike. DLRM_DCN is trained as TorchRec's examples do: DistributedModelParallel, FBGEMM's fused row-wise Adagrad (it has
no Adam on a processor), torch's Adagrad for the rest. crossrank's step does more: Adam of all rows, a clip over all
shards and a moving average. Its placement is that of TorchRec's planner, as DLRM_DCN's is. Memory that a step gives
back is kept for the next one, as crossrank.train does; both have that, since they run in one process.

crossrank is there twice. As it is by default: its own cross layers, and products in bfloat16 where the processor has
that. And like for like, with TorchRec's cross layers and products in float32, as DLRM_DCN's are. So is DLRM_DCN: as it
is, and with its products in bfloat16 by autocast.

On a GPU crossrank's step is the captured one of its training on a single machine, with its shuffling and the gathering
of a batch. DLRM_DCN has its batches ready on the device, and runs as it is (no graph), by NCCL in a group of one; with
products in float32 (TF32 allowed) and in bfloat16, and with FBGEMM's fused Adam besides. All shapes of crossrank have
products in bfloat16 there, its default.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

NUM_NUMERIC = 13


class Shape(NamedTuple):
    batch: int
    dim: int
    rank: int
    dense_arch: list[int]
    over_arch: list[int]
    sizes: list[int]
    num_layers: int = 3


SIZES = [40_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500, 200, 100, 50, 20, 10, 5] * 2
SMALL = Shape(2048, 16, 32, [64, 16], [128, 64, 1], SIZES)
# The layers and widths of MLPerf's DLRM-DCNv2; its tables have 204 million rows, these 3.2
LARGE = Shape(8192, 128, 512, [512, 256, 128], [1024, 1024, 512, 256, 1], [20 * size for size in SIZES])
POWER = 1.05  # the k-th most frequent value of a feature has the weight k^-1.05
OURS, RIVAL = ("crossrank", "crossrank, layers and precision of DLRM_DCN"), "DLRM_DCN"
HALF = f"{RIVAL}, bfloat16"
# Products in bfloat16, and FBGEMM's optimiser of the tables; the last on a GPU only
RIVALS = {
    RIVAL: (False, "adagrad"),
    HALF: (True, "adagrad"),
    f"{RIVAL}, bfloat16, Adam": (True, "adam"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--gpu", action="store_true", help="one process on a GPU")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--large", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = LARGE._replace(batch=options.large) if options.large else SMALL
    if options.worker:
        rounds, steps = (3, 5) if options.quick else (11, 40 if options.gpu else 20)
        work(options.worker, shape, on_gpu=options.gpu, rounds=rounds, steps=steps)
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    flags = ["--quick"] if options.quick else []
    if options.gpu:
        for one in (SMALL, LARGE, LARGE._replace(batch=8 * LARGE.batch)):
            print(f"\nbatch {one.batch}, {len(one.sizes)} tables, {sum(one.sizes):,} rows of {one.dim}\n")
            print("| | ms a step | least | DLRM_DCN's least ms over ours |\n| --- |" + " ---: |" * 3)
            size = ["--large", str(one.batch)] if one.dim == LARGE.dim else []
            found = run_workers(1, ["--gpu", *flags, *size])
            best = min(min(found[name][0]) for name in RIVALS)
            for name, (times, _) in found.items():
                ratio = "" if name in RIVALS else f"{best / min(times):.2f}"
                print(
                    f"| {name} | {statistics.median(times) * 1000:.3f} | {min(times) * 1000:.3f} | {ratio} |",
                    flush=True,
                )
        return
    print(
        f"global batch {shape.batch}, {len(SIZES)} tables, {sum(SIZES):,} rows of {shape.dim}, one thread a process\n"
    )
    columns = ["processes", "", "ms a step", "processor ms a step"]
    columns += [f"{name}'s ms over ours" for name in (RIVAL, HALF)]
    print(f"| {' | '.join(columns)} |")
    print("| ---: | --- |" + " ---: |" * 4)
    for processes in (1, 2, 4):
        found = run_workers(processes, flags)
        for name in (*OURS, RIVAL, HALF):
            row = [f"{statistics.median(times) * 1000:.1f}" for times in found[name]]
            for rival in (RIVAL, HALF):
                turns = zip(found[name][0], found[rival][0], strict=True)
                row.append(f"{statistics.median(b / a for a, b in turns):.2f}" if name in OURS else "")
            print(f"| {processes} | {name} | {' | '.join(row)} |", flush=True)


def run_workers(processes: int, flags: list[str]) -> dict:
    """By name, the seconds of a step in each round: by the clock, and of a process's processor time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        words = [__file__, "--worker", folder, *flags]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*command, *words], check=True, env=environment, stderr=subprocess.DEVNULL)
        return json.loads(Path(folder, "result.json").read_text())


def work(folder: Path, shape: Shape, *, on_gpu: bool, rounds: int, steps: int) -> None:
    """Take turns, and write the seconds of a step in each round, by the clock and of a process's processor time."""
    import numpy as np
    import torch

    from crossrank.errors import quietly
    from crossrank.training.distributed.world import joined
    from crossrank.training.memory import keep_freed_memory

    keep_freed_memory()
    torch.manual_seed(0)
    with joined("cuda" if on_gpu else "cpu") as world, quietly():
        draw = np.random.default_rng(world.rank)
        share = shape.batch // world.size
        rows = [rows_of(draw, shape, share) for _ in range(8)]
        if on_gpu:
            torch.backends.cuda.matmul.allow_tf32 = True
            contenders = {name: captured(shape, rows, alike=i > 0) for i, name in enumerate(OURS)}
            for name, (bfloat16, rule) in RIVALS.items():
                contenders[name] = theirs(world, shape, share, bfloat16=bfloat16, rule=rule)
            rows = [tuple(one.to("cuda") for one in batch) for batch in rows]
        else:
            contenders = {name: ours(world, shape, alike=i > 0) for i, name in enumerate(OURS)}
            contenders |= {name: theirs(world, shape, share, bfloat16=name == HALF) for name in (RIVAL, HALF)}
        found: dict = {name: ([], []) for name in contenders}
        for turn in range(rounds + 1):
            for name, step in contenders.items():
                world.wait()
                start = time.perf_counter(), time.process_time()
                for number in range(steps):
                    step(*rows[number % len(rows)])
                used = torch.tensor(time.process_time() - start[1], device=world.device)
                if on_gpu:
                    torch.cuda.synchronize()
                world.wait()
                seconds = time.perf_counter() - start[0], world.sum(used).item() / world.size
                if turn:  # the first warms up
                    for times, value in zip(found[name], seconds, strict=True):
                        times.append(value / steps)
        if world.is_first:
            (folder / "result.json").write_text(json.dumps(found))
        del step
        contenders.clear()  # what holds on to the group must go before it
        gc.collect()


def rows_of(draw, shape: Shape, count: int) -> tuple:
    """Ids, numbers and labels."""
    import numpy as np
    import torch

    columns = []
    for size in shape.sizes:
        weights = np.arange(1, size + 1) ** -POWER
        columns.append(draw.choice(size, count, p=weights / weights.sum()))
    ids = torch.from_numpy(np.stack(columns, axis=1))
    numbers = torch.from_numpy(draw.normal(size=(count, NUM_NUMERIC)).astype(np.float32))
    return ids, numbers, torch.from_numpy((draw.random(count) < 0.25).astype(np.float32))


def network(shape: Shape, *, alike: bool):
    """DLRM_DCN as a model of ours; ``alike``: with TorchRec's own cross layers, otherwise with ours."""
    import torch
    from torch import nn
    from torchrec.models.dlrm import DenseArch, OverArch
    from torchrec.modules.crossnet import LowRankCrossNet

    from crossrank.models import Model
    from crossrank.nn import LowRankCrossLayer
    from crossrank.schema import Feature, InputLayout

    class Network(Model):
        """DLRM_DCN on our x0."""

        def __init__(self, layout: InputLayout) -> None:
            super().__init__(layout)
            width, count = (len(shape.sizes) + 1) * shape.dim, shape.num_layers
            self.dense_arch = DenseArch(NUM_NUMERIC, shape.dense_arch)
            self.theirs = LowRankCrossNet(width, count, shape.rank) if alike else None
            own = (LowRankCrossLayer(width, rank=shape.rank) for _ in range(0 if alike else count))
            self.crosses = nn.ModuleList(own)
            self.over: nn.Module = OverArch(width, shape.over_arch)

        def logits(self, x0):
            embedded, numbers = x0.split([len(shape.sizes) * shape.dim, NUM_NUMERIC], dim=1)
            first = crossed = torch.cat([self.dense_arch(numbers.detach()), embedded], dim=1)
            if self.theirs is not None:
                crossed = self.theirs(first)
            for layer in self.crosses:
                crossed = layer(first, crossed)
            return self.over(crossed)[:, 0]

    features = [
        *(Feature(f"c{i}", "categorical", size) for i, size in enumerate(shape.sizes)),
        *(Feature(f"n{i}", "numeric") for i in range(NUM_NUMERIC)),
    ]
    return Network(InputLayout.plan(features, embedding_dim=shape.dim))


def split_of(ids, numbers, labels):
    import numpy as np

    from crossrank.data import EncodedRows, Split
    from crossrank.data.rows import LabeledRows

    return Split(LabeledRows(EncodedRows(ids.numpy().astype(np.uint32), numbers.numpy()), labels.numpy()))


def ours(world, shape: Shape, *, alike: bool) -> Callable:
    """``alike``: with TorchRec's own cross layers, and products in float32; otherwise with ours, as is the default."""
    import torch

    from crossrank.data import Batch
    from crossrank.nn import Features
    from crossrank.training.distributed.engine import DistributedEngine, Share
    from crossrank.training.loss import LogLoss
    from crossrank.training.rule import UpdateRule
    from crossrank.training.settings import TrainingSettings

    settings = TrainingSettings(batch_size=shape.batch, tables="lazy", precision="float32" if alike else "auto")
    none = split_of(torch.empty(0, len(shape.sizes)), torch.empty(0, NUM_NUMERIC), torch.empty(0))
    model, rule = network(shape, alike=alike), UpdateRule(settings)
    engine = DistributedEngine(model, none, settings, loss=LogLoss(), rule=rule, seed=0, world=world)

    def step(ids, numbers, labels) -> None:
        engine.step(Share(Batch(Features(ids, numbers), labels), shape.batch))

    return step


def captured(shape: Shape, rows: list, *, alike: bool) -> Callable:
    """The same on one GPU, by the engine of a training on one machine, which shuffles and gathers by itself."""
    import itertools

    import torch

    from crossrank.training.cuda.engine import CapturedEngine
    from crossrank.training.loss import LogLoss
    from crossrank.training.rule import UpdateRule
    from crossrank.training.settings import TrainingSettings

    device, model = torch.device("cuda"), network(shape, alike=alike)
    settings = TrainingSettings(batch_size=shape.batch).for_model(model, "cuda")
    split = split_of(*map(torch.cat, zip(*rows, strict=True)))
    engine = CapturedEngine(model, split, settings, loss=LogLoss(), rule=UpdateRule(settings), seed=0, device=device)
    batches = itertools.chain.from_iterable(engine.batches(epoch, 0) for epoch in itertools.count())
    return lambda *_: engine.step(next(batches))


def theirs(world, shape: Shape, share: int, *, bfloat16: bool = False, rule: str = "adagrad") -> Callable:
    import torch
    import torch.distributed as dist
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torch import nn
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.types import ShardingEnv
    from torchrec.models.dlrm import DLRM_DCN

    names, device = [f"c{i}" for i in range(len(shape.sizes))], world.device
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=shape.dim, num_embeddings=size, feature_names=[name])
        for name, size in zip(names, shape.sizes, strict=True)
    ]
    model = DLRM_DCN(
        EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
        NUM_NUMERIC,
        shape.dense_arch,
        shape.over_arch,
        dcn_num_layers=shape.num_layers,
        dcn_low_rank_dim=shape.rank,
        dense_device=device,
    )
    kind = EmbOptimType.ADAM if rule == "adam" else EmbOptimType.EXACT_ROWWISE_ADAGRAD
    sharders = [EmbeddingBagCollectionSharder(fused_params={"optimizer": kind, "learning_rate": 1e-3})]
    planner = EmbeddingShardingPlanner(Topology(world.size, compute_device=device.type), batch_size=share, debug=False)
    made = planner.collective_plan(model, sharders, dist.group.WORLD)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    parallel = DistributedModelParallel(model, env=env, device=device, plan=made, sharders=sharders)
    rest = _others(parallel)
    dense = torch.optim.Adam(rest, lr=1e-3, fused=True) if rule == "adam" else torch.optim.Adagrad(rest, lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()

    def step(ids, numbers, labels) -> None:
        lengths = torch.ones(len(names) * len(ids), dtype=torch.int32, device=device)
        dense.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            logits = parallel(numbers, KeyedJaggedTensor(names, ids.T.flatten(), lengths=lengths))
        criterion(logits[:, 0].float(), labels).backward()
        dense.step()

    return step


def _others(parallel) -> list:
    """The parameters that no fused optimiser moves."""
    return [p for name, p in parallel.named_parameters() if "embedding_bags" not in name]


if __name__ == "__main__":
    main()

"""A step of a distributed training: crossrank, and TorchRec's own DLRM_DCN, on the same gloo processes.

    .venv-distributed/bin/python benchmarks/distributed.py            1, 2 and 4 processes, a few minutes
    .venv-distributed/bin/python benchmarks/distributed.py --quick    few steps

Both have the same formula (dense arch, low-rank cross layers, over arch), the same tables, the same rows and the same
global batch, which the processes share. They take turns in one run, so that a busy moment of the machine meets both
alike. DLRM_DCN is trained as TorchRec's examples do: DistributedModelParallel, FBGEMM's fused row-wise Adagrad (it has
no Adam on a processor), torch's Adagrad for the rest. crossrank's step does more: Adam of all rows, a clip over all
shards and a moving average. Its placement is that of TorchRec's planner, as DLRM_DCN's is.

crossrank is there twice. As it is by default: its own cross layers, and products in bfloat16 where the processor has
that. And like for like, with TorchRec's cross layers and products in float32, as DLRM_DCN's are.
"""

from __future__ import annotations

import argparse
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

BATCH, DIM, NUM_NUMERIC, RANK, LAYERS = 2048, 16, 13, 32, 3
DENSE_ARCH, OVER_ARCH = [64, DIM], [128, 64, 1]
SIZES = [40_000, 20_000, 10_000, 5_000, 2_000, 1_000, 500, 200, 100, 50, 20, 10, 5] * 2
POWER = 1.05  # the k-th most frequent value of a feature has the weight k^-1.05
OURS, RIVAL = ("crossrank", "crossrank, layers and precision of DLRM_DCN"), "DLRM_DCN"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, rounds=3 if options.quick else 11, steps=5 if options.quick else 20)
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"global batch {BATCH}, {len(SIZES)} tables, {sum(SIZES):,} rows of {DIM}, one thread a process\n")
    columns = ["processes", "", "ms a step", "processor ms a step", "DLRM_DCN's ms over ours", "processor ms over ours"]
    print(f"| {' | '.join(columns)} |")
    print("| ---: | --- |" + " ---: |" * 4)
    for processes in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            words = [str(processes), __file__, "--worker", folder, *(["--quick"] if options.quick else [])]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run([*command, *words], check=True, env=environment, stderr=subprocess.DEVNULL)
            found = json.loads(Path(folder, "result.json").read_text())
        for name in (*OURS, RIVAL):
            row = [f"{statistics.median(times) * 1000:.1f}" for times in found[name]]
            if name != RIVAL:
                pairs = zip(found[name], found[RIVAL], strict=True)  # turn by turn
                row += [f"{statistics.median(b / a for a, b in zip(*two, strict=True)):.2f}" for two in pairs]
            else:
                row += ["", ""]
            print(f"| {processes} | {name} | {' | '.join(row)} |", flush=True)


def work(folder: Path, *, rounds: int, steps: int) -> None:
    """Take turns, and write the seconds of a step in each round, by the clock and of a process's processor time."""
    import numpy as np
    import torch

    from crossrank.errors import quietly
    from crossrank.training.distributed.world import joined

    torch.manual_seed(0)
    with joined("cpu") as world:
        draw = np.random.default_rng(world.rank)
        share = BATCH // world.size
        rows = [rows_of(draw, share) for _ in range(8)]
        with quietly():
            contenders = {name: ours(world, alike=alike) for name, alike in zip(OURS, (False, True), strict=True)}
            contenders[RIVAL] = theirs(world, share)
        found: dict = {name: ([], []) for name in contenders}
        for turn in range(rounds + 1):
            for name, step in contenders.items():
                world.wait()
                start = time.perf_counter(), time.process_time()
                for number in range(steps):
                    step(*rows[number % len(rows)])
                used = torch.tensor(time.process_time() - start[1])
                world.wait()
                seconds = time.perf_counter() - start[0], world.sum(used).item() / world.size
                if turn:  # the first warms up
                    for times, value in zip(found[name], seconds, strict=True):
                        times.append(value / steps)
        if world.is_first:
            (folder / "result.json").write_text(json.dumps(found))


def rows_of(draw, count: int) -> tuple:
    """Ids, numbers and labels."""
    import numpy as np
    import torch

    columns = []
    for size in SIZES:
        weights = np.arange(1, size + 1) ** -POWER
        columns.append(draw.choice(size, count, p=weights / weights.sum()))
    ids = torch.from_numpy(np.stack(columns, axis=1))
    numbers = torch.from_numpy(draw.normal(size=(count, NUM_NUMERIC)).astype(np.float32))
    return ids, numbers, torch.from_numpy((draw.random(count) < 0.25).astype(np.float32))


def ours(world, *, alike: bool) -> Callable:
    """``alike``: with TorchRec's own cross layers, and products in float32; otherwise with ours, as is the default."""
    import torch
    from torch import nn
    from torchrec.models.dlrm import DenseArch, OverArch
    from torchrec.modules.crossnet import LowRankCrossNet

    from crossrank.data import Batch, EncodedRows, Split
    from crossrank.data.rows import LabeledRows
    from crossrank.models import Model
    from crossrank.nn import Features, LowRankCrossLayer
    from crossrank.schema import Feature, InputLayout
    from crossrank.training.distributed.engine import DistributedEngine, Share
    from crossrank.training.loss import LogLoss
    from crossrank.training.rule import UpdateRule
    from crossrank.training.settings import TrainingSettings

    class Network(Model):
        """DLRM_DCN on our x0."""

        def __init__(self, layout: InputLayout) -> None:
            super().__init__(layout)
            width = (len(SIZES) + 1) * DIM
            self.dense_arch = DenseArch(NUM_NUMERIC, DENSE_ARCH)
            self.theirs = LowRankCrossNet(width, LAYERS, RANK) if alike else None
            self.crosses = nn.ModuleList(LowRankCrossLayer(width, rank=RANK) for _ in range(0 if alike else LAYERS))
            self.over: nn.Module = OverArch(width, OVER_ARCH)

        def logits(self, x0):
            embedded, numbers = x0.split([len(SIZES) * DIM, NUM_NUMERIC], dim=1)
            first = crossed = torch.cat([self.dense_arch(numbers.detach()), embedded], dim=1)
            if self.theirs is not None:
                crossed = self.theirs(first)
            for layer in self.crosses:
                crossed = layer(first, crossed)
            return self.over(crossed)[:, 0]

    features = [
        *(Feature(f"c{i}", "categorical", size) for i, size in enumerate(SIZES)),
        *(Feature(f"n{i}", "numeric") for i in range(NUM_NUMERIC)),
    ]
    import numpy as np

    settings = TrainingSettings(batch_size=BATCH, tables="lazy", precision="float32" if alike else "auto")
    empty = EncodedRows(np.empty((0, len(SIZES)), np.uint32), np.empty((0, NUM_NUMERIC), np.float32))
    split = Split(LabeledRows(empty, np.empty(0, np.float32)))
    model = Network(InputLayout.plan(features, embedding_dim=DIM))
    engine = DistributedEngine(model, split, settings, loss=LogLoss(), rule=UpdateRule(settings), seed=0, world=world)

    def step(ids, numbers, labels) -> None:
        engine.step(Share(Batch(Features(ids, numbers), labels), BATCH))

    return step


def theirs(world, share: int) -> Callable:
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

    names = [f"c{i}" for i in range(len(SIZES))]
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=size, feature_names=[name])
        for name, size in zip(names, SIZES, strict=True)
    ]
    model = DLRM_DCN(
        EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
        NUM_NUMERIC,
        DENSE_ARCH,
        OVER_ARCH,
        dcn_num_layers=LAYERS,
        dcn_low_rank_dim=RANK,
    )
    fused = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": 1e-3}
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused)]
    planner = EmbeddingShardingPlanner(Topology(world.size, compute_device="cpu"), batch_size=share, debug=False)
    made = planner.collective_plan(model, sharders, dist.group.WORLD)
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    parallel = DistributedModelParallel(model, env=env, device=torch.device("cpu"), plan=made, sharders=sharders)
    dense = torch.optim.Adagrad(_others(parallel), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()

    def step(ids, numbers, labels) -> None:
        lengths = torch.ones(len(SIZES) * len(ids), dtype=torch.int32)
        dense.zero_grad()
        logits = parallel(numbers, KeyedJaggedTensor(names, ids.T.flatten(), lengths=lengths))
        criterion(logits[:, 0], labels).backward()
        dense.step()

    return step


def _others(parallel) -> list:
    """The parameters that no fused optimiser moves."""
    return [p for name, p in parallel.named_parameters() if "embedding_bags" not in name]


if __name__ == "__main__":
    main()

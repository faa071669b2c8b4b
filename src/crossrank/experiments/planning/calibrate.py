"""The rates of this machine: products, embedding rows, gloo, what a step takes besides, and the rest of a whole step.

Products and whole steps are measured by the clock on all cores, so that a core has what it has beside the others; the
rest on one thread, in processor time, which other programs lengthen less. Of all repeats the one counts that a quarter
undercut.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from crossrank.data import Batch, EncodedRows, Split
from crossrank.data.rows import LabeledRows
from crossrank.errors import quietly
from crossrank.experiments.bench import FEATURES
from crossrank.experiments.planning.cluster import Cluster
from crossrank.experiments.planning.estimate import EXCHANGES, make_plan
from crossrank.experiments.planning.rates import DEVICES, RATES_FILE, Device, write_rates
from crossrank.experiments.planning.workload import Workload, row_traffic
from crossrank.experiments.processes import torch_threads
from crossrank.models import build_model, parse_model_settings
from crossrank.models.build import memory
from crossrank.nn import Features
from crossrank.training.device import processor_has_bfloat16
from crossrank.training.distributed.world import has_torchrec
from crossrank.training.lazy import LazyTable, Reads
from crossrank.training.loss import LogLoss
from crossrank.training.processor import ProcessorEngine
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import Config, TrainingSettings

BATCH, INPUT_DIM, SENT = 1024, 429, 2**20  # rows of a layer's products, its width; numbers that are exchanged
STEP_ROWS = 4096  # of a whole step
ROWS, WIDTH, LOOKUPS = 200_000, 16, 2**15  # of a table, and of a step that reads it


def calibrate(path: Path = RATES_FILE, *, say: Callable[[str], None] = lambda _: None) -> Device:
    """Measure this machine, and write its rates to a file.

    Args:
        path: the file; :func:`~crossrank.experiments.planning.find_device` reads it for the device ``here``.
        say: told what is measured.
    """
    torch.manual_seed(0)
    cores = os.cpu_count() or 1
    say("matrix products, embedding rows")
    with torch_threads(cores):
        float32 = _products(torch.float32) / cores
        bfloat16 = _products(torch.bfloat16) / cores if processor_has_bfloat16() else float32
    with torch_threads(1):
        row_stream, alone = _row_stream(), _step(1)
    say("gloo between two processes, steps through TorchRec")
    if not has_torchrec():
        say("TorchRec is not installed: what a step through it takes besides is taken from another machine")
    one, two = together(1), together(2)
    exchanges = EXCHANGES + 1  # and one all-reduce
    device = Device(
        about=f"a core of {platform.processor() or platform.machine()}, measured by crossrank plan --calibrate",
        kind="cpu",
        memory=float(memory()),
        float32=float32,
        bfloat16=bfloat16,
        stream=1.0,
        row_stream=row_stream,
        all_reduce=two["all_reduce"],
        all_to_all=two["all_to_all"],
        latency=max(two["step"] - one["step"], 1e-6) / exchanges if has_torchrec() else two["latency"],
        alone=alone,
        together=one["step"] if has_torchrec() else DEVICES["cpu"].together,
        cores=cores,
    )
    say("a whole step")
    with torch_threads(cores):
        device = dataclasses.replace(device, stream=_stream(device))
    write_rates(path, device)
    return device


def _seconds(work: Callable[[], object], repeats: int = 15, clock: Callable[[], float] = time.process_time) -> float:
    """Of this process; the first calls warm up."""
    times = []
    for _ in range(repeats + 3):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.quantiles(times[3:], n=4)[0]


def _products(dtype: torch.dtype) -> float:
    """The three products of a layer, forward and backward, of a width that is no power of two."""
    x, weight = torch.randn(BATCH, INPUT_DIM, dtype=dtype), torch.randn(INPUT_DIM, INPUT_DIM, dtype=dtype)
    return 3 * 2 * BATCH * INPUT_DIM**2 / _seconds(lambda: (x @ weight, x @ weight.T, x.T @ x), clock=time.perf_counter)


def _stream(device: Device) -> float:
    """Bytes a second of elementwise operations with which a whole step is planned as long as it takes.

    Parts that are measured apart find the caches full of their own; together they do not.
    """
    config = Config.parse({"training": {"batch_size": STEP_ROWS, "tables": "lazy"}})
    workload = Workload.of(config, FEATURES, rows=STEP_ROWS)

    def planned(stream: float) -> float:
        return make_plan(
            workload, Cluster(device=dataclasses.replace(device, stream=stream), cores=device.cores)
        ).step.total

    whole, least = _step(STEP_ROWS, clock=time.perf_counter), planned(1e30)
    return (planned(1.0) - least) / max(whole - least, whole / 10)  # where other programs disturbed one of the two


def _row_stream() -> float:
    """Steps of a table whose rows are read as unevenly as those of a click log."""
    training = TrainingSettings()
    table = LazyTable(torch.randn(ROWS, WIDTH), UpdateRule(training))
    step = 1000
    reads = Reads([table], lambda: step)
    draw = np.random.default_rng(0)
    ids = [torch.from_numpy((ROWS ** draw.random(LOOKUPS)).astype(np.int64) - 1) for _ in range(3)]

    def update() -> None:
        nonlocal step
        torch.autograd.backward(reads.read(0, ids[step % 3]).sum())
        for touched in reads.take():
            step += 1
            table.update(touched, step=step)

    lookup, change = row_traffic(WIDTH, training.average_decay)
    distinct = statistics.mean(len(set(one.tolist())) for one in ids)
    return (lookup * LOOKUPS + change * distinct) / _seconds(update)


def _step(num_rows: int, world: Any = None, clock: Callable[[], float] = time.process_time) -> float:
    """A step of so many rows, alone or each of the processes of a world."""
    ids = torch.stack([torch.randint(one.vocab_size, (num_rows,)) for one in FEATURES if one.vocab_size], dim=1)
    count, size = ids.shape[1], num_rows * (world.size if world else 1)
    settings = TrainingSettings(batch_size=size, tables="lazy", placement={"all": "table-wise"})
    rows = EncodedRows(np.empty((0, count), np.uint32), np.empty((0, len(FEATURES) - count), np.float32))
    split = Split(LabeledRows(rows, np.empty(0, np.float32)))
    model = build_model(parse_model_settings({}), FEATURES)
    options: dict[str, Any] = {"loss": LogLoss(), "rule": UpdateRule(settings), "seed": 0}
    batch = Batch(Features(ids, torch.zeros(num_rows, len(FEATURES) - count)), torch.ones(num_rows))
    if world is None:
        alone = ProcessorEngine(model, split, settings, **options)
        return _seconds(lambda: alone.step(batch), 30, clock)
    from crossrank.training.distributed.engine import DistributedEngine, Share

    engine = DistributedEngine(model, split, settings, **options, world=world)
    return _seconds(lambda: engine.step(Share(batch, size)), 30, clock)


def together(size: int) -> dict[str, float]:
    """What processes on this machine measure together, the first one's word."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_work, (size, folder), nprocs=size)  # type: ignore[no-untyped-call]
        found: dict[str, float] = json.loads(Path(folder, "found.json").read_text(encoding="utf-8"))
    return found


def _work(rank: int, size: int, folder: str) -> None:
    from crossrank.training.distributed.world import World

    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), size)  # type: ignore[attr-defined]
    with quietly():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
        values, empty, few = torch.ones(SENT), torch.empty(SENT), torch.ones(size)
        sent = 2 * (size - 1) / size * 4 * SENT
        found = {
            "all_reduce": sent / _seconds(lambda: dist.all_reduce(values)),
            "all_to_all": sent / 2 / _seconds(lambda: dist.all_to_all_single(empty, values)),
            "latency": _seconds(lambda: dist.all_reduce(few), 50),
        }
        if has_torchrec():
            torch.manual_seed(0)
            found["step"] = _step(1, World(rank, size, torch.device("cpu")))
        if rank == 0:
            Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")
        dist.barrier()
        dist.destroy_process_group()


def rates_table(device: Device) -> list[tuple[str, str]]:
    """What was measured, in words and units."""
    rates = dataclasses.asdict(device)
    giga = ("float32", "bfloat16")
    lines = [(f"products in {name}", f"{rates[name] / 1e9:,.1f} GFLOP/s a core") for name in giga]
    moved = {"stream": "elementwise operations", "row_stream": "embedding rows", "all_reduce": "gloo, all-reduce"}
    moved["all_to_all"] = "gloo, all-to-all"
    lines += [(about, f"{rates[name] / 1e9:,.2f} GB/s") for name, about in moved.items()]
    spent = {"latency": "an exchange between two processes", "alone": "a step besides, one process"}
    spent["together"] = "a step besides, through TorchRec"
    return lines + [(about, f"{rates[name] * 1e3:,.2f} ms") for name, about in spent.items()]

"""A step as `crossrank plan` plans it beside one that was measured, on 1, 2 and 4 gloo processes of this machine.

    .venv-distributed/bin/python benchmarks/plan.py                     calibrates first; a few minutes
    .venv-distributed/bin/python benchmarks/plan.py --rates FILE        with the rates of `crossrank plan --calibrate`

One process takes the steps of an ordinary training, with as many threads as there are cores; several take those of a
distributed one. *clock* is what a step took; *processor* is the processor time of all processes over the number of
cores, which is what an idle machine needs at least. Where other programs are at work, only the latter says something.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = (  # width of embeddings, rows in a step
    (16, 2048),
    (16, 8192),
    (39, 2048),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=Path, help="made by `crossrank plan --calibrate`")
    parser.add_argument("--seconds", type=float, default=10, help="of steps, for each number of processes")
    parser.add_argument("--cases", type=int, default=len(CASES), help="how many of the shapes")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        folder, dim, batch, seconds = options.worker
        work(Path(folder), config(int(dim), int(batch)), float(seconds))
        return

    from crossrank.data import EncodedDataset
    from crossrank.data.generators.criteo_like import truth
    from crossrank.data.generators.synthetic import synthesize
    from crossrank.experiments.planning import Cluster, Workload, calibrate, find_device, make_plan
    from crossrank.training import Config

    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        rates = options.rates or Path(folder, "rates.json")
        if not options.rates:
            calibrate(rates, say=lambda text: print(f"measuring {text}", file=sys.stderr))
        device = find_device("here", rates)
        made = synthesize(Path(folder, "data"), rows=300_000, format="encoded")
        data = EncodedDataset.open(made.path)
        counts = {one.name: one.shares for one in truth().categories}  # exactly, where a small log has seen few values
        print(f"{device.about}; {cores} cores, load {os.getloadavg()[0]:.1f}\n")
        print("| width | rows | processes | planned ms | clock ms | ratio | processor ms | ratio |")
        print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for dim, batch in CASES[: options.cases]:
            workload = Workload.of(Config.parse(config(dim, batch)), data.features, rows=len(data.train), counts=counts)
            for processes in (1, 2, 4):
                plan = make_plan(
                    workload, Cluster(device=device, per_machine=processes, cores=cores, memory=device.memory)
                )
                clock, processor = measured(folder, dim, batch, processes, options.seconds, cores)
                planned = 1e3 * plan.step.total
                print(
                    f"| {dim} | {batch:,} | {processes} | {planned:.1f} | {clock:.1f} | {planned / clock:.2f} | "
                    f"{processor:.1f} | {planned / processor:.2f} |",
                    flush=True,
                )
                parts = {name: round(1e3 * part, 1) for name, part in dataclasses.asdict(plan.step).items()}
                print(f"{processes} processes, planned: {parts}", file=sys.stderr)


def config(dim: int, batch: int) -> dict:
    return {"model": {"embedding": {"dim": dim}}, "training": {"batch_size": batch, "tables": "lazy"}}


def measured(folder: str, dim: int, batch: int, processes: int, seconds: float, cores: int) -> tuple[float, float]:
    """Milliseconds of a step: by the clock, and processor time over cores."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words = [__file__, "--worker", folder, str(dim), str(batch), str(seconds)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(cores // processes, 1))}
    subprocess.run([*command, *words], check=True, env=environment, stderr=subprocess.DEVNULL)
    found = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(processes)]
    return 1e3 * found[0]["clock"], 1e3 * sum(one["processor"] for one in found) / cores


def work(folder: Path, values: dict, seconds: float) -> None:
    """Take steps for a while, and write what one took."""
    import torch

    from crossrank.data import EncodedDataset
    from crossrank.training import Config
    from crossrank.training.distributed.engine import DistributedEngine
    from crossrank.training.distributed.world import joined
    from crossrank.training.finish import seeded_model
    from crossrank.training.loss import LogLoss
    from crossrank.training.processor import ProcessorEngine
    from crossrank.training.rule import UpdateRule

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    parsed, data = Config.parse(values), EncodedDataset.open(folder / "data")
    with joined("cpu") as world:
        model, settings = seeded_model(parsed, data, 0), parsed.training
        options = {"loss": LogLoss(), "rule": UpdateRule(settings), "seed": 0}
        if world.size > 1:
            engine = DistributedEngine(model, data.train, settings, **options, world=world)
        else:
            engine = ProcessorEngine(model, data.train, settings, **options)
        clocks, processors, epoch, batches = [], [], 0, iter(())
        going, start = torch.ones(1), time.perf_counter()
        while going:
            clock, processor = time.perf_counter(), time.process_time()
            batch = next(batches, None)
            if batch is None or len(batch if world.size == 1 else batch.batch) * world.size < settings.batch_size:
                batches, epoch = iter(engine.batches(epoch, 0)), epoch + 1  # the last batch of an epoch is smaller
                continue
            engine.step(batch)
            clocks.append(time.perf_counter() - clock)
            processors.append(time.process_time() - processor)
            going = torch.tensor([float(time.perf_counter() - start < seconds or len(clocks) < 8)])
            if world.size > 1:
                world.sum(going)
                going = going == world.size
    # The first steps warm up.
    found = {"clock": statistics.median(clocks[3:]), "processor": statistics.quantiles(processors[3:], n=4)[0]}
    (folder / f"{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

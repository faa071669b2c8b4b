"""How fast DCN-V2 trains on one GPU at the paper's Criteo shape: ``python benchmarks/train_gpu.py --into all.json``.

Generates an encoded click log (2.3 million values in 26 columns, 13 numbers), then trains on it from the first row of
an epoch on, as ``crossrank train`` does. Parts: speed, quality (log loss after one epoch against float32 with dense
Adam), many (32 small models as one program), kernels (where the time of a step goes), products (the matrix products of
a step alone, at several padded widths), large (whole trainings of one epoch, in batches of 4,096 and 65,536).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossrank.data import DatasetWriter, EncodedDataset, EncodedRows, Encoder
from crossrank.data.generators.synthetic import synthesize
from crossrank.data.rows import LabeledRows
from crossrank.data.vocabulary import Vocabulary
from crossrank.evaluation.evaluate import evaluate_split
from crossrank.models import Model, build_model, parse_model_settings
from crossrank.runs import Run
from crossrank.schema import Categorical, Label, Schema
from crossrank.training import Config, Planned, train, train_seeds, train_together
from crossrank.training.cuda.data import EvaluatedSplit
from crossrank.training.cuda.engine import CapturedEngine
from crossrank.training.cuda.many import JointEngine
from crossrank.training.loss import LogLoss
from crossrank.training.optimizer import Optimizer
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings

CUDA = torch.device("cuda")
PAPER = {"embedding": {"dim": 39}, "cross": {"num_layers": 2}, "deep": {"sizes": [768, 768]}}
SMALL = {"embedding": {"dim": 30}, "cross": {"num_layers": 2}, "deep": {"sizes": [192]}}
MULTIPLY_ADDS = 2 * 1027**2 + 1027 * 768 + 768**2
PLAIN = {512: 0.08e6, 4096: 0.38e6, 65_536: 1.55e6}  # float32, dense Adam, an nn.Embedding per feature, the same GPU


def paper_model(dataset: EncodedDataset) -> Model:
    torch.manual_seed(0)
    return build_model(parse_model_settings(PAPER), dataset.features)


def start(dataset: EncodedDataset, **settings: Any) -> CapturedEngine:
    model = paper_model(dataset)
    made = TrainingSettings(**settings).for_model(model, "cuda")
    return CapturedEngine(model, dataset.train, made, loss=LogLoss(), rule=UpdateRule(made), seed=0, device=CUDA)


def speed(dataset: EncodedDataset, batch_size: int, *, seconds: float) -> dict[str, Any]:
    """Rows per second over whole epochs for about this long, after the graph is captured."""
    begun = time.perf_counter()
    training = start(dataset, batch_size=batch_size)
    epoch, rows, counted, started = 0, 0, 0, 0.0
    running = torch.zeros(1, device=CUDA)
    while not started or time.perf_counter() - started < seconds:
        for step in training.batches(epoch, 0):
            running.add_(training.step(step), alpha=len(step))
            rows += len(step)
            counted += 1
            if counted == 5:
                torch.cuda.synchronize()
                setup, started, rows = time.perf_counter() - begun, time.perf_counter(), 0
            elif counted % 100 == 0:
                running.item()  # what a line of the journal costs
                if time.perf_counter() - started > seconds:
                    break
        epoch += 1
    torch.cuda.synchronize()
    took = time.perf_counter() - started
    training.close()
    return {"batch": batch_size, "rows_per_second": rows / took, "epochs": epoch, "seconds": took, "setup": setup}


def replay(dataset: EncodedDataset, batch_size: int) -> dict[str, Any]:
    """Milliseconds of one replayed step, by device events, and the kernels of an uncaptured one."""
    training = start(dataset, batch_size=batch_size)
    steps = iter(training.batches(0, 0))
    for _ in range(5):
        training.step(next(steps))
    times = []
    for _ in range(30):
        next(steps)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        training.step(None)
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            training._program()
        torch.cuda.synchronize()
    found = [(e.key, e.self_device_time_total / 5, e.count / 5) for e in profile.key_averages()]
    table = sorted(found, key=lambda e: -e[1])
    training.close()
    return {"batch": batch_size, "milliseconds": statistics.median(times), "kernels": table}


def products(batch_size: int, width: int) -> float:
    """Microseconds of the twelve matrix products of a step."""
    x = torch.randn(batch_size, width, device=CUDA, dtype=torch.bfloat16)
    h = torch.randn(batch_size, 768, device=CUDA, dtype=torch.bfloat16)
    cross = torch.randn(width, width, device=CUDA, dtype=torch.bfloat16)
    first, second = (torch.randn(768, n, device=CUDA, dtype=torch.bfloat16) for n in (width, 768))

    def all_of_them() -> None:
        for left, kernel, out in ((x, cross, x), (x, cross, x), (x, first, h), (h, second, h)):
            torch.mm(left, kernel.t())
            torch.mm(out, kernel)
            torch.mm(out.t(), left, out_dtype=torch.float32)

    return 1000 * captured(all_of_them)


def captured(function: Callable[[], object], repeats: int = 20) -> float:
    """Milliseconds of a function as a graph."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def quality(dataset: EncodedDataset, batch_size: int) -> dict[str, Any]:
    """Log loss on the validation rows after one epoch: this path, and float32 with Adam over every row."""
    valid, found = EvaluatedSplit(dataset.valid, CUDA), {}
    training = start(dataset, batch_size=batch_size)
    for step in training.batches(0, 0):
        training.step(step)
    found["fast"] = measured(training.model, training.optimizer, valid)
    training.close()
    for tables in ("dense", "lazy"):
        plain = start(dataset, batch_size=batch_size, tables=tables, precision="float32")
        for step in plain.batches(0, 0):
            plain.step(step)
        found[f"float32 {tables}"] = measured(plain.model, plain.optimizer, valid)
        plain.close()
    if batch_size > 512:  # it would take minutes
        found["textbook"] = textbook(dataset, batch_size, valid)
    return {"batch": batch_size, "logloss": found}


def large(dataset: EncodedDataset, folder: Path, seeds: int = 3) -> list[dict[str, Any]]:
    """Log loss after one epoch of whole trainings in small and in large batches, each with what is filled in for it."""
    found = []
    for seed, size in itertools.product(range(seeds), (4096, 65_536)):
        config = {"model": PAPER, "training": {"batch_size": size, "epochs": 1}}
        run = train(dataset, into=folder / f"large-{size}-{seed}", config=config, seed=seed, progress=False)
        losses = {split: run.report[split]["logloss"] for split in ("valid", "test")}
        found.append({"seed": seed, "batch": size, **losses, "seconds": run.report["training"]["seconds"]})
    return found


def textbook(dataset: EncodedDataset, batch_size: int, valid: Any) -> dict[str, float]:
    """One epoch by torch's own Adam over every weight, with nothing of the fast path in it."""
    model = paper_model(dataset).to(CUDA)
    optimizer = Optimizer(model, TrainingSettings(batch_size=batch_size, tables="dense"))
    for batch in dataset.train.batches(batch_size, seed=0, epoch=0):
        here = batch.to(CUDA)
        optimizer.step(LogLoss()(model(here.features), here.labels, here.weights))
    return measured(model, optimizer, valid)


def many(folder: Path, models: int = 32) -> dict[str, Any]:
    """Seconds of one MovieLens-sized model and of many, trained, measured and saved as ``crossrank train --seeds``.

    Then of as many that differ in their learning rate alone, as ``crossrank tune --rates``.
    """
    dataset, found = movielens_sized(folder / "sized"), dict[Any, Any]()
    config = {"model": SMALL, "training": {"batch_size": 128, "epochs": 2, "patience": 0}}
    for number, count in enumerate((1, 2, 1, models)):  # the first two to compile
        begun = time.perf_counter()
        train_seeds(dataset, into=folder / f"runs-{number}", seeds=count, config=config, progress=False)
        run = Run.open(folder / f"runs-{number}" / "seed-0")
        found[count] = {"steps": run.report["training"]["seconds"], "whole": time.perf_counter() - begun}
    rates, runs = np.geomspace(1e-4, 1e-2, models).tolist(), []
    for number, rate in enumerate(rates):
        own = Config.parse({**config, "training": {**config["training"], "learning_rate": rate}})
        runs.append(Planned(into=folder / "rates" / str(number), config=own, seed=0))
    for part in (runs[:2], runs):  # the first to compile
        begun = time.perf_counter()
        ended = train_together(dataset, part, overwrite=True, progress=False) or []
        run = next(one for one in ended if isinstance(one, Run))
    found[f"{models} rates"] = {"steps": run.report["training"]["seconds"], "whole": time.perf_counter() - begun}
    return found


def many_kernels(folder: Path, models: int = 32) -> dict[str, Any]:
    """Milliseconds of a joint step, and its kernels."""
    dataset = movielens_sized(folder / "small")
    made = [build_model(parse_model_settings(SMALL), dataset.features) for _ in range(models)]
    settings = TrainingSettings(batch_size=128)
    rule = UpdateRule(settings, learning_rates=[settings.learning_rate] * models)
    seeds = list(range(models))
    training = JointEngine(made, dataset.train, settings, loss=LogLoss(), rule=rule, seeds=seeds, device=CUDA)
    steps = iter(training.batches(0, 0))
    for _ in range(5):
        training.step(next(steps))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            training._program()
        torch.cuda.synchronize()
    found = [(e.key, e.self_device_time_total / 5, e.count / 5) for e in profile.key_averages()]
    begun = time.perf_counter()
    for _ in range(1000):
        training.step(None)
    torch.cuda.synchronize()
    took = time.perf_counter() - begun
    training.close()
    return {"milliseconds": took, "kernels": sorted(found, key=lambda e: -e[1])}


def movielens_sized(path: Path) -> EncodedDataset:
    """A dataset as large as MovieLens-1M: six columns, about 10,000 values."""
    sizes = {"user": 6042, "item": 3708, "gender": 4, "age": 9, "occupation": 23, "genre": 20}
    draw, splits = np.random.default_rng(0), {"train": 740_000, "valid": 80_000, "test": 80_000}
    schema = Schema([Categorical(name=name) for name in sizes], Label(name="liked"))
    vocabularies = {}
    for name, size in sizes.items():
        letters = np.frombuffer("".join(f"{i:08}" for i in range(size - 2)).encode(), np.uint8)
        vocabularies[name] = Vocabulary(letters, np.arange(8, len(letters) + 1, 8), np.full(size, 100, np.int64))
    with DatasetWriter(path, schema) as writer:
        for split, count in splits.items():
            ids = np.stack([draw.integers(2, size, count) for size in sizes.values()], axis=1).astype(np.uint32)
            labels = (draw.random(count) < 0.3 + 0.4 * ((ids[:, 0] + ids[:, 1]) % 7 < 3)).astype(np.float32)
            writer.append(split, LabeledRows(EncodedRows(ids, np.empty((count, 0), np.float32)), labels))
        writer.finish(Encoder(schema, vocabularies, {}), {})
    return EncodedDataset.open(path)


def measured(model: Model, optimizer: Optimizer, valid: Any) -> dict[str, float]:
    losses = {}
    for averaged in (False, True):
        with optimizer.using(averaged=averaged):
            losses["averaged" if averaged else "raw"] = evaluate_split(model, valid, Label(name="liked"))["logloss"]
    return losses


def report(speeds: list[dict[str, Any]]) -> str:
    lines = [
        "| batch | rows/s | x plain | setup s | bf16 limit |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    limit = 790e12 / (6 * MULTIPLY_ADDS)
    for row in speeds:
        rate = row["rows_per_second"]
        lines.append(
            f"| {row['batch']:,} | {rate / 1e6:.2f} M | {rate / PLAIN[row['batch']]:.1f} | {row['setup']:.1f} "
            f"| {limit / 1e6:.1f} M |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the generated click log")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each speed is measured")
    parser.add_argument("--parts", default="speed,quality,many,kernels,products", help="what to run")
    parser.add_argument("--into", type=Path, help="a JSON file for all figures")
    options = parser.parse_args()
    parts, results = options.parts.split(","), {}
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "python": sys.version.split()[0]}
    print(about, flush=True)
    if "products" in parts:
        results["products"] = {b: {w: products(b, w) for w in (1032, 1056, 1088, 1152)} for b in (512, 4096, 65_536)}
        print(results["products"], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        synthesize(Path(folder) / "clicks", rows=options.rows, format="encoded", progress=False)
        dataset = EncodedDataset.open(Path(folder) / "clicks")
        print(f"made {options.rows:,} rows in {time.perf_counter() - begun:.1f} s", flush=True)
        if "kernels" in parts:
            results["kernels"] = [replay(dataset, batch) for batch in PLAIN]
            for row in results["kernels"]:
                print(f"\nbatch {row['batch']:,}: {row['milliseconds']:.3f} ms a step", flush=True)
                for name, micros, count in row["kernels"][:25]:
                    print(f"{micros:9.1f} µs {count:5.1f} x {name[:90]}", flush=True)
        if "speed" in parts:
            results["speed"] = [speed(dataset, batch, seconds=options.seconds) for batch in PLAIN]
            print(report(results["speed"]), flush=True)
        if "quality" in parts:
            results["quality"] = [quality(dataset, batch) for batch in PLAIN]
            print(json.dumps(results["quality"], indent=1), flush=True)
        if "large" in parts:
            results["large"] = large(dataset, Path(folder))
            print(json.dumps(results["large"], indent=1), flush=True)
        if "many-kernels" in parts:
            row = many_kernels(Path(folder))
            print(f"\n32 small models: {row['milliseconds']:.3f} ms a step", flush=True)
            for name, micros, count in row["kernels"][:40]:
                print(f"{micros:9.1f} µs {count:5.1f} x {name[:90]}", flush=True)
        if "many" in parts:
            results["many"] = many(Path(folder))
            print(results["many"], flush=True)
    if options.into:
        options.into.write_text(json.dumps(about | results, indent=1))


if __name__ == "__main__":
    main()

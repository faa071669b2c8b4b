"""How much memory commands need as tables grow, and whether long work lets memory go again.

    python benchmarks/memory.py --rows 100000 1000000 4000000
    python benchmarks/memory.py --leaks                              10,000 steps, then 100,000 requests

Each command runs in a process of its own, on generated text in Criteo's format. *peak* is what was resident at most,
pages of mapped files included (the dataset's, the libraries'), which the system takes back when it needs them; *own* is
what belongs to the process alone (anonymous pages, looked at twenty times a second). A server is measured with its
worker.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
from prepare import generate

from crossrank.data import EncodedDataset
from crossrank.data.generators.demo import click_log, schema
from crossrank.data.prepare import prepare
from crossrank.data.sources import criteo
from crossrank.serving.http.served import Served
from crossrank.training import train
from crossrank.training.processor import ProcessorEngine

MODEL = ["embedding.dim=8", "deep.sizes=[64]", "cross.num_layers=1"]
TRAINING = ["batch_size=4096", "epochs=1", "memory=none", "learning_rate=0.001", "device=cpu"]
REQUESTS = 300


def status(pid: int | str, name: str) -> float:
    """A line of what the system knows of a process, in MB; none where it has ended."""
    try:
        found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def command(*words: Any) -> list[str]:
    return [sys.executable, "-m", "crossrank", *map(str, words)]


def ended(*words: Any) -> tuple[float, float]:
    """Peak and own MB of a command."""
    process, peak, own = (
        subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
        0.0,
        0.0,
    )
    while process.poll() is None:
        peak, own = max(peak, status(process.pid, "VmHWM")), max(own, status(process.pid, "RssAnon"))
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"{words} ended with {process.returncode}")
    return peak, own


def served(run: Path, rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Peak and own MB of a server and its worker, after some requests."""
    words, quiet = command("serve", run, "--port", 0), subprocess.DEVNULL
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=quiet, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            for row in itertools.islice(itertools.cycle(rows), REQUESTS):
                urllib.request.urlopen(f"{address}/score", json.dumps(row).encode()).read()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            peak, own = (sum(status(pid, name) for pid in (process.pid, *children)) for name in ("VmHWM", "RssAnon"))
            return peak, own
        finally:
            process.terminate()


def table(sizes: list[int]) -> None:
    print("| rows | values | command | peak | own |\n| ---: | ---: | --- | ---: | ---: |")
    for size in sizes:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            text, data, run = generate(folder, size), folder / "data", folder / "run"
            criteo.schema(min_count=2).save(folder / "schema.json")
            settings = [*(f"model.{one}" for one in MODEL), *(f"training.{one}" for one in TRAINING)]
            words = {
                "prepare": ("prepare", text, "--schema", folder / "schema.json", "--separator", "tab", "--into", data),
                "train": ("train", data, "--into", run, *(word for one in settings for word in ("--set", one))),
                "evaluate": ("evaluate", run, data),
                "predict": ("predict", run, text, "--separator", "tab", "--into", folder / "scored.csv"),
            }
            found = {name: ended(*each) for name, each in words.items()}
            rows = pl.read_csv(text, separator="\t", n_rows=100, infer_schema=False).drop("label").to_dicts()
            found["serve"] = served(run, rows)
            values = sum(feature.vocab_size for feature in EncodedDataset.open(data).features)
        for name, (peak, own) in found.items():
            print(f"| {size:,} | {values:,} | {name} | {peak:,.0f} MB | {own:,.0f} MB |", flush=True)


def leaks(num_steps: int, num_requests: int) -> None:
    """Own memory on the way through a long training and many requests."""
    frame = click_log(20_000, seed=1).frame
    step, steps = ProcessorEngine.step, itertools.count(1)

    def counted(self: ProcessorEngine, batch: Any) -> Any:
        say("steps", next(steps), num_steps)
        return step(self, batch)

    ProcessorEngine.step = counted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as place:
        dataset = prepare(frame, schema(), Path(place) / "data", progress=False)
        training = {"max_steps": num_steps, "epochs": 10**6, "patience": 0, "batch_size": 256, "memory": "none"}
        config: dict[str, Any] = {"model": {"deep": {"sizes": [32]}}, "training": {**training, "eval_every": 500}}
        run = train(dataset, into=Path(place) / "run", config=config, progress=False)
        model, rows = Served.open(run.path), frame.drop("click").head(1000).to_dicts()
        for number, row in enumerate(itertools.islice(itertools.cycle(rows), num_requests), start=1):
            model.score([row])
            say("requests", number, num_requests)


def say(what: str, number: int, total: int) -> None:
    if number in (total // 10, total // 5, total // 2, total):
        print(f"{status('self', 'RssAnon'):.1f} MB after {number:,} {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 4_000_000])
    parser.add_argument("--leaks", action="store_true")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=100_000)
    args = parser.parse_args()
    if args.leaks:
        leaks(args.steps, args.requests)
    else:
        table(args.rows)


if __name__ == "__main__":
    main()

"""Samples per second of training DCN-V2 on two cores: crossrank, and what users would otherwise pick.

    python benchmarks/train_cpu.py            about ten minutes, once the environments are there
    python benchmarks/train_cpu.py --quick
    python benchmarks/train_cpu.py --before ../older

Every contender trains the same model on the same generated rows, in the shape of Criteo's, in its own environment and
by its own loop (``rivals/``). The clock runs from the end of one optimiser step to the end of a later one, so the
loading of batches counts and building the model does not. Contenders take turns, each turn a process of its own, so
that a busy moment of the machine meets all of them alike. Tables go to standard output, progress to standard error.
With ``--before``, a checkout of an earlier version of this repository takes turns with this one instead.
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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossrank.data.generators.criteo_like import SIZES

HERE = Path(__file__).parent
TORCH = "torch==2.13.0"
RIVALS = {
    "fuxictr": "FuxiCTR 2.3.10",
    "deepctr_torch": "DeepCTR-Torch 0.3.0",
    "recbole": "RecBole 1.2.1",
    "plain": "plain PyTorch",
}
BFLOAT16 = {"recbole": "enable_amp", "plain": "autocast"}  # rivals that offer bfloat16, and how it is switched on
OURS = "crossrank"
NUM_NUMERIC = 13
POWER = 1.05  # the k-th most frequent value of a feature has the weight k^-1.05
GROWTH = {"0.2 M": 200_000, "2 M": 2_000_000, "20 M": 20_000_000}


class Shape(NamedTuple):
    title: str
    embedding_dim: int
    num_layers: int
    deep_sizes: tuple[int, ...]
    windows: dict[int, int]  # steps of a window by batch size: one to four seconds for the slowest


SHAPES = [
    Shape("width 39, 2 cross, 768-768", 39, 2, (768, 768), {512: 4, 4096: 2}),
    Shape("width 10, 3 cross, 3 x 500", 10, 3, (500, 500, 500), {512: 12, 4096: 4}),
]


class Contender(NamedTuple):
    """A line of the table: which script, in which environment."""

    script: str
    python: Path
    bfloat16: bool = False
    checkout: Path = HERE.parent


class Plan(NamedTuple):
    """How long to measure, by which clock, and where the rows lie."""

    folder: Path
    turns: int  # of each contender
    num_windows: int  # of a turn, after the first, which warms up
    processor_time: bool

    def job(self, shape: Shape, sizes: list[int], batch_size: int, window: int) -> dict[str, Any]:
        """A job as ``rivals/job.py`` reads it, with its rows written."""
        write_rows(self.folder, sizes, (1 + self.num_windows) * window * batch_size)
        return {
            "folder": str(self.folder),
            "vocab_sizes": sizes,
            "embedding_dim": shape.embedding_dim,
            "num_layers": shape.num_layers,
            "deep_sizes": shape.deep_sizes,
            "batch_size": batch_size,
            "window": window,
            "num_windows": self.num_windows,
            "processor_time": self.processor_time,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one short turn each; read it as a rough ratio")
    parser.add_argument("--envs", type=Path, default=HERE.parent / ".bench", help="where the environments are kept")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="one thread each and the processor's time in place of the clock's, for a machine that others keep busy",
    )
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version to compare with")
    arguments = parser.parse_args()
    here = Path(sys.executable)
    contenders = {OURS: Contender("train_crossrank", here)}
    arguments.envs.mkdir(exist_ok=True)
    if arguments.before:
        earlier = contenders[OURS]._replace(checkout=arguments.before.resolve())
        with tempfile.TemporaryDirectory(dir=arguments.envs) as folder:
            compare(contenders | {"before": earlier}, Plan(Path(folder), 6, 3, arguments.processor_time))
        return
    for name, title in RIVALS.items():
        contenders[title] = Contender(f"train_{name}", environment(name, arguments.envs))
    for name, switch in BFLOAT16.items():
        contenders[f"{RIVALS[name]}, {switch}"] = contenders[RIVALS[name]]._replace(bfloat16=True)
    contenders |= {f"bound, {kind}": Contender("bound", here, kind == "bfloat16") for kind in ("float32", "bfloat16")}
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=arguments.envs) as folder:
        turns, num_windows = (1, 1) if arguments.quick else (2, 3)
        plan = Plan(Path(folder), turns, num_windows, arguments.processor_time)
        compare(contenders, plan)
        grow(contenders[OURS], plan)
    clock = "processor time of one thread" if plan.processor_time else "two threads"
    print(f"\n{processor()}, Python {platform.python_version()}, {TORCH}; {clock}, ", end="")
    print(f"median of {turns * num_windows} windows; {(time.perf_counter() - started) / 60:.0f} minutes in all.")


def environment(name: str, envs: Path) -> Path:
    """The interpreter of a rival's virtual environment, made when first asked for."""
    folder = envs / name
    python, done = folder / "bin" / "python", folder / "complete"
    if not done.exists():
        say(f"installing {RIVALS[name]} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # First and alone: as a dependency, torch would come in whatever version and build the index prefers.
        subprocess.run([*install, TORCH], check=True)
        subprocess.run([*install, TORCH, "-r", str(HERE / "rivals" / f"{name}.txt")], check=True)
        done.touch()
    return python


def compare(contenders: dict[str, Contender], plan: Plan) -> None:
    """A line for each contender, a column for each shape and batch size."""
    sizes = list(SIZES.values())
    heads: list[str] = []
    columns: list[dict[str, float]] = []
    for shape in SHAPES:
        for batch_size, window in shape.windows.items():
            heads.append(f"{shape.title}: batch {batch_size:,}")
            job = plan.job(shape, sizes, batch_size, window)
            speeds: dict[str, list[float]] = {name: [] for name in contenders}
            for _ in range(plan.turns):
                for name, contender in contenders.items():
                    speeds[name] += run(contender, job)
            columns.append({name: statistics.median(values) for name, values in speeds.items()})
    print(f"Samples per second, {sum(sizes) / 1e6:.1f} M embedding rows\n")
    print_row(["", *heads])
    print_row(["---"] * (1 + len(heads)))
    for name in contenders:
        print_row([name, *(f"{column[name]:,.0f}" for column in columns)])
    rivals = [name for name in contenders if name != OURS and not name.startswith("bound")]
    fields = {"the best float32 rival": list(RIVALS.values()), "the best rival": rivals}
    for title, field in ({"before": ["before"]} if "before" in contenders else fields).items():
        ratios = [column[OURS] / max(column[name] for name in field) for column in columns]
        print_row([f"crossrank over {title}", *(f"{ratio:.2f} x" for ratio in ratios)])


def grow(ours: Contender, plan: Plan) -> None:
    """The time of our step for tables of very different size, batch 512."""
    print("\nMilliseconds of a step, batch 512\n")
    print_row(["shape", *(f"{name} rows" for name in GROWTH), "growth"])
    print_row(["---"] * (2 + len(GROWTH)))
    batch_size = 512
    for shape in SHAPES:
        times: dict[str, list[float]] = {name: [] for name in GROWTH}
        for _ in range(plan.turns):
            for name, num_rows in GROWTH.items():
                sizes = [max(round(size * num_rows / sum(SIZES.values())), 4) for size in SIZES.values()]
                speeds = run(ours, plan.job(shape, sizes, batch_size, 2 * shape.windows[batch_size]))
                times[name] += [1000 * batch_size / speed for speed in speeds]
        first, *_, last = medians = [statistics.median(values) for values in times.values()]
        print_row([shape.title, *(f"{value:.1f}" for value in medians), f"{last / first - 1:+.0%}"])


def write_rows(folder: Path, sizes: list[int], num_rows: int) -> None:
    """Power-law ids (N, F), normal numbers (N, M) and labels (N,), the same for the same sizes."""
    random = np.random.default_rng(0)
    exponent = 1 - POWER
    ids = np.empty((num_rows, len(sizes)), np.uint32)
    for column, size in enumerate(sizes):
        # The inverse of F(k) = (1 - k^exponent) / (1 - (size + 1)^exponent), a continuous power law from 1 to size + 1.
        values = (1 - random.random(num_rows) * (1 - (size + 1.0) ** exponent)) ** (1 / exponent)
        ids[:, column] = np.minimum(values.astype(np.int64) - 1, size - 1)
    np.save(folder / "categorical.npy", ids)
    np.save(folder / "numeric.npy", random.standard_normal((num_rows, NUM_NUMERIC), np.float32))
    np.save(folder / "labels.npy", (random.random(num_rows) < 0.25).astype(np.float32))


def run(contender: Contender, job: dict[str, Any]) -> list[float]:
    """Samples per second of each window of one turn."""
    path = Path(job["folder"]) / "job.json"
    path.write_text(json.dumps(job | {"bfloat16": contender.bfloat16}), encoding="utf-8")
    script = contender.checkout / "benchmarks" / "rivals" / f"{contender.script}.py"
    threads = "1" if job["processor_time"] else "2"
    variables = os.environ | {"OMP_NUM_THREADS": threads, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}  # for RecBole
    variables["PYTHONPATH"] = str(contender.checkout / "src")
    done = subprocess.run(
        [str(contender.python), str(script), str(path)], env=variables, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stderr[-3000:]}")
    speeds: list[float] = json.loads(done.stdout.splitlines()[-1])
    kind = "bfloat16 " if contender.bfloat16 else ""
    listed = ", ".join(f"{speed:,.0f}" for speed in speeds)
    say(f"{contender.script} {kind}batch {job['batch_size']}: {listed} samples/s")
    return speeds


def print_row(cells: list[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

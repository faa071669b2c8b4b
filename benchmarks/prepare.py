"""Preparation of Criteo text: ours, FuxiCTR's dataset builder, and the pandas recipe of the DeepCTR examples.

    python benchmarks/prepare.py --rows 1000000 5000000
    python benchmarks/prepare.py --rows 1000000 5000000 --before ../older

All read the same generated text, one after the other, each in a process of its own (the rivals in environments of their
own, made on first use under .bench/). Time runs from the call to the finished dataset on disk, without imports, and is
the median of the repeats, in which the contenders take turns. Memory is the peak of the whole process tree
(proportional set size, sampled twenty times a second) in a run of its own, because looking slows a program down.

With ``--before``, a checkout of an earlier version of this repository is compared with this one instead, by processor
time too, which other programs on the machine change less; and numbers as ``auto`` are a third contender.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PANDAS = ["pandas==2.3.3", "scikit-learn==1.9.1"]
FUXICTR = ["torch==2.13.0", "fuxictr==2.3.10", "polars<2"]
CONTENDERS = {
    "crossrank": (HERE / "rivals" / "prepare_crossrank.py", None),
    "fuxictr 2.3.10": (HERE / "rivals" / "prepare_fuxictr.py", ("prepare-fuxictr", FUXICTR)),
    "pandas + LabelEncoder": (HERE / "rivals" / "prepare_pandas.py", ("prepare-pandas", PANDAS)),
}


def environment(folder: Path, requirements: list[str]) -> Path:
    """The Python of a virtual environment with these packages, made on first use."""
    python = folder / "bin" / "python"
    if not (folder / ".complete").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *requirements], check=True)
        (folder / ".complete").touch()
    return python


def tree_memory(pid: int) -> int:
    """The memory of a process and all its descendants, in bytes."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    waiting, total = [pid], 0
    while waiting:
        one = waiting.pop()
        waiting += children.get(one, [])
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


def run(command: list[Path | str], into: Path, *, memory: bool, sources: Path | None = None) -> dict[str, float]:
    """What a run tells, its seconds by its own clock, and its peak memory in bytes if that is looked at."""
    shutil.rmtree(into, ignore_errors=True)
    variables = {**os.environ, "PYTHONPATH": str(sources)} if sources else None
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables)
    peak = 0
    while memory and process.poll() is None:
        peak = max(peak, tree_memory(process.pid))
        time.sleep(0.05)
    output, _ = process.communicate()
    shutil.rmtree(into, ignore_errors=True)
    if process.returncode:
        raise SystemExit(f"{command} failed with status {process.returncode}")
    return {"memory": peak, **json.loads(output.splitlines()[-1])}


def generate(folder: Path, rows: int) -> Path:
    """Generated Criteo text with a header, which FuxiCTR cannot do without."""
    path = folder / f"criteo-{rows}.csv"
    if not path.is_file():
        from crossrank.data.generators.synthetic import synthesize
        from crossrank.data.sources.criteo import COLUMNS

        plain = folder / "plain.txt"
        synthesize(plain, rows=rows, overwrite=True)
        with path.open("wb") as target, plain.open("rb") as source:
            target.write("\t".join(COLUMNS).encode() + b"\n")
            shutil.copyfileobj(source, target, 1 << 24)
        plain.unlink()
    return path


def compare(before: Path, bench: Path, sizes: list[int], repeats: int) -> None:
    """An earlier version, this one, and this one with numbers as auto, in turns."""
    script, here = CONTENDERS["crossrank"][0], HERE.parent / "src"
    contenders = {"before": ("criteo", before / "src"), "now": ("criteo", here), "now, auto": ("criteo_auto", here)}
    print("| rows | who | seconds | processor seconds | peak memory |\n| ---: | --- | ---: | ---: | ---: |")
    for rows in sizes:
        source, prepared = generate(bench, rows), bench / "prepared"
        told: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
        for turn in range(repeats + 1):  # the last one for memory
            for name, (meaning, sources) in contenders.items():
                command = [sys.executable, script, source, prepared, meaning]
                told[name].append(run(command, prepared, memory=turn == repeats, sources=sources))
        for name, (*timed, looked_at) in told.items():
            wall, processor = ([one[key] for one in timed] for key in ("seconds", "processor"))
            spread = f"{statistics.median(processor):.2f} ({min(processor):.2f} to {max(processor):.2f})"
            wall_spread = f"{statistics.median(wall):.2f} ({min(wall):.2f} to {max(wall):.2f})"
            print(f"| {rows:,} | {name} | {wall_spread} | {spread} | {looked_at['memory'] / 1e9:.2f} GB |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 5_000_000])
    parser.add_argument("--bench", type=Path, default=HERE.parent / ".bench")
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path, help="a checkout of an earlier version to compare with")
    arguments = parser.parse_args()
    arguments.bench.mkdir(exist_ok=True)
    if arguments.before:
        compare(arguments.before.resolve(), arguments.bench, arguments.rows, arguments.repeats)
        return
    pythons = {
        name: environment(arguments.bench / wanted[0], wanted[1]) if wanted else Path(sys.executable)
        for name, (_, wanted) in CONTENDERS.items()
        if name in arguments.only
    }
    print("| rows | who | seconds | rows/s | peak memory |\n| ---: | --- | ---: | ---: | ---: |")
    for rows in arguments.rows:
        source = generate(arguments.bench, rows)
        prepared = arguments.bench / "prepared"
        seconds: dict[str, list[float]] = {name: [] for name in pythons}
        for _ in range(arguments.repeats):
            for name, python in pythons.items():
                command = [python, CONTENDERS[name][0], source, prepared]
                seconds[name].append(run(command, prepared, memory=False)["seconds"])
        for name, python in pythons.items():
            peak = run([python, CONTENDERS[name][0], source, prepared], prepared, memory=True)["memory"]
            taken = statistics.median(seconds[name])
            print(f"| {rows:,} | {name} | {taken:.1f} | {rows / taken:,.0f} | {peak / 1e9:.2f} GB |", flush=True)


if __name__ == "__main__":
    main()

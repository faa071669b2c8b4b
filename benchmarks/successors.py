"""Networks after DCN-V2 on MovieLens-1M, on one recipe: with two learning rates each, and two of them over splits.

    python benchmarks/successors.py ml-1m.zip                  validation rows of the fixed split, one seed each
    python benchmarks/successors.py ml-1m.zip --splits 5       test rows of five random splits, three seeds each

Made for a GPU, where the trainings of one shape are one program; on a processor each of them takes many minutes. The
recipe is that of ``crossrank paper movielens``: batches of 128 rows, vectors of 30 numbers, deep layers 192-192.
Datasets and runs stay in the working folder, and what is finished is not trained again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossrank.evaluation.evaluate import score_split
from crossrank.evaluation.metrics import log_loss
from crossrank.experiments.paper.movielens import committed, difference, split_dataset
from crossrank.runs import Run
from crossrank.training import Config
from crossrank.training.plan import Planned
from crossrank.training.seeds import train_missing

DEEP = {"sizes": [192, 192]}
RECIPE = {"batch_size": 128, "epochs": 15, "eval_every": 2310, "patience": 4}
OWN = {"heads": "own"}


def gdcn(structure: str = "parallel", *, layers: int = 2, pooled: str = "first") -> dict[str, Any]:
    return {"name": "gdcn", "structure": structure, "cross": {"num_layers": layers, "pooled": pooled}, "deep": DEEP}


MODELS: dict[str, dict[str, Any]] = {
    "gdcn, pooled, own": {"model": gdcn(layers=1), "training": OWN},
    "gdcn, pooled, own, two layers": {"model": gdcn(), "training": OWN},
    "gdcn, pooled": {"model": gdcn()},
    "gdcn, pooled, stacked": {"model": gdcn("stacked")},
    "gdcn": {"model": gdcn(pooled="none")},
    "fcn": {"model": {"name": "fcn"}, "training": {"heads": "weighted"}},
    "final-net": {"model": {"name": "final-net", "deep": DEEP}, "training": {"heads": "distil"}},
    "final-mlp": {"model": {"name": "final-mlp", "deep": DEEP, "second": DEEP}},
    "mask-net": {"model": {"name": "mask-net", "deep": DEEP}},
    "qnn-alpha": {
        "model": {"name": "qnn-alpha", "cross": {"num_layers": 2, "num_heads": 2, "dropout": 0.1}},
        "training": {"heads": "distil"},
    },
    "edcn": {"model": {"name": "edcn", "layer": "full"}},
    "wukong": {"model": {"name": "wukong", "deep": DEEP}},
}
RATES, DROPOUT = (0.001, 0.002), 0.3
FINALISTS = {"gdcn, pooled, own": 0.002, "pnn": 0.001}  # their rates


def config_of(label: str, rate: float) -> Config:
    """What a row of the table trains; PNN is that of the paper's table."""
    if label == "pnn":
        return Config.parse(committed()["PNN"])
    asked = MODELS[label]
    model = {**asked["model"], "embedding": {"dim": 30, "dropout": DROPOUT}}
    return Config.parse({"model": model, "training": {**RECIPE, **asked.get("training", {}), "learning_rate": rate}})


def trained(data: Path, work: Path, label: str, *, split: int, rates: Sequence[float], seeds: int) -> list[Run]:
    """The runs of one shape, as one program where the device allows it."""
    dataset, folder = split_dataset(data, work, split, quick=False), work / f"successors-{split}" / label
    wanted = [
        Planned(into=folder / f"rate-{rate:g}-seed-{seed}", config=config_of(label, rate), seed=seed)
        for rate in rates
        for seed in range(seeds)
    ]
    train_missing(dataset, wanted, overwrite=False, test=split > 0)
    return [Run.open(one.into) for one in wanted]


def search(data: Path, work: Path) -> None:
    print("| model | " + " | ".join(f"rate {rate:g}" for rate in RATES) + " |\n| --- |" + " --- |" * len(RATES))
    for label in MODELS:
        runs = trained(data, work, label, split=0, rates=RATES, seeds=1)
        print(f"| {label} | " + " | ".join(f"{run.report['valid']['logloss']:.4f}" for run in runs) + " |", flush=True)


def over_splits(data: Path, work: Path, splits: int, seeds: int) -> None:
    alone: dict[str, list[float]] = {label: [] for label in FINALISTS}
    together: dict[str, list[float]] = {label: [] for label in FINALISTS}
    for split in range(1, splits + 1):
        rows = split_dataset(data, work, split, quick=False).test
        for label, rate in FINALISTS.items():
            runs = trained(data, work, label, split=split, rates=[rate], seeds=seeds)
            alone[label].append(statistics.fmean(run.report["test"]["logloss"] for run in runs))
            chances = np.mean([1 / (1 + np.exp(-score_split(run.model, rows).astype(float))) for run in runs], axis=0)
            together[label].append(log_loss(rows.labels, np.log(chances / (1 - chances))))
    print(f"| model | log loss, mean of {seeds} seeds | against pnn | {seeds} seeds averaged | against pnn |")
    print("| --- | --- | --- | --- | --- |")
    for label in FINALISTS:
        cells = [label]
        for found in (alone, together):
            cells += [f"{statistics.fmean(found[label]):.4f}", str(difference(found[label], found["pnn"]))]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="ml-1m.zip")
    parser.add_argument("--splits", type=int, default=0, help="random splits; 0 for the search on the fixed one")
    parser.add_argument("--seeds", type=int, default=3, help="of each model on each split")
    parser.add_argument("--work", type=Path, default=Path("runs/paper/movielens"))
    options = parser.parse_args()
    if options.splits:
        over_splits(options.data, options.work, options.splits, options.seeds)
    else:
        search(options.data, options.work)

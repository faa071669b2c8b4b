"""The demo: three models on a click log whose truth is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from crossrank.data.generators.demo import PLANTED, DemoLog, click_log, schema
from crossrank.data.prepare import prepare
from crossrank.data.splits import SPLITS, SplitSettings
from crossrank.data.table import open_table
from crossrank.errors import RunError
from crossrank.evaluation import explain
from crossrank.evaluation.metrics import auc, log_loss
from crossrank.folders import check_replaceable, making, publish, recover
from crossrank.runs import Run
from crossrank.runs.lifecycle import is_run
from crossrank.training import Config, train

SETTINGS: dict[str, dict[str, Any]] = {"embedding": {"dim": 8}, "deep": {"sizes": [64, 64]}}
MODELS: dict[str, dict[str, Any]] = {
    "logistic-regression": {"model": {"name": "logistic-regression"}, "training": {"learning_rate": 0.01}},
    "dnn": {"model": {"name": "dnn", **SETTINGS}, "training": {"learning_rate": 0.01}},
    "dcn-v2": {"model": {"name": "dcn-v2", **SETTINGS}, "training": {"learning_rate": 0.01}},
}
SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Result:
    """One model on the test rows."""

    name: str
    logloss: float
    auc: float
    parameters: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class LearnedCross:
    name: str
    strength: float
    planted: bool


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """What the demo shows: the models beside the best reachable, and the strongest crosses of DCN-V2."""

    models: list[Result]
    best_logloss: float
    best_auc: float
    crosses: list[LearnedCross]
    run: Path


def run_demo(
    into: Path, *, rows: int = 100_000, seed: int = 0, overwrite: bool = False, say: Callable[[str], None] = print
) -> DemoResult:
    """Make a click log, train logistic regression, a DNN and DCN-V2 on it, and compare them with the truth.

    ``into`` gets the log as clicks.csv with its schema.json, the encoded dataset, and a run folder for each model.
    """
    recover(into)
    check_replaceable(into, "demo folder", RunError, overwrite=overwrite, is_one=lambda one: is_run(one / "dcn-v2"))
    with making(into, RunError) as partial:
        log = click_log(rows, seed=seed)
        say(f"{rows:,} rows of a generated click log, planted crosses: {', '.join(map(' × '.join, PLANTED))}")
        log.frame.write_csv(partial / "clicks.csv")
        schema().save(partial / "schema.json")
        split = SplitSettings(seed=seed)
        dataset = prepare(log.frame, schema(), partial / "dataset", split=split)
        models = []
        for name, config in MODELS.items():
            say(f"training {name}")
            models.append(_result(name, train(dataset, into=partial / name, config=Config.parse(config), seed=seed)))
        best_logloss, best_auc = _best(log, split)
        publish(partial, into)
    run = Run.open(into / "dcn-v2")
    return DemoResult(models, best_logloss, best_auc, strongest_crosses(run), run.path)


def strongest_crosses(run: Run, *, top: int = SHOWN) -> list[LearnedCross]:
    """The strongest pairs of different features in the first cross layer, planted ones marked.

    A pair counts as planted where it is a planted cross or part of one of higher order.
    """
    return [
        LearnedCross(one.name, one.strength, any({*one.features} <= {*cross} for cross in PLANTED))
        for one in explain(run, layer=1, top=top)
    ]


def _result(name: str, run: Run) -> Result:
    report = run.report
    parameters = sum(report["parameters"].values())
    return Result(name, report["test"]["logloss"], report["test"]["auc"], parameters, report["training"]["seconds"])


def _best(log: DemoLog, split: SplitSettings) -> tuple[float, float]:
    """Log loss and AUC of the true probabilities on the test rows: what no model can be expected to beat."""
    table = open_table(log.frame)
    assign = split.assigner(table)
    test = np.concatenate([assign(chunk) for chunk in table.chunks()]) == SPLITS.index("test")
    labels, truth = log.frame["click"].to_numpy()[test], log.probability[test]
    return log_loss(labels, np.log(truth / (1 - truth))), auc(labels, truth)

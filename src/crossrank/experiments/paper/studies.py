"""Settings of models, trained on one dataset: with several seeds, measured on its test rows, or with several learning
rates, measured on its validation rows."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crossrank.data import EncodedDataset
from crossrank.errors import ConfigError
from crossrank.experiments.processes import workers
from crossrank.files import read_json, write_json
from crossrank.models.cost import model_cost
from crossrank.runs import Run
from crossrank.runs.lifecycle import is_run, plan_in
from crossrank.training import Config, train_seeds
from crossrank.training.device import choose_device
from crossrank.training.plan import Planned, changes
from crossrank.training.seeds import train_missing

METRICS = ("logloss", "auc")
MEASURED = "measured.json"
# 97.5% quantiles of Student's t by degrees of freedom.
QUANTILES = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One row of a table.

    Attributes:
        label: its name in the table.
        config: what is trained.
        line, place: of its point, where the figure has lines.
        paper: the paper's numbers, by metric.
    """

    label: str
    config: Mapping[str, Any]
    line: str = ""
    place: float = 0.0
    paper: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Task(NamedTuple):
    """One setting to be trained, in whichever process; with learning rates, these are tried with one seed each."""

    dataset: Path
    setting: Setting
    folder: Path
    seeds: int
    rates: tuple[float, ...] = ()


def tasks(
    dataset: EncodedDataset, settings: Sequence[Setting], work: Path, *, seeds: int, rates: tuple[float, ...] = ()
) -> list[Task]:
    """A folder for each setting, named after its label."""
    names = [re.sub(r"[^a-z0-9]+", "-", setting.label.lower()).strip("-") for setting in settings]
    return [
        Task(dataset.path, setting, work / name, seeds, rates) for setting, name in zip(settings, names, strict=True)
    ]


def first_runs(wanted: Sequence[Task]) -> list[Path]:
    """The first run of each task, of those whose runs were kept."""
    places = [task.folder / "seed-0" for task in wanted]
    return [place for place in places if is_run(place)]


def measure_tasks(wanted: Sequence[Task], jobs: int | None) -> list[dict[str, Any]]:
    """Train what is not measured yet.

    Args:
        wanted: the tasks.
        jobs: how many at a time, each in a process of its own; for one, this process; left out, one for each core.

    Returns:
        For each task: mean, deviation and values of each metric on the test rows, ``parameters`` without embeddings,
        ``flops`` per row, and what it took. With learning rates, in place of the metrics: ``valid``, the log loss on
        the validation rows for each, None where it diverged.
    """
    if jobs == 1 or all(_kept(task) for task in wanted):
        return [measured(task) for task in wanted]
    with workers(jobs) as each:
        return list(each(measured, wanted))


def measured(task: Task) -> dict[str, Any]:
    """Train a setting with all its seeds, or read what was measured before; the runs themselves may be gone."""
    if (kept := _kept(task)) is not None:
        return kept
    dataset, config = EncodedDataset.open(task.dataset), Config.parse(task.setting.config)
    started = time.perf_counter()
    cost = model_cost(config.model, dataset.features)
    found = {
        **(_tried if task.rates else _tested)(task, dataset, config),
        "parameters": cost.network_parameters,
        "flops": cost.flops,
        "config": task.setting.config,
        "seconds": round(time.perf_counter() - started, 1),
        "device": torch.cuda.get_device_name() if choose_device(config.training.device).type == "cuda" else "CPU",
    }
    of = {"data_fingerprint": dataset.fingerprint, "arrays": dataset.manifest["arrays"], "seeds": task.seeds}
    of |= {"rates": task.rates} if task.rates else {}
    write_json(task.folder / MEASURED, {"of": {**of, "config": config.to_dict()}, "found": found})
    return found


def _tested(task: Task, dataset: EncodedDataset, config: Config) -> dict[str, Any]:
    stale = bool(changes(plan_in(task.folder / "seed-0"), config, dataset, seed=0))
    summary = train_seeds(dataset, into=task.folder, seeds=task.seeds, config=config, overwrite=stale, progress=False)
    return {metric: summary["test"][metric] for metric in METRICS}


def _tried(task: Task, dataset: EncodedDataset, config: Config) -> dict[str, Any]:
    """Each learning rate, as one program where the device allows it; test rows are not read."""
    plans = []
    for rate in task.rates:
        training = dataclasses.replace(config.training, learning_rate=rate)
        into = task.folder / f"rate-{rate:g}"
        plans.append(Planned(into=into, config=dataclasses.replace(config, training=training), seed=0))
    try:
        _train(dataset, plans)
    except ConfigError:  # one of them diverged; those after it may not have been trained
        for one in plans:
            with contextlib.suppress(ConfigError):
                _train(dataset, [one])
    losses = [Run.open(one.into).report["valid"]["logloss"] if is_run(one.into) else None for one in plans]
    return {"valid": {f"{rate:g}": loss for rate, loss in zip(task.rates, losses, strict=True)}}


def _train(dataset: EncodedDataset, plans: Sequence[Planned]) -> None:
    stale = any(changes(plan_in(one.into), one.config, dataset, seed=0) for one in plans)
    train_missing(dataset, plans, overwrite=stale, test=False, progress=False)


def _kept(task: Task) -> dict[str, Any] | None:
    """What an earlier call wrote, if it is of this setting and these rows."""
    if not (task.folder / MEASURED).is_file():
        return None
    content = read_json(task.folder / MEASURED)
    of, dataset = content["of"], EncodedDataset.open(task.dataset)
    same_rows = of["data_fingerprint"] == dataset.fingerprint or of.get("arrays") == dataset.manifest["arrays"]
    # Both parsed, since one may have been written before there were as many settings.
    same_config = Config.parse(of["config"]) == Config.parse(task.setting.config)
    same_runs = (of["seeds"], tuple(of.get("rates", ()))) == (task.seeds, task.rates)
    return dict(content["found"]) if same_rows and same_config and same_runs else None


def cells(found: Mapping[str, Any], paper: Mapping[str, float]) -> list[str]:
    """Each metric with its deviation, the paper's beside it, then the cost."""
    row = []
    for metric in METRICS:
        row += [spread_text(found[metric]), f"{paper[metric]:.4f}" if metric in paper else ""]
    return [*row, f"{found['parameters']:,}", f"{found['flops']:,}"]


HEADER = ["log loss", "paper", "AUC", "paper", "parameters", "FLOPs"]


def spread_text(spread: Mapping[str, Any]) -> str:
    """
    >>> spread_text({"mean": 0.31604, "deviation": 0.00049}), spread_text({"mean": 0.5, "deviation": None})
    ('0.3160 ± 0.0005', '0.5000')
    """
    deviation = "" if spread["deviation"] is None else f" ± {spread['deviation']:.4f}"
    return f"{spread['mean']:.4f}{deviation}"


def trained_on(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line on where the trainings were made, since the page may be written elsewhere and later.

    >>> trained_on({"DNN": {"device": "CPU"}, "FM": {"device": "CPU"}})
    'Trained on: CPU. The seconds above leave out trainings that were there before.'
    """
    devices = sorted({values["device"] for values in found.values() if "device" in values})
    return f"Trained on: {', '.join(devices)}. The seconds above leave out trainings that were there before."


@dataclasses.dataclass(frozen=True)
class Difference:
    """Mean difference of a metric between two models on the same splits or seeds, and half its 95% interval."""

    mean: float
    margin: float

    @property
    def is_noise(self) -> bool:
        return abs(self.mean) <= self.margin

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.margin:.4f}{'' if self.is_noise else ' *'}"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """The mean of the pairs' differences, with its interval by Student's t.

    >>> print(difference([0.31, 0.32, 0.33], [0.32, 0.33, 0.34]))
    -0.0100 ± 0.0000 *
    """
    pairs = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(pairs) < 2:
        return Difference(pairs[0], math.inf)
    error = statistics.stdev(pairs) / math.sqrt(len(pairs))
    return Difference(statistics.fmean(pairs), QUANTILES.get(len(pairs) - 1, 2.0) * error)

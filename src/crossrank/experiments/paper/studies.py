"""Settings of models, trained with several seeds on one dataset and measured on its test rows."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crossrank.data import EncodedDataset
from crossrank.experiments.processes import workers
from crossrank.files import read_json, write_json
from crossrank.models.cost import model_cost
from crossrank.runs.lifecycle import is_run, plan_in
from crossrank.training import Config, train_seeds
from crossrank.training.device import choose_device
from crossrank.training.plan import changes

METRICS = ("logloss", "auc")
MEASURED = "measured.json"


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
    """One setting to be trained, in whichever process."""

    dataset: Path
    setting: Setting
    folder: Path
    seeds: int


def tasks(dataset: EncodedDataset, settings: Sequence[Setting], work: Path, *, seeds: int) -> list[Task]:
    """A folder for each setting, named after its label."""
    names = [re.sub(r"[^a-z0-9]+", "-", setting.label.lower()).strip("-") for setting in settings]
    return [Task(dataset.path, setting, work / name, seeds) for setting, name in zip(settings, names, strict=True)]


def first_runs(wanted: Sequence[Task]) -> list[Path]:
    """The first run of each task, of those whose runs were kept."""
    places = [task.folder / "seed-0" for task in wanted]
    return [place for place in places if is_run(place)]


def measure_tasks(wanted: Sequence[Task], jobs: int) -> list[dict[str, Any]]:
    """Train what is not measured yet.

    Args:
        wanted: the tasks.
        jobs: how many at a time, each in a process of its own; for one, this process.

    Returns:
        For each task: mean, deviation and values of each metric on the test rows, ``parameters`` without embeddings,
        ``flops`` per row, and what it took.
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
    stale = bool(changes(plan_in(task.folder / "seed-0"), config, dataset, seed=0))
    started = time.perf_counter()
    summary = train_seeds(dataset, into=task.folder, seeds=task.seeds, config=config, overwrite=stale, progress=False)
    cost = model_cost(config.model, dataset.features)
    found = {
        **{metric: summary["test"][metric] for metric in METRICS},
        "parameters": cost.network_parameters,
        "flops": cost.flops,
        "config": task.setting.config,
        "seconds": round(time.perf_counter() - started, 1),
        "device": torch.cuda.get_device_name() if choose_device(config.training.device).type == "cuda" else "CPU",
    }
    of = {"data_fingerprint": dataset.fingerprint, "arrays": dataset.manifest["arrays"], "seeds": task.seeds}
    write_json(task.folder / MEASURED, {"of": {**of, "config": config.to_dict()}, "found": found})
    return found


def _kept(task: Task) -> dict[str, Any] | None:
    """What an earlier call wrote, if it is of this setting and these rows."""
    if not (task.folder / MEASURED).is_file():
        return None
    content = read_json(task.folder / MEASURED)
    of, dataset = content["of"], EncodedDataset.open(task.dataset)
    same_rows = of["data_fingerprint"] == dataset.fingerprint or of.get("arrays") == dataset.manifest["arrays"]
    # Both parsed, since one may have been written before there were as many settings.
    same_config = Config.parse(of["config"]) == Config.parse(task.setting.config)
    return dict(content["found"]) if same_rows and same_config and of["seeds"] == task.seeds else None


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

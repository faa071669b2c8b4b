"""Experiment trackers: who is told how a training goes.

Three calls, whatever the tracker. TensorBoard and MLflow are here; to tell another one, subclass :class:`Tracker` and
give an object of it to :func:`crossrank.train`::

    class Printed(Tracker):
        def line(self, line):
            if "valid" in line:
                print(line["step"], line["valid"]["logloss"])


    cr.train("clicks.csv", into="runs/first", track=Printed())
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from crossrank.config import flatten
from crossrank.errors import ConfigError, did_you_mean, listing, needed


class Tracker:
    """Does nothing with what it is told."""

    def start(self, name: str, folder: Path, config: Mapping[str, Any], step: int) -> None:
        """The training begins, or goes on after a step: the run's name, its folder until it is done, every setting."""

    def line(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl: step, epoch, and either loss and rows_per_second, or the mappings valid and
        valid_raw with the metrics of averaged and raw weights."""

    def finish(self, report: Mapping[str, Any] | None) -> None:
        """The training ended: what report.json says, or None where it was broken off."""


class TensorBoard(Tracker):
    """Writes an event file into the run folder, so that ``tensorboard --logdir runs`` shows all runs side by side."""

    def __init__(self) -> None:
        module = needed("torch.utils.tensorboard", "Tracking with TensorBoard", "tensorboard")
        self._make_writer = module.SummaryWriter

    def start(self, name: str, folder: Path, config: Mapping[str, Any], step: int) -> None:
        self._writer = self._make_writer(folder, purge_step=step + 1)  # what an interrupted training wrote after it
        self._settings = parameters(config)

    def line(self, line: Mapping[str, Any]) -> None:
        for key, value in scalars(line).items():
            self._writer.add_scalar(key, value, line["step"])

    def finish(self, report: Mapping[str, Any] | None) -> None:
        if report is not None:
            step = report["training"]["steps"]
            self._writer.add_hparams(self._settings, final(report), run_name=".", global_step=step)
        self._writer.close()


class MLflow(Tracker):
    """Makes a run where MLflow is told to (``MLFLOW_TRACKING_URI``, ``MLFLOW_EXPERIMENT_NAME``).

    Where it is told nothing, that is ``mlflow.db`` in the present folder. A resumed training is a run of its own.
    """

    def __init__(self) -> None:
        self._mlflow = needed("mlflow", "Tracking with MLflow", "mlflow")

    def start(self, name: str, folder: Path, config: Mapping[str, Any], step: int) -> None:
        self._mlflow.start_run(run_name=name, nested=self._mlflow.active_run() is not None)
        self._mlflow.log_params(parameters(config))

    def line(self, line: Mapping[str, Any]) -> None:
        self._log(scalars(line), step=line["step"])

    def finish(self, report: Mapping[str, Any] | None) -> None:
        if report is not None:
            self._log(final(report), step=report["training"]["steps"])
        self._mlflow.end_run("FAILED" if report is None else "FINISHED")

    def _log(self, values: Mapping[str, float], step: int) -> None:
        named = {re.sub(r"[^\w/.\- :]", "_", key.replace("@", "_at_")): value for key, value in values.items()}
        self._mlflow.log_metrics(named, step=step)


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def find_tracker(track: str | Tracker | None) -> Tracker:
    """The tracker of a name, the one given, or one that does nothing.

    Raises:
        ConfigError: for a name that is none.
        MissingExtraError: where its package is not installed.
    """
    if not isinstance(track, str):
        return track or Tracker()
    if track not in TRACKERS:
        hint = did_you_mean(track, TRACKERS)
        raise ConfigError(f"A tracker must be one of {listing(TRACKERS)}; got '{track}'.", hint=hint)
    return TRACKERS[track]()


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl, by split.

    >>> scalars({"step": 9, "epoch": 1, "valid": {"rows": 10, "auc": None, "logloss": 0.5}})
    {'valid/logloss': 0.5}
    >>> scalars({"step": 9, "epoch": 1, "loss": 0.5})
    {'train/loss': 0.5}
    """
    measured = {key: value for key, value in line.items() if isinstance(value, Mapping)}
    parts = measured or {"train": line}
    return {f"{part}/{key}": v for part, values in parts.items() for key, v in values.items() if isinstance(v, float)}


def final(report: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of the kept weights."""
    names = {"valid": "best_valid", "test": "test"}
    return scalars({name: report[split] for split, name in names.items() if split in report})


def parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting under its dotted name; what is no number is text.

    >>> parameters({"model": {"name": "dnn", "deep": {"sizes": [8, 8]}}, "training": {"epochs": 3}})
    {'model.name': 'dnn', 'model.deep.sizes': '[8, 8]', 'training.epochs': 3}
    """
    return {key: v if isinstance(v, int | float) else str(v) for key, v in flatten(settings).items()}

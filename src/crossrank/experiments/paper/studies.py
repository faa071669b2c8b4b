"""Settings of models, trained with several seeds on one dataset and measured on its test rows."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossrank.data import EncodedDataset
from crossrank.models.cost import model_cost
from crossrank.runs.run import read_json
from crossrank.training import Config, train_seeds

METRICS = ("logloss", "auc")


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


def measure(
    dataset: EncodedDataset, settings: Sequence[Setting], work: Path, *, seeds: int
) -> dict[str, dict[str, Any]]:
    """Train every setting; what an earlier call has trained is kept.

    Returns:
        By label: mean, deviation and values of each metric on the test rows, and ``parameters`` without embeddings and
        ``flops`` per row.
    """
    found = {}
    for setting in settings:
        config = Config.parse(setting.config)
        place = work / re.sub(r"[^a-z0-9]+", "-", setting.label.lower()).strip("-")
        stale = not _is_of(place / "seed-0", config, dataset)
        summary = train_seeds(dataset, into=place, seeds=seeds, config=config, overwrite=stale)
        cost = model_cost(config.model, dataset.features)
        found[setting.label] = {
            **{metric: summary["test"][metric] for metric in METRICS},
            "parameters": cost.network_parameters,
            "flops": cost.flops,
            "config": setting.config,
        }
    return found


def _is_of(run: Path, config: Config, dataset: EncodedDataset) -> bool:
    """Whether a run is of this setting and these rows; the settings of an experiment may change between versions."""
    if not (run / "run.json").is_file():
        return True
    facts = read_json(run / "run.json")["data_fingerprint"], read_json(run / "config.json")
    return facts == (dataset.fingerprint, config.to_dict())


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

"""Several seeds of one setting as one run, whose answer is the mean of theirs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crossrank.data import EncodedDataset
from crossrank.evaluation.evaluate import score_split
from crossrank.files import write_text
from crossrank.folders import MEMBERS
from crossrank.models.ensemble import Ensemble
from crossrank.runs import Run
from crossrank.training.finish import complete_run, measured_splits
from crossrank.training.plan import Planned
from crossrank.training.seeds import train_missing


def train_ensemble(
    dataset: EncodedDataset,
    run: Planned,
    folder: Path,
    about: Mapping[str, Any],
    *,
    first: Run | None = None,
    test: bool,
    **options: Any,
) -> None:
    """Train ``model.ensemble`` members and write the run into the folder, with more about it in its report.

    Of ensembles with different seeds no two members have the same one. Members that are there already, as after an
    interruption, are kept, and so is ``first``, a training of the first member.
    """
    count = run.config.model.ensemble
    alone = dataclasses.replace(run.config, model=dataclasses.replace(run.config.model, ensemble=1))
    places = [folder / MEMBERS / f"member-{i}" for i in range(count)]
    if first:
        places[0] = first.path
    members = [
        dataclasses.replace(run, into=place, config=alone, seed=first_seed(run) + i) for i, place in enumerate(places)
    ]
    train_missing(dataset, members, overwrite=False, test=False, **options)
    trained = [Run.open(member.into) for member in members]
    model = Ensemble([member.model for member in trained])
    names = measured_splits(dataset, test)[1:]
    logits = {name: score_split(model, dataset.split(name)) for name in names}
    lines = [json.dumps({"member": i, **line}) + "\n" for i, member in enumerate(trained) for line in member.metrics]
    write_text(folder / "metrics.jsonl", "".join(lines))
    complete_run(folder, run, model, dataset, logits, {"training": _training(trained), **about})


def first_seed(run: Planned) -> int:
    """The seed of the first member."""
    return run.config.model.ensemble * run.seed


def _training(members: Sequence[Run]) -> dict[str, Any]:
    """The course of the first member, with the time of all, and what each reached."""
    reports = [member.report for member in members]
    return {
        **reports[0]["training"],
        "seconds": sum(report["training"]["seconds"] for report in reports),
        "still_improving": any(report["training"]["still_improving"] for report in reports),
        "members": [
            {"seed": member.info["seed"], "best_step": report["training"]["best_step"], "valid": report["valid"]}
            for member, report in zip(members, reports, strict=True)
        ],
    }

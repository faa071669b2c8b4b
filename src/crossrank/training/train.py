"""From a dataset or a raw table to a finished run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossrank.data import EncodedDataset, Encoder, open_data
from crossrank.data.drafting import draft_table
from crossrank.data.prepare import prepare
from crossrank.evaluation.findings import initial_spectra
from crossrank.folders import recover
from crossrank.models.own import check_model
from crossrank.runs import Run
from crossrank.runs.lifecycle import is_complete, is_interrupted, is_run, making_run
from crossrank.schema import Schema
from crossrank.training.engines import make_engine
from crossrank.training.finish import finish_run, measured_splits, seeded_model
from crossrank.training.memory import keep_freed_memory
from crossrank.training.plan import Planned, as_made, check_resumed, check_splits, write_plan
from crossrank.training.prior import rows_to_learn
from crossrank.training.profile import StepClock
from crossrank.training.settings import Config, without_tries
from crossrank.training.trackers import Tracker, find_tracker
from crossrank.training.trainer import Trainer, train_models


def train(
    data: Any,
    *,
    into: Path | str,
    config: Config | Mapping[str, Any] | None = None,
    schema: Schema | None = None,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    test: bool = True,
    progress: bool | None = None,
    clock: StepClock | None = None,
    track: str | Tracker | None = None,
    on_evaluation: Callable[[int, dict[str, Any]], None] | None = None,
) -> Run:
    """Train a model and save it as a run folder.

    Args:
        data: an :class:`EncodedDataset`, the path of one, or a raw table: a path or a data frame, or the rows of each
            split as :func:`crossrank.data.open_splits` opens them.
        into: the run folder to make; until it is complete it is called ``<into>.partial``.
        config: settings, as an object, which is taken as it is, or as nested mappings, in which what is left out is
            filled in as suits the rows (:mod:`crossrank.training.defaults`).
        schema: what the columns of a raw table mean; drafted from the table where it is left out.
        seed: of initial weights, order of rows, and dropout. The same seed on the same machine gives the same weights.
        resume: go on with ``<into>.partial`` from its last checkpoint.
        overwrite: replace a run of that name, once the new one is complete.
        test: measure the test rows at the end, if the split has any; a search that still has to choose must not look.
        progress: show a bar; ``None`` for on a terminal only.
        clock: a :class:`StepClock` to learn where the time of a step goes.
        track: who is told how it goes: "tensorboard", "mlflow", or a :class:`~crossrank.training.trackers.Tracker`.
        on_evaluation: called with the step and the validation metrics after each evaluation; what it raises ends the
            training.

    Returns:
        The run, opened.

    Example::

        run = cr.train("clicks.csv", into="runs/first", config={"model": {"name": "dcn-v2"}})
        run.report["test"]["auc"]
    """
    into, given = Path(into), config
    config = config if isinstance(config, Config) else Config.parse(config or {})
    tracker = find_tracker(track)  # before anything is read
    keep_freed_memory()
    if config.training.distributed:
        from crossrank.training.distributed.world import need_torchrec

        need_torchrec()
        from crossrank.training.distributed.train import train_distributed

        run = Planned(into=into, config=config, seed=seed, on_evaluation=on_evaluation)
        return train_distributed(
            data,
            run,
            given,
            resume=resume,
            overwrite=overwrite,
            test=test,
            progress=progress,
            tracker=tracker,
        )
    with making_run(into, resume=resume, overwrite=overwrite) as folder:
        dataset = dataset_of(data, schema, config, folder / "dataset", progress=progress)
        with dataset.verifying():
            made = as_made(given, dataset, raw=dataset.path == folder / "dataset")
            run = Planned(into=into, config=made, seed=seed, on_evaluation=on_evaluation)
            check_splits(dataset, measured_splits(dataset, test))
            if resume:
                check_resumed(folder, run, dataset)
            write_plan(folder, run, dataset)
            if not is_complete(folder):  # otherwise it was killed when nothing but its name was missing
                options = {"progress": progress, "clock": clock, "track": track, "on_evaluation": on_evaluation}
                _make(dataset, run, given or {}, folder, schema=schema, resume=resume, test=test, options=options)
    return Run.open(into)


def train_or_resume(data: Any, *, into: Path, **options: Any) -> Run:
    """A run as it stands, or resumed where its training was interrupted, or trained; takes what :func:`train` takes."""
    recover(into)
    if is_run(into):
        return Run.open(into)
    resume = is_interrupted(into)
    return train(data, into=into, resume=resume, overwrite=not resume, **options)


def dataset_of(
    data: Any,
    schema: Schema | None,
    config: Config,
    into: Path,
    *,
    progress: bool | None,
    like: Encoder | None = None,
) -> EncodedDataset:
    """The encoded dataset that was meant: as given, opened, or made from a raw table for this training only."""
    opened = open_data(data)
    if isinstance(opened, EncodedDataset):
        return opened
    schema = schema or draft_table(opened, split=config.split.names_column).warned().schema
    return prepare(opened, schema, into, split=config.split, overwrite=True, progress=progress is not False, like=like)


def _make(
    dataset: EncodedDataset,
    run: Planned,
    given: Config | Mapping[str, Any],
    folder: Path,
    *,
    schema: Schema | None,
    resume: bool,
    test: bool,
    options: dict[str, Any],
) -> None:
    """Train what a run asks for, one model or several, and write it into the folder."""
    from crossrank.training.ensemble import first_seed, train_ensemble  # which call `train`
    from crossrank.training.tries import finish_tried, is_asked, try_all

    found = None
    if is_asked(run.config.training):
        found = try_all(dataset, given, run.config.training, folder, schema=schema, seed=first_seed(run), **options)
        if found and run.config.model.ensemble == 1:
            return finish_tried(found, run, folder, test=test)
        made = without_tries(run.config)
        if found:
            dataset = found.best.dataset
            made = as_made(without_tries(given, **found.best.model, ensemble=run.config.model.ensemble), dataset)
        run = dataclasses.replace(run, config=made)
    if run.config.model.ensemble > 1:
        about, first = (found.about, found.best.run) if found else ({}, None)
        return train_ensemble(dataset, run, folder, about, first=first, test=test, **options)
    return _train(dataset, run, folder, resume=resume, test=test, **options)


def _train(
    dataset: EncodedDataset,
    run: Planned,
    folder: Path,
    *,
    resume: bool,
    test: bool,
    progress: bool | None,
    clock: StepClock | None,
    track: str | Tracker | None,
    on_evaluation: Callable[[int, dict[str, Any]], None] | None,
) -> None:
    """Train one model and write the run into the folder."""
    settings, tracker = run.config.training, find_tracker(track)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        model, rows = seeded_model(run.config, dataset, run.seed), dataset.train
        check_model(model, [rows.take(np.arange(min(count, len(rows)))).features for count in (7, 1)])
        initial = initial_spectra(model, dataset.valid)
        learned = rows_to_learn(dataset, model, settings)
        engine = make_engine(model, learned, settings, seed=run.seed, clock=clock)
        member, line = engine.members[0], tracker.line
        trainer = Trainer(member, dataset, settings, folder=folder, on_line=line, on_evaluation=on_evaluation)
        if resume:
            trainer.resume()
        report = None
        tracker.start(run.into.name, folder, run.config.to_dict(), trainer.position.step)
        try:
            for error in train_models(engine, [trainer], show_progress=progress, clock=clock).values():
                raise error
            report = finish_run(trainer, run, test=test, initial=initial)
        finally:
            tracker.finish(report)

"""From a dataset to a run folder, by several processes: what :func:`crossrank.training.train` does with one.

The first process claims the folder, prints, measures at the end and writes. Everything in between all do together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossrank.data import EncodedDataset, open_data
from crossrank.errors import ConfigError
from crossrank.evaluation.findings import initial_spectra
from crossrank.folders import partial_of
from crossrank.models.own import check_model
from crossrank.nn.embedding import weights_in
from crossrank.runs import Run
from crossrank.runs.lifecycle import is_complete, is_interrupted, is_run, making_run
from crossrank.training.device import choose_device
from crossrank.training.distributed import checkpoint
from crossrank.training.distributed.engine import DistributedEngine
from crossrank.training.distributed.world import World, joined
from crossrank.training.finish import finish_run, measured_splits, seeded_model
from crossrank.training.plan import Planned, as_made, check_distributed, check_resumed, check_splits, write_plan
from crossrank.training.prior import rows_to_learn
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import Config
from crossrank.training.trackers import Tracker
from crossrank.training.trainer import Trainer, train_models


def train_distributed(
    data: Any,
    run: Planned,
    config: Config | Mapping[str, Any] | None,
    *,
    resume: bool,
    overwrite: bool,
    test: bool,
    progress: bool | None,
    tracker: Tracker,
) -> Run:
    """The same as :func:`crossrank.training.train`, called by every process.

    Where torchrun started the processes again because one was lost, they go on from the last checkpoint.
    """
    dataset = open_data(data)
    if not isinstance(dataset, EncodedDataset):
        raise ConfigError(
            "A distributed training must have a prepared dataset, so that a process reads its own rows; got a table.",
            hint="Make one with: crossrank prepare TABLE --into DATASET",
        )
    if not isinstance(config, Config):  # what is left out is not chosen from what is refused below
        config = {
            **(config or {}),
            "training": {"variants": "none", "memory": "none", "ramp": 0.0, **(config or {}).get("training", {})},
        }
    into, run = run.into, dataclasses.replace(run, config=as_made(config, dataset))
    training = run.config.training
    check_distributed(run.config)
    if dataset.schema.label.kind == "tasks":
        raise ConfigError(
            f"A distributed training has one label; got the tasks {dataset.schema.label.name}.",
            hint="Train in one process.",
        )
    check_splits(dataset, measured_splits(dataset, test))
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        if is_run(into):
            return Run.open(into)
        resume = is_interrupted(into)
    device = choose_device(training.device)
    with joined(device.type) as world, contextlib.ExitStack() as stack:
        with world.together():
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crossrank-")))
            opened = making_run(into, resume=resume, overwrite=overwrite)
            folder = stack.enter_context(opened) if world.is_first else scratch
        with world.together():
            if resume:
                check_resumed(partial_of(into), run, dataset)
            complete = is_complete(partial_of(into))  # nothing but its name was missing
            if world.is_first:
                write_plan(folder, run, dataset)
        tracker = tracker if world.is_first else Tracker()
        shown = progress if world.is_first else False
        if not complete:
            with dataset.verifying():
                _train(dataset, run, world, folder, scratch, resume=resume, test=test, progress=shown, tracker=tracker)
    return Run.open(into)


def _train(
    dataset: EncodedDataset,
    run: Planned,
    world: World,
    folder: Path,
    scratch: Path,
    *,
    resume: bool,
    test: bool,
    progress: bool | None,
    tracker: Tracker,
) -> None:
    settings, shared = run.config.training, partial_of(run.into)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        token = weights_in.set(str(scratch))
        try:
            model = seeded_model(run.config, dataset, run.seed)
        finally:
            weights_in.reset(token)
        rows = dataset.train
        check_model(model, [rows.take(np.arange(min(count, len(rows)))).features for count in (7, 1)])
        initial = initial_spectra(model, dataset.valid) if world.is_first else []
        if not world.is_first:
            torch.manual_seed(run.seed + (world.rank << 32))  # of what dropout drops
        learned = rows_to_learn(dataset, model, settings)
        settings = dataclasses.replace(settings.for_model(model, world.device.type), tables="lazy")
        engine = DistributedEngine(
            model,
            learned.train,
            settings,
            loss=settings.find_loss(dataset.schema.label),
            rule=UpdateRule(settings, total_steps=settings.total_steps(rows.num_batches(settings.batch_size))),
            seed=run.seed,
            world=world,
        )
        trainer = Trainer(
            engine,
            dataset,
            run.config.training,
            folder=folder,
            on_line=tracker.line,
            on_evaluation=run.on_evaluation,
            save=lambda _, position, tensors: checkpoint.save(engine, shared, position, tensors),
            load=lambda _: checkpoint.load(engine, shared),
        )
        if resume:
            trainer.resume()
        report = None
        tracker.start(run.into.name, folder, run.config.to_dict(), trainer.position.step)
        try:
            for error in train_models(engine, [trainer], show_progress=progress).values():
                raise error
            if world.is_first:
                checkpoint.read_best(model, shared)
                engine.close()
                trainer.model = engine.model
                report = finish_run(trainer, run, test=test, initial=initial)
        finally:
            tracker.finish(report)

"""The training loop of models that take their steps together."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch

from crossrank.data import EncodedDataset
from crossrank.models import Model
from crossrank.training.cuda.many import ManyTraining, can_share_a_program
from crossrank.training.cuda.steps import choose_device
from crossrank.training.progress import TrainingBar
from crossrank.training.settings import TrainingSettings
from crossrank.training.trainer import Trainer


@contextlib.contextmanager
def evaluators() -> Iterator[ThreadPoolExecutor]:
    """Threads for what the processor does for each model, such as metrics; each works alone, without torch's own."""
    before = torch.get_num_threads()
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool
    torch.set_num_threads(before)


def share_a_program(
    models: Sequence[Model], dataset: EncodedDataset, settings: TrainingSettings, *, seeds: Sequence[int]
) -> ManyTraining | None:
    """The joint steps of models of one shape, or None where they have to be trained one after the other."""
    device = choose_device(settings.device)
    settings = settings.for_model(models[0], device.type)
    if not can_share_a_program(models[0], dataset.train, settings, device):
        return None
    kind = dataset.schema.label.kind
    return ManyTraining(models, dataset.train, settings, seeds=seeds, label_kind=kind, device=device)


def train_many(
    many: ManyTraining,
    dataset: EncodedDataset,
    settings: TrainingSettings,
    folders: Sequence[Path],
    *,
    show_progress: bool | None = None,
) -> list[Trainer]:
    """Train all to the end. Each keeps its best weights; one whose patience ran out is not looked at any more."""
    trainers = [
        Trainer(part.model, dataset, settings, seed=seed, folder=folder, device_training=part)
        for part, seed, folder in zip(many.parts, many.rows.seeds, folders, strict=True)
    ]
    first, active = trainers[0], list(trainers)
    running, rows, started = torch.zeros_like(many.losses), 0, time.perf_counter()
    every = settings.eval_every or first.batches_per_epoch
    bar = TrainingBar(total=first.total_steps, label=f"training {len(trainers)} models", show=show_progress)
    with bar, evaluators() as pool:
        writing = [pool.submit(int)]  # lines of the journals, while the device goes on
        for step, size in _steps(many, first):
            running.add_(many.step(), alpha=size)
            rows += size
            logs, looks = (step % n == 0 or step == first.total_steps for n in (settings.log_every, every))
            if logs or looks:
                wait(writing)
                _move(active, step, first.batches_per_epoch)
            if logs:
                totals = running.tolist()  # waits for the device, so it is read before the clock
                seconds = time.perf_counter() - started
                writing = [pool.submit(_log_all, trainers, active, totals, rows, seconds, bar)]
                running, rows, started = torch.zeros_like(running), 0, time.perf_counter()
            if looks:
                for done in writing:
                    done.result()
                list(pool.map(lambda trainer: trainer._evaluate(bar), active))
                active = [one for one in active if not 0 < settings.patience <= one.position.misses]
                started = time.perf_counter()
            if not active:
                break
    many.close()
    for trainer in trainers:
        trainer.model.load_state_dict(trainer.best)
    return trainers


def _steps(many: ManyTraining, first: Trainer) -> Iterator[tuple[int, int]]:
    """The number of each step, and its rows."""
    step = 0
    while step < first.total_steps:
        for batch in many.batches(step // first.batches_per_epoch, 0):
            step += 1
            yield step, len(batch)
            if step == first.total_steps:
                return


def _move(trainers: Sequence[Trainer], step: int, batches_per_epoch: int) -> None:
    for trainer in trainers:
        trainer.position.step = step
        trainer.position.epoch, trainer.position.batch = divmod(step, batches_per_epoch)


def _log_all(
    trainers: list[Trainer],
    active: Sequence[Trainer],
    totals: Sequence[float],
    rows: int,
    seconds: float,
    bar: TrainingBar,
) -> int:
    for trainer in active:
        trainer._log(totals[trainers.index(trainer)], rows, seconds, bar)
    return len(active)

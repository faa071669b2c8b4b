"""The training loop of models that take their steps together."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

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
    """Threads for what the processor does for each model, such as metrics; each works alone, without torch's own.

    More than four spend their time waiting for Python's lock: 32 models took 28 s with sixteen and 17 with four.
    """
    before = torch.get_num_threads()
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 4), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool
    torch.set_num_threads(before)


def share_a_program(
    models: Sequence[Model], dataset: EncodedDataset, settings: Sequence[TrainingSettings], *, seeds: Sequence[int]
) -> ManyTraining | None:
    """The joint steps of models of one shape, or None where they have to be trained one after the other.

    Their settings are equal but for the learning rate.
    """
    device = choose_device(settings[0].device)
    shared = settings[0].for_model(models[0], device.type)
    if not can_share_a_program(models[0], dataset.train, shared, device):
        return None
    kind, rates = dataset.schema.label.kind, [one.learning_rate for one in settings]
    return ManyTraining(
        models, dataset.train, shared, seeds=seeds, learning_rates=rates, label_kind=kind, device=device
    )


def train_many(
    many: ManyTraining, trainers: Sequence[Trainer], *, show_progress: bool | None = None
) -> dict[Trainer, Exception]:
    """Train all to the end. Each keeps its best weights; one whose patience ran out is not looked at any more.

    Nor is one whose loss did not stay finite, or whose ``on_evaluation`` raised something.

    Returns:
        What ended those.
    """
    first, active = trainers[0], list(trainers)
    settings, ended = first.settings, dict[Trainer, Exception]()
    running, rows, started = torch.zeros_like(many.losses), 0, time.perf_counter()
    every = settings.eval_every or first.batches_per_epoch
    bar = TrainingBar(total=first.total_steps, label=f"training {len(trainers)} models", show=show_progress)
    with bar, evaluators() as pool:
        writing: Future[Any] = pool.submit(int)  # lines of the journals, while the device goes on
        for step, size in _steps(many, first):
            running.add_(many.step(), alpha=size)
            rows += size
            logs, looks = (step % n == 0 or step == first.total_steps for n in (settings.log_every, every))
            if logs or looks:
                active = _remaining(active, ended, writing)
                _move(active, step, first.batches_per_epoch)
            if logs:
                totals = dict(zip(trainers, running.tolist(), strict=True))  # waits for the device, so before the clock
                line = (rows, time.perf_counter() - started, bar)
                writing = pool.submit(_log_all, active, totals, line, ended)
                running, rows, started = torch.zeros_like(running), 0, time.perf_counter()
            if looks:
                active = _remaining(active, ended, writing)
                list(pool.map(lambda trainer: _try(trainer, ended, trainer._evaluate, bar), active))
                active = _remaining(active, ended, writing)
                started = time.perf_counter()
            if not active:
                break
    many.close()
    for trainer in trainers:
        if trainer not in ended:
            _try(trainer, ended, trainer.model.load_state_dict, trainer.best)
    return ended


def _try(trainer: Trainer, ended: dict[Trainer, Exception], work: Callable[..., object], *arguments: Any) -> None:
    """What a model's own work raises ends that model alone."""
    try:
        work(*arguments)
    except Exception as error:
        ended[trainer] = error


def _remaining(active: list[Trainer], ended: Mapping[Trainer, Exception], writing: Future[Any]) -> list[Trainer]:
    """Those that go on, once their journals are written."""
    writing.result()
    return [one for one in active if one not in ended and not 0 < one.settings.patience <= one.position.misses]


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
    active: Sequence[Trainer],
    totals: Mapping[Trainer, float],
    line: tuple[int, float, TrainingBar],
    ended: dict[Trainer, Exception],
) -> None:
    for trainer in active:
        _try(trainer, ended, trainer._log, totals[trainer], *line)

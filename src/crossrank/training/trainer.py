"""The training loop: steps of an engine, and what is done for each model in between."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from crossrank.data import EncodedDataset, Split
from crossrank.errors import ConfigError, listing
from crossrank.evaluation.evaluate import measure_split, score_split
from crossrank.evaluation.metrics import badness
from crossrank.files import write_text
from crossrank.training.checkpoint import JOURNAL, Position, load_checkpoint, save_checkpoint
from crossrank.training.engine import Engine, Member
from crossrank.training.profile import NoClock, StepClock
from crossrank.training.progress import TrainingBar, Window
from crossrank.training.schedule import PLATEAU_DROP
from crossrank.training.settings import TrainingSettings

MOST_EVALUATORS = 4  # threads; more wait for Python's lock: 32 models took 28 s with sixteen and 17 with four


def take_steps(
    engine: Engine, position: Position, *, total_steps: int, batches_per_epoch: int
) -> Iterator[tuple[int, Tensor]]:
    """Steps from a position on, which moves along; yields the rows of each, and each member's loss on them."""
    while position.step < total_steps:
        for batch in engine.batches(position.epoch, position.batch):
            losses = engine.step(batch)
            position.move_to(position.step + 1, batches_per_epoch)
            yield len(batch), losses
            if position.step == total_steps:
                return


class Trainer:
    """One model on its way: position, journal, evaluations, checkpoints, and the weights that did best so far.

    Args:
        member: the model, where its steps are made.
        dataset: its valid split decides.
        settings: of the training.
        folder: where metrics.jsonl and checkpoints go.
        on_line: told every line of the journal.
        on_evaluation: told the step and the validation metrics after each evaluation; what it raises ends the training.
        save, load: write and read a checkpoint.
    """

    def __init__(
        self,
        member: Member,
        dataset: EncodedDataset,
        settings: TrainingSettings,
        *,
        folder: Path,
        on_line: Callable[[dict[str, Any]], None] | None = None,
        on_evaluation: Callable[[int, dict[str, Any]], None] | None = None,
        save: Callable[[Path, Position, dict[str, Tensor]], None] | None = None,
        load: Callable[[Path], tuple[Position, list[str], dict[str, Tensor]]] | None = None,
    ) -> None:
        self.save, self.load = save or save_checkpoint, load or load_checkpoint
        self.member, self.model, self.dataset, self.settings, self.folder = (
            member, member.model, dataset, settings, folder
        )  # fmt: skip
        self.on_line, self.on_evaluation = on_line, on_evaluation
        self.label_kind = dataset.schema.label.kind
        self.criterion = settings.criterion(self.label_kind)
        self.counts = {slot.name: dataset.encoder.counts(slot.name) for slot in self.model.layout.embedded}
        self.position = Position()
        self.best: dict[str, Tensor] = {}
        self.journal = folder / JOURNAL
        self._lines: TextIO | None = None
        self.batches_per_epoch = dataset.train.num_batches(settings.batch_size)
        self.total_steps = settings.total_steps(self.batches_per_epoch)

    @functools.cached_property
    def valid(self) -> Split:
        """The rows that decide, where the model is."""
        return self.member.placed(self.dataset.valid)

    @property
    def is_out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.position.misses

    def resume(self) -> None:
        """Go on from the checkpoint in the folder, as if nothing had happened."""
        self.position, lines, tensors = self.load(self.folder)
        self.best = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("best.")}
        self.member.restore(tensors)
        for _ in range(self.position.drops):
            self.member.drop(PLATEAU_DROP)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(tensors[f"buffer.{name}"])
        write_text(self.journal, "".join(lines))

    def __enter__(self) -> Trainer:
        self._lines = self.journal.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, *error: object) -> None:
        if self._lines is not None:
            self._lines.close()

    def log(self, loss: float, rows: int, seconds: float, first: int = 0) -> None:
        """Note the mean loss of the rows learned from since the last line, whose first that was not finite is known."""
        position = self.position
        if not math.isfinite(loss):
            raise self._diverged(f"The training loss must stay finite; it is {loss}", first or position.step)
        if self.label_kind == "real" and self.settings.loss != "pairwise":
            loss *= float(self.model.label_deviation) ** 2  # a number is learned at unit scale
        position.seconds += seconds
        position.rows += rows
        speed = rows / max(seconds, 1e-9)
        self._write({"step": position.step, "epoch": position.epoch, "loss": loss, "rows_per_second": speed})

    def evaluate(self) -> None:
        """Measure averaged and raw weights on the validation rows, keep the averaged ones if they are the best yet."""
        position, line = self.position, {"step": self.position.step, "epoch": self.position.epoch}
        with self.member.using(averaged=False):
            raw = self._measure()
        with self.member.using(averaged=True):
            averaged = self._measure()
            value = self._badness(averaged)
            better = value < position.best
            if better:
                position.best, position.best_step, position.misses = value, position.step, 0
                self.best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            else:
                position.misses += 1
        if not better and self.settings.schedule == "plateau":
            self.member.drop(PLATEAU_DROP)
            position.drops += 1
        self._write(line | {"valid": averaged, "valid_raw": raw})
        self.dataset.verify()  # so that no checkpoint holds what was learned from damaged rows
        best = {f"best.{name}": tensor for name, tensor in self.best.items()}
        buffers = {f"buffer.{name}": tensor for name, tensor in self.model.named_buffers()}
        self.save(self.folder, position, self.member.state() | best | buffers)
        if self.on_evaluation:
            self.on_evaluation(position.step, averaged)

    def _measure(self) -> dict[str, Any]:
        self.model.fill_untrained_rows(self.counts)
        logits = score_split(self.model, self.valid)
        if not np.isfinite(logits).all():
            problem = "A model's answers must stay finite; on the validation rows they are not"
            raise self._diverged(problem, self.position.step)
        label = self.dataset.schema.label
        measured = measure_split(logits, self.valid, label)
        if self.criterion.startswith("ndcg@") and self.criterion not in measured:  # of another k
            measured |= measure_split(logits, self.valid, label, k=int(self.criterion[5:]))
        return measured

    def _badness(self, measured: dict[str, Any]) -> float:
        """Of the validation rows, by the criterion."""
        if measured.get(self.criterion) is None:
            known = [name for name, value in measured.items() if value is not None and name != "rows"]
            raise ConfigError(
                f"training.monitor={self.criterion} must be known of the validation rows; got {listing(known)}.",
                hint="Do all of them weigh nothing? Metrics by group need a group column, and rows of different labels "
                "in a group.",
            )
        return badness(measured, self.criterion)

    def _diverged(self, problem: str, step: int) -> ConfigError:
        epoch, batch = divmod(step - 1, self.batches_per_epoch)
        weights = self.dataset.train.weights
        if weights is not None and not weights.any():
            hint = "All training rows weigh nothing: check the column of weights."
        elif step <= 1:
            hint = "It was so from the first step on: check the loss and the weights that a model begins with; or try "
            hint += f"a smaller training.learning_rate than {self.settings.learning_rate}."
        else:
            hint = "Likely the steps are too long: try a smaller training.learning_rate than "
            hint += f"{self.settings.learning_rate}, or a smaller training.clip_norm than {self.settings.clip_norm}."
        if self.best:
            hint += f" What was good at step {self.position.best_step:,} is kept in {self.folder}."
        return ConfigError(f"{problem} at step {step:,}, batch {batch + 1:,} of epoch {epoch + 1:,}.", hint=hint)

    def _write(self, line: dict[str, Any]) -> None:
        if self._lines is not None:
            self._lines.write(json.dumps(line) + "\n")
        self.position.journal_lines += 1
        if self.on_line:
            self.on_line(line)


def train_models(
    engine: Engine,
    trainers: Sequence[Trainer],
    *,
    show_progress: bool | None = None,
    clock: StepClock | None = None,
) -> dict[Trainer, Exception]:
    """Train all to the end, or until their patience ran out, and leave in each model its best weights.

    Args:
        engine: makes the steps.
        trainers: one for each of its members, in their order, with equal settings but for the learning rate.
        show_progress: a bar; ``None`` for on a terminal only.
        clock: told when the work between two steps ends.

    Returns:
        What ended those that did not get there: a loss that did not stay finite, or what ``on_evaluation`` raised.
    """
    first, settings, clock = trainers[0], trainers[0].settings, clock or NoClock()
    every, total = settings.eval_every or first.batches_per_epoch, first.total_steps
    ended, window, position = dict[Trainer, Exception](), Window(), dataclasses.replace(first.position)
    label = "training" if len(trainers) == 1 else f"training {len(trainers)} models"
    for trainer in trainers:
        trainer.model.train()
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(TrainingBar(total=total, start=position.step, label=label, show=show_progress))
        each = stack.enter_context(threads(len(trainers)))
        active = [stack.enter_context(trainer) for trainer in trainers]
        steps = take_steps(engine, position, total_steps=total, batches_per_epoch=first.batches_per_epoch)
        for rows, losses in steps:
            window.add(losses, rows)
            bar.advance(position.step)
            looks = position.step % every == 0 or position.step == total
            if looks or position.step % settings.log_every == 0:
                means = dict(zip(trainers, window.means(), strict=True))  # waits for the device, so before the clock
                seconds = time.perf_counter() - window.started
                for trainer in active:
                    trainer.position.move_to(position.step, first.batches_per_epoch)
                    bad = window.first_bad(trainers.index(trainer), position.step)
                    _try(trainer, ended, lambda one: one.log(means[one], window.rows, seconds, bad))  # noqa: B023
                bar.note(f"loss {means[active[0]]:.4f} {window.rows / max(seconds, 1e-9):,.0f} rows/s")
                active = [one for one in active if one not in ended]
                if looks:
                    list(each(lambda one: _try(one, ended, Trainer.evaluate), active))
                    active = [one for one in active if one not in ended and not one.is_out_of_patience]
                window.restart()
            clock.mark("log")
            if not active:
                break
    for trainer in (one for one in trainers if one not in ended):
        trainer.model.load_state_dict(trainer.best)
    return ended


def _try(trainer: Trainer, ended: dict[Trainer, Exception], work: Callable[[Trainer], None]) -> None:
    """What a model's own work raises ends that model alone."""
    try:
        work(trainer)
    except Exception as error:
        ended[trainer] = error


@contextlib.contextmanager
def threads(count: int) -> Iterator[Callable[..., Any]]:
    """A ``map`` for what the processor does for each model, such as metrics; threads work without torch's own."""
    if count == 1:
        yield map
        return
    before, most = torch.get_num_threads(), min(os.cpu_count() or 1, MOST_EVALUATORS)
    with ThreadPoolExecutor(most, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool.map
    torch.set_num_threads(before)

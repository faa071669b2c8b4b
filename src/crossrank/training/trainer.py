"""The training loop."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossrank.data import EncodedDataset, Split
from crossrank.errors import ConfigError
from crossrank.evaluation.evaluate import measure_split, score_split
from crossrank.models import Model
from crossrank.training.checkpoint import Position, load_checkpoint, save_checkpoint
from crossrank.training.cuda.many import ModelOfMany
from crossrank.training.cuda.steps import DeviceTraining, choose_device
from crossrank.training.loss import data_loss, penalty
from crossrank.training.optimizer import Optimizer
from crossrank.training.profile import NoClock, StepClock
from crossrank.training.progress import TrainingBar
from crossrank.training.settings import TrainingSettings

CRITERIA = {"binary": "logloss", "real": "rmse"}
BFLOAT16_PAYS = 256  # narrower products are dominated by the conversions


def uses_bfloat16(precision: str, input_dim: int) -> bool:
    """Whether matrix products are to be made in bfloat16."""
    if precision == "auto":
        return input_dim >= BFLOAT16_PAYS and has_bfloat16()
    return precision == "bfloat16"


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 matrices itself."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


class Trainer:
    """Trains a model on a dataset, step by step, keeping the weights that did best on the validation rows.

    Args:
        model: trained in place.
        dataset: its train split is learned from, its valid split decides.
        settings: how.
        seed: of the order of the rows.
        folder: where metrics.jsonl and checkpoints go.
        device_training: the steps, where they are made together with those of other models.
        clock: told when each part of a step ends.
    """

    def __init__(
        self,
        model: Model,
        dataset: EncodedDataset,
        settings: TrainingSettings,
        *,
        seed: int,
        folder: Path,
        device_training: DeviceTraining | ModelOfMany | None = None,
        clock: StepClock | None = None,
    ) -> None:
        device = choose_device(settings.device)
        settings = settings.for_model(model, device.type)
        self.model, self.dataset, self.settings, self.seed, self.folder = model, dataset, settings, seed, folder
        self.clock = clock or NoClock()
        self.label_kind = dataset.schema.label.kind
        self.criterion = CRITERIA[self.label_kind]
        self.counts = {slot.name: dataset.encoder.counts(slot.name) for slot in model.layout.embedded}
        if device.type == "cuda" and device_training is None:
            device_training = DeviceTraining(
                model, dataset.train, settings, seed=seed, label_kind=self.label_kind, device=device
            )
        self.on_device = device_training
        self.optimizer = (
            Optimizer(model, settings, clock=self.clock) if device_training is None else device_training.optimizer
        )
        if clock:
            model.embedding.register_forward_hook(
                lambda module, *_: self.clock.mark("gather") if module.training else None
            )
        self.bfloat16 = uses_bfloat16(settings.precision, model.layout.input_dim)
        self.position = Position()
        self.on_line: Callable[[dict[str, Any]], None] | None = None
        self.on_evaluation: Callable[[int, dict[str, Any]], None] | None = None
        self.best: dict[str, Tensor] = {}
        self.journal = folder / "metrics.jsonl"
        self.batches_per_epoch = dataset.train.num_batches(settings.batch_size)
        self.total_steps = min(settings.epochs * self.batches_per_epoch, settings.max_steps or 2**62)

    def resume(self) -> None:
        """Go on from the checkpoint in the folder, as if nothing had happened."""
        self.position, tensors = load_checkpoint(self.folder)
        self.best = {name[5:]: tensor for name, tensor in tensors.items() if name.startswith("best.")}
        self.optimizer.restore(tensors)
        for name, buffer in self.model.named_buffers():
            buffer.copy_(tensors[f"buffer.{name}"])
        lines = self.journal.read_text(encoding="utf-8").splitlines(keepends=True)
        self.journal.write_text("".join(lines[: self.position.journal_lines]), encoding="utf-8")

    def train(self, *, show_progress: bool | None = None) -> None:
        """Step until the end or until patience runs out, then leave the best weights in the model."""
        self.model.train()
        position, every = self.position, self.settings.eval_every or self.batches_per_epoch
        running, rows, started = torch.zeros((), device=self.device), 0, time.perf_counter()
        with TrainingBar(total=self.total_steps, label="training", show=show_progress) as bar:
            for batch in self._batches():
                self.clock.mark("load")
                running += self._step(batch)
                rows += len(batch)
                if position.step % self.settings.log_every == 0 or position.step == self.total_steps:
                    total = running.item()  # waits for the device, so it is read before the clock
                    self._log(total, rows, time.perf_counter() - started, bar)
                    running, rows, started = torch.zeros_like(running), 0, time.perf_counter()
                if position.step % every == 0 or position.step == self.total_steps:
                    self._evaluate(bar)
                    started = time.perf_counter()
                    if 0 < self.settings.patience <= position.misses:
                        break
                self.clock.mark("log")
        self.model.load_state_dict(self.best)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def close(self) -> None:
        """Leave an ordinary model on the processor."""
        (self.on_device or self.optimizer).close()

    def measured(self, split: Split) -> Split:
        """A split whose batches come where the model is."""
        return self.on_device.evaluated(split) if self.on_device else split

    def _batches(self) -> Iterator[Any]:
        """Batches from the present position on; the position already points past the one handed out."""
        position = self.position
        while position.step < self.total_steps:
            for batch in self._epoch():
                position.step += 1
                position.batch += 1
                if position.batch == self.batches_per_epoch:
                    position.epoch, position.batch = position.epoch + 1, 0
                yield batch
                if position.step == self.total_steps:
                    return

    def _epoch(self) -> Iterator[Any]:
        epoch, start = self.position.epoch, self.position.batch
        if self.on_device:
            return self.on_device.batches(epoch, start)
        return self.dataset.train.batches(self.settings.batch_size, seed=self.seed, epoch=epoch, start_batch=start)

    def _step(self, batch: Any) -> Tensor:
        """One step; returns the loss on the data times the number of rows."""
        if self.on_device:
            loss = self.on_device.step(batch) * len(batch)
            self.clock.mark("step")
            return loss
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            logits = self.model(batch.features).float()
        loss = data_loss(logits, batch.labels, batch.weights, label_kind=self.label_kind)
        loss_and_penalty = loss + penalty(self.model, self.settings.l2)
        self.clock.mark("forward")
        self.optimizer.step(loss_and_penalty)
        return loss.detach() * len(batch)

    def _log(self, running: float, rows: int, seconds: float, bar: TrainingBar) -> None:
        loss, speed = running / rows, rows / max(seconds, 1e-9)
        if not math.isfinite(loss):
            raise self._diverged(f"The training loss must stay finite; it is {loss}")
        self.position.seconds += seconds
        self._write({"step": self.position.step, "epoch": self.position.epoch, "loss": loss, "rows_per_second": speed})
        bar.advance(self.position.step, note=f"loss {loss:.4f} {speed:,.0f} rows/s")

    def _evaluate(self, bar: TrainingBar) -> None:
        """Measure averaged and raw weights on the validation rows, keep the averaged ones if they are the best yet."""
        position, line = self.position, {"step": self.position.step, "epoch": self.position.epoch}
        with self.optimizer.using(averaged=False):
            raw = self._measure()
        with self.optimizer.using(averaged=True):
            averaged = self._measure()
            if averaged[self.criterion] < position.best:
                position.best, position.best_step, position.misses = averaged[self.criterion], position.step, 0
                self.best = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            else:
                position.misses += 1
        self._write(line | {"valid": averaged, "valid_raw": raw})
        bar.advance(position.step, note=f"valid {self.criterion} {averaged[self.criterion]:.4f}")
        best = {f"best.{name}": tensor for name, tensor in self.best.items()}
        buffers = {f"buffer.{name}": tensor for name, tensor in self.model.named_buffers()}
        save_checkpoint(self.folder, position, self.optimizer.state() | best | buffers)
        if self.on_evaluation:
            self.on_evaluation(position.step, averaged)

    def _measure(self) -> dict[str, Any]:
        self.model.fill_untrained_rows(self.counts)
        rows = self.measured(self.dataset.valid)
        logits = score_split(self.model, rows)
        if not np.isfinite(logits).all():
            raise self._diverged("A model's answers must stay finite; on the validation rows they are not")
        return measure_split(logits, rows, label_kind=self.label_kind)

    def _diverged(self, problem: str) -> ConfigError:
        hint = f"Try a smaller training.learning_rate than {self.settings.learning_rate}."
        return ConfigError(f"{problem} at step {self.position.step:,}.", hint=hint)

    def _write(self, line: dict[str, Any]) -> None:
        with self.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.position.journal_lines += 1
        if self.on_line:
            self.on_line(line)

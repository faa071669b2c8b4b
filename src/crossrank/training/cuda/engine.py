"""Training on a GPU: each step is one captured graph, replayed without waiting for it.

The rows of a dataset live on the device where they fit. A batch always has the same size: the last one of an epoch is
filled up with copies of its first row that weigh nothing, which changes neither loss nor gradient nor which rows of a
table are touched. The first steps of a training run as they are, to compile and to warm up; then a step is captured,
with its gather, forward, loss, backward and update, and from then on a step costs the host one call.

DCN-V2 with full cross layers has a step of its own (:mod:`crossrank.training.cuda.dcn`). Every other model runs its own
``forward`` under autograd, inside the same graph. Bags have a size of their own in every batch, so models with
multivalent features run uncaptured, as do losses that compare the rows of a group, whose batches are of whole groups.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from crossrank.data import Batch, Split
from crossrank.models import Model
from crossrank.training.cuda import plain
from crossrank.training.cuda.data import EvaluatedSplit, ResidentRows, SentRows, fits
from crossrank.training.cuda.dcn import DCNSteps, is_written_out
from crossrank.training.cuda.plain import Taken
from crossrank.training.cuda.update import DeviceOptimizer, operations
from crossrank.training.device import uses_bfloat16
from crossrank.training.engine import SingleEngine
from crossrank.training.heads import learned_logits
from crossrank.training.loss import Loss, penalty
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings

WARM_UP_STEPS = 3


class CapturedProgram:
    """Runs one program again and again: after a few times it is captured as a graph, which is replayed from then on.

    Where there are no kernels it always runs as it is.
    """

    def __init__(self, device: torch.device) -> None:
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capturable, self.warm_up = operations(device) is not plain, WARM_UP_STEPS

    def run(self, program: Callable[[], None]) -> None:
        if self.graph is not None:
            self.graph.replay()
            return
        program()
        self.warm_up -= 1
        if self.warm_up == 0 and self.capturable:
            self._capture(program)

    def _capture(self, program: Callable[[], None]) -> None:
        """Alone: neither another thread's call nor the end of an older graph may fall into it."""
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        gc.collect()
        gc.disable()
        try:
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                program()
        finally:
            gc.enable()


class AutogradSteps:
    """Whole steps of any model, by its own forward and autograd."""

    def __init__(
        self, model: Model, settings: TrainingSettings, *, loss: Loss, rule: UpdateRule, bfloat16: bool
    ) -> None:
        self.model, self.settings, self.loss, self.bfloat16 = model, settings, loss, bfloat16
        self.optimizer = DeviceOptimizer(model, settings, rule=rule)

    def step(self, rows: Taken | Batch) -> Tensor:
        """One step; returns the loss on the data."""
        with torch.autocast(rows.labels.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False):
            logits = learned_logits(self.model, rows.features, self.settings.heads).float()
        loss = self.loss(logits, rows.labels, rows.weights, rows.groups)
        self.optimizer.step(loss + penalty(self.model, self.settings.l2))
        return loss.detach()


class CapturedEngine(SingleEngine):
    """The steps of a training on a GPU; an :class:`~crossrank.training.engine.Engine`.

    On a processor the same steps run uncaptured.
    """

    def __post_init__(self) -> None:
        model, settings, device = self.model.to(self.device), self.settings, self.device
        varying = bool(self.split.bags) or self.loss.needs_groups  # sizes differ between batches
        kind = DCNSteps if is_written_out(model, settings) and not varying else AutogradSteps
        bfloat16 = uses_bfloat16(settings.precision, model.layout.input_dim, device)
        self.steps: Any = kind(model, settings, loss=self.loss, rule=self.rule, bfloat16=bfloat16)
        self.optimizer = self.steps.optimizer
        rows = ResidentRows if fits(self.split, device) else SentRows
        self.rows = None if varying else rows(self.split, settings.batch_size, seed=self.seed, device=device)
        self.captured, self.last_loss = CapturedProgram(device), torch.zeros(1, device=device)

    def batches(self, epoch: int, start_batch: int) -> Iterator[range | Batch]:
        if self.rows is None:
            return super().batches(epoch, start_batch)
        return self.rows.batches(epoch, start_batch)

    def step(self, batch: range | Batch) -> Tensor:
        self.clock.mark("load")
        if isinstance(batch, Batch):
            self.last_loss.copy_(self.steps.step(batch.to(self.device, non_blocking=True)))
        else:
            self.captured.run(self._program)
        self.clock.mark("step")
        return self.last_loss

    def _program(self) -> None:
        if self.rows is not None:
            self.last_loss.copy_(self.steps.step(self.rows.take()))

    def placed(self, split: Split) -> Split:
        return EvaluatedSplit(split, self.device)

    def close(self) -> None:
        """Give the buffers back, and leave an ordinary model on the processor."""
        self.captured.graph = None
        if self.rows is not None:
            self.rows.close()
        for parameter in self.model.parameters():
            parameter.grad = None
            parameter.data = parameter.data.contiguous()
        self.optimizer.close()
        self.model.cpu()

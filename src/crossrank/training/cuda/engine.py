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

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from crossrank.data import Batch, Split
from crossrank.models import Model
from crossrank.nn import Features
from crossrank.training.cuda import plain
from crossrank.training.cuda.data import EvaluatedSplit, ResidentRows, SentRows, Step, fits
from crossrank.training.cuda.dcn import DCNSteps, is_written_out
from crossrank.training.cuda.plain import Taken
from crossrank.training.cuda.update import DeviceOptimizer, operations
from crossrank.training.device import uses_bfloat16
from crossrank.training.engine import Member
from crossrank.training.heads import learned_logits
from crossrank.training.loss import Loss, penalty
from crossrank.training.profile import NoClock, StepClock
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings

WARM_UP_STEPS = 3


@contextlib.contextmanager
def capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture alone: neither another thread's call nor the end of an older graph may fall into it."""
    gc.collect()
    gc.disable()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            yield
    finally:
        gc.enable()


class AutogradSteps:
    """Whole steps of any model, by its own forward and autograd."""

    def __init__(
        self, model: Model, settings: TrainingSettings, *, loss: Loss, rule: UpdateRule, bfloat16: bool
    ) -> None:
        self.model, self.settings, self.loss, self.bfloat16 = model, settings, loss, bfloat16
        self.optimizer = DeviceOptimizer(model, settings, rule=rule)

    def step(self, taken: Taken) -> Tensor:
        """One step; returns the loss on the data."""
        return self.step_with(Features(taken.ids, taken.numeric), taken.labels, taken.weights)

    def step_with(
        self, features: Features, labels: Tensor, weights: Tensor | None, groups: Tensor | None = None
    ) -> Tensor:
        with torch.autocast(labels.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False):
            logits = learned_logits(self.model, features, self.settings.heads).float()
        loss = self.loss(logits, labels, weights, groups)
        self.optimizer.step(loss + penalty(self.model, self.settings.l2))
        return loss.detach()


class CapturedEngine:
    """The steps of a training on a GPU; an :class:`~crossrank.training.engine.Engine`.

    Args:
        model: moved there, and trained in place.
        split: the training rows.
        settings: of the training.
        loss: what is made small.
        rule: of the update.
        seed: of the order of the rows.
        device: a GPU; on a processor the same steps run uncaptured.
        clock: told when each part of a step ends.
    """

    def __init__(
        self,
        model: Model,
        split: Split,
        settings: TrainingSettings,
        *,
        loss: Loss,
        rule: UpdateRule,
        seed: int,
        device: torch.device,
        clock: StepClock | None = None,
    ) -> None:
        self.model, self.split, self.settings, self.device = model.to(device), split, settings, device
        self.seed, self.by_group, self.clock = seed, loss.needs_groups, clock or NoClock()
        bfloat16 = uses_bfloat16(settings.precision, model.layout.input_dim, device)
        varying = bool(split.bags) or loss.needs_groups  # sizes differ between batches
        kind = DCNSteps if is_written_out(model, settings) and not varying else AutogradSteps
        self.steps = kind(model, settings, loss=loss, rule=rule, bfloat16=bfloat16)
        self.optimizer = self.steps.optimizer
        rows = ResidentRows if fits(split, device) else SentRows
        self.rows = None if varying else rows(split, settings.batch_size, seed=seed, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss = torch.zeros(1, device=device)
        self.taken = 0

    @property
    def members(self) -> Sequence[Member]:
        return [self]

    def batches(self, epoch: int, start_batch: int) -> Iterator[Step | Batch]:
        if self.rows is not None:
            return self.rows.batches(epoch, start_batch)
        size, by_group = self.settings.batch_size, self.by_group
        return self.split.batches(size, seed=self.seed, epoch=epoch, start_batch=start_batch, by_group=by_group)

    def step(self, batch: Step | Batch) -> Tensor:
        self.clock.mark("load")
        if isinstance(batch, Batch):
            self._step_uncaptured(batch.to(self.device, non_blocking=True))
        elif self.graph is not None:
            self.graph.replay()
        else:
            self.taken += 1
            self._program()
            if self.taken == WARM_UP_STEPS and operations(self.device) is not plain:
                self._capture()
        self.clock.mark("step")
        return self.loss

    def _program(self) -> None:
        if self.rows is not None:
            self.loss.copy_(self.steps.step(self.rows.take()))

    def _capture(self) -> None:
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with capturing(self.graph):
            self._program()

    def _step_uncaptured(self, batch: Batch) -> None:
        if isinstance(self.steps, AutogradSteps):
            loss = self.steps.step_with(batch.features, batch.labels, batch.weights, batch.groups)
            self.loss.copy_(loss)

    def using(self, *, averaged: bool) -> AbstractContextManager[None]:
        return self.optimizer.using(averaged=averaged)

    def placed(self, split: Split) -> Split:
        return EvaluatedSplit(split, self.device)

    def drop(self, factor: float) -> None:
        self.optimizer.rule.drop(factor)

    def state(self) -> dict[str, Tensor]:
        return self.optimizer.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.optimizer.restore(state)

    def close(self) -> None:
        """Give the buffers back, and leave an ordinary model on the processor."""
        self.graph = None
        if self.rows is not None:
            self.rows.close()
        for parameter in self.model.parameters():
            parameter.grad = None
            parameter.data = parameter.data.contiguous()
        self.optimizer.close()
        self.model.cpu()

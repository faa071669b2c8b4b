"""Training on a GPU: each step is one captured graph, replayed without waiting for it.

The rows of a dataset live on the device where they fit. A batch always has the same size: the last one of an epoch is
filled up with copies of its first row that weigh nothing, which changes neither loss nor gradient nor which rows of a
table are touched. The first steps of a training run as they are, to compile and to warm up; then a step is captured,
with its gather, forward, loss, backward and update, and from then on a step costs the host one call.

DCN-V2 with full cross layers has a step of its own (:mod:`crossrank.training.cuda.dcn`). Every other model runs its own
``forward`` under autograd, inside the same graph. Bags have a size of their own in every batch, so models with
multivalent features run uncaptured.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch
from torch import Tensor

from crossrank.data import Batch, Split
from crossrank.errors import ConfigError
from crossrank.models import Model
from crossrank.nn import Features
from crossrank.training.cuda import plain
from crossrank.training.cuda.data import EvaluatedSplit, ResidentRows, SentRows, Step, fits
from crossrank.training.cuda.dcn import DCNSteps, is_written_out
from crossrank.training.cuda.optimizer import DeviceOptimizer, operations
from crossrank.training.cuda.plain import Taken
from crossrank.training.loss import data_loss, penalty
from crossrank.training.settings import TrainingSettings

WARM_UP_STEPS = 3
BFLOAT16_PAYS = 256  # narrower products are too small for the matrix units to matter


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


def choose_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one.

    Raises:
        ConfigError: where a GPU is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "training.device must be 'auto' or 'cpu' on this machine; got 'cuda', and torch sees no GPU.",
            hint="Install a torch that is built for CUDA, or leave training.device out.",
        )
    return torch.device("cpu" if name == "cpu" or not torch.cuda.is_available() else "cuda")


class AutogradSteps:
    """Whole steps of any model, by its own forward and autograd."""

    def __init__(self, model: Model, settings: TrainingSettings, *, bfloat16: bool, binary: bool) -> None:
        self.model, self.settings, self.bfloat16 = model, settings, bfloat16
        self.label_kind = "binary" if binary else "real"
        self.optimizer = DeviceOptimizer(model, settings)

    def step(self, taken: Taken, features: Features | None = None) -> Tensor:
        """One step; returns the loss on the data."""
        features = features or Features(taken.ids, taken.numeric)
        with torch.autocast(taken.labels.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False):
            logits = self.model(features).float()
        loss = data_loss(logits, taken.labels, taken.weights, label_kind=self.label_kind)
        self.optimizer.step(loss + penalty(self.model, self.settings.l2))
        return loss.detach()


class DeviceTraining:
    """The steps of a training on a device, and the rows they take.

    Args:
        model: moved there, and trained in place.
        split: the training rows.
        settings: of the training.
        seed: of the order of the rows.
        label_kind: "binary" or "real".
        device: a GPU; on a processor the same steps run uncaptured.
    """

    def __init__(
        self,
        model: Model,
        split: Split,
        settings: TrainingSettings,
        *,
        seed: int,
        label_kind: str,
        device: torch.device,
    ) -> None:
        self.model, self.split, self.settings, self.device = model.to(device), split, settings, device
        self.seed = seed
        auto = settings.precision == "auto" and model.layout.input_dim >= BFLOAT16_PAYS and device.type == "cuda"
        kind = DCNSteps if is_written_out(model, settings) else AutogradSteps
        self.steps = kind(
            model, settings, bfloat16=auto or settings.precision == "bfloat16", binary=label_kind == "binary"
        )
        self.optimizer = self.steps.optimizer
        rows = ResidentRows if fits(split, device) else SentRows
        self.rows = None if split.bags else rows(split, settings.batch_size, seed=seed, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.loss = torch.zeros((), device=device)
        self.taken = 0

    def batches(self, epoch: int, start_batch: int) -> Iterator[Step | Batch]:
        """What :meth:`step` is to be called with, one after the other."""
        if self.rows is not None:
            return self.rows.batches(epoch, start_batch)
        size = self.settings.batch_size
        return self.split.batches(size, seed=self.seed, epoch=epoch, start_batch=start_batch)

    def step(self, batch: Step | Batch) -> Tensor:
        """One step; returns the loss on the data, which the next step overwrites."""
        if isinstance(batch, Batch):
            return self._step_with_bags(batch.to(self.device, non_blocking=True))
        if self.graph is not None:
            self.graph.replay()
            return self.loss
        self.taken += 1
        self._program()
        if self.taken == WARM_UP_STEPS and operations(self.device) is not plain:
            self._capture()
        return self.loss

    def _program(self) -> None:
        if self.rows is not None:
            self.loss.copy_(self.steps.step(self.rows.take()))

    def _capture(self) -> None:
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with capturing(self.graph):
            self._program()

    def _step_with_bags(self, batch: Batch) -> Tensor:
        weights = torch.ones_like(batch.labels) if batch.weights is None else batch.weights
        taken = Taken(batch.features.categorical, batch.features.numeric, batch.labels, weights)
        if isinstance(self.steps, DCNSteps):
            raise TypeError("DCNSteps take no bags.")
        return self.steps.step(taken, batch.features)

    def evaluated(self, split: Split) -> Split:
        """The split, with batches on the device."""
        return EvaluatedSplit(split, self.device)

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

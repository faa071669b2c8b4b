"""Training on a processor: the model's own forward, autograd, and :class:`~crossrank.training.optimizer.Optimizer`."""

from __future__ import annotations

import torch
from torch import Tensor

from crossrank.data import Batch
from crossrank.training.device import uses_bfloat16
from crossrank.training.engine import SingleEngine
from crossrank.training.heads import learned_logits
from crossrank.training.loss import penalty
from crossrank.training.optimizer import Optimizer
from crossrank.training.profile import NoClock


class ProcessorEngine(SingleEngine):
    """The steps of a training on a processor; an :class:`~crossrank.training.engine.Engine`."""

    def __post_init__(self) -> None:
        self.optimizer = Optimizer(self.model, self.settings, rule=self.rule, clock=self.clock)
        self.bfloat16 = uses_bfloat16(self.settings.precision, self.model.layout.input_dim, self.device)
        if not isinstance(self.clock, NoClock):
            mark = self.clock.mark
            self.model.embedding.register_forward_hook(lambda module, *_: mark("gather") if module.training else None)

    def step(self, batch: Batch) -> Tensor:
        self.clock.mark("load")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            logits = learned_logits(self.model, batch.features, self.settings.heads).float()
        loss = self.loss(logits, batch.labels, batch.weights, batch.groups)
        loss_and_penalty = loss + penalty(self.model, self.settings.l2)
        self.clock.mark("forward")
        self.optimizer.step(loss_and_penalty)
        return loss.detach()[None]

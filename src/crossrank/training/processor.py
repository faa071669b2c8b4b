"""Training on a processor: the model's own forward, autograd, and :class:`~crossrank.training.optimizer.Optimizer`."""

from __future__ import annotations

import torch
from torch import Tensor

from crossrank.data import Batch, Split
from crossrank.models import Model
from crossrank.training.device import uses_bfloat16
from crossrank.training.engine import SingleEngine
from crossrank.training.heads import learned_logits
from crossrank.training.loss import Loss, penalty
from crossrank.training.optimizer import Optimizer
from crossrank.training.profile import NoClock, StepClock
from crossrank.training.rule import UpdateRule
from crossrank.training.settings import TrainingSettings


class ProcessorEngine(SingleEngine):
    """The steps of a training on a processor; an :class:`~crossrank.training.engine.Engine`.

    Args:
        model: trained in place.
        split: the training rows.
        settings: of the training.
        loss: what is made small.
        rule: of the update.
        seed: of the order of the rows.
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
        clock: StepClock | None = None,
    ) -> None:
        super().__init__(model, split, settings, loss=loss, seed=seed)
        self.clock = clock or NoClock()
        self.optimizer = Optimizer(model, settings, rule=rule, clock=self.clock)
        self.bfloat16 = uses_bfloat16(settings.precision, model.layout.input_dim, torch.device("cpu"))
        if clock:
            model.embedding.register_forward_hook(lambda module, *_: clock.mark("gather") if module.training else None)

    def step(self, batch: Batch) -> Tensor:
        self.clock.mark("load")
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            logits = learned_logits(self.model, batch.features, self.settings.heads).float()
        loss = self.loss(logits, batch.labels, batch.weights, batch.groups)
        loss_and_penalty = loss + penalty(self.model, self.settings.l2)
        self.clock.mark("forward")
        self.optimizer.step(loss_and_penalty)
        return loss.detach()[None]

"""A loss for each path of a model that has several (``training.heads``).

With y_1 … y_M the logits of the paths (:meth:`~crossrank.models.Model.head_logits`) and y their mean, which is the
model's one answer, ℓ the loss of ``training.loss``, t the labels::

    own      Σ_m ℓ(y_m, t)
    distil   ℓ(y, t) + Σ_m ℓ(y_m, sg ŷ)       ŷ the mean's answer, σ(y) or, where labels are numbers, y
    weighted ℓ(y, t) + Σ_m w_m ℓ(y_m, t)      w_m = sg max(0, ℓ(y_m, t) - ℓ(y, t)), over the batch

sg stops the gradient. Only what is made small changes: evaluation, predictions, rankings and exports are of y.

Another rule is a subclass of :class:`HeadLoss` with an entry in ``HEADS``; it gets the logits of all paths and may call
``self.base`` on any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from crossrank.errors import ConfigError
from crossrank.models import Model
from crossrank.models.base import evaluating
from crossrank.nn import Features
from crossrank.training.loss import Column, LogLoss, Loss, SquaredError

HeadsName = Literal["none", "own", "distil", "weighted"]
ANSWERS: dict[type[Loss], Callable[[Tensor], Tensor]] = {LogLoss: torch.sigmoid, SquaredError: lambda logits: logits}


class HeadLoss(Loss):
    """``own``: each path has the loss of its own logit, Σ_m ℓ(y_m, t).

    Shape: logits (..., B, M), labels, weights and groups (..., B) -> (...).

    Args:
        base: ℓ.

    >>> HeadLoss(SquaredError())(torch.tensor([[1.0, 3.0]]), torch.tensor([2.0]))  # (1 - 2)² + (3 - 2)²
    tensor(2.)
    """

    def __init__(self, base: Loss) -> None:
        self.base = base

    @property
    def needs_groups(self) -> bool:  # type: ignore[override]
        return self.base.needs_groups

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        return torch.stack([self.base(head, labels, weights, groups) for head in logits.unbind(dim=-1)]).sum(dim=0)


class DistilledHeads(HeadLoss):
    """``distil``: the mean learns the labels, each path the mean's answer, ℓ(y, t) + Σ_m ℓ(y_m, sg ŷ).

    >>> DistilledHeads(SquaredError())(torch.tensor([[1.0, 3.0]]), torch.tensor([0.0]))  # 2² + (1 - 2)² + (3 - 2)²
    tensor(6.)
    """

    def __init__(self, base: Loss) -> None:
        super().__init__(base)
        if type(base) not in ANSWERS:
            raise ConfigError(
                f"training.heads=distil needs a loss towards an answer, logloss or squared; got {type(base).__name__}.",
                hint="Set training.heads=own.",
            )
        self.answer = ANSWERS[type(base)]

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        mean = logits.mean(dim=-1)  # (..., B)
        towards = super().__call__(logits, self.answer(mean.detach()), weights, groups)
        return self.base(mean, labels, weights, groups) + towards


class WeightedHeads(HeadLoss):
    """``weighted``: beside the mean, each path learns the labels by as much as it is worse than the mean (FCN).

    ``ℓ + Σ_m w_m ℓ_m`` with ``w_m = sg max(0, ℓ_m - ℓ)``. FCN's code lets the gradient pass through the weights: for
    paths worse than the mean ∇ℓ_m then counts 2 ℓ_m - ℓ times, and ∇ℓ only 1 - Σ_m ℓ_m times, which may be below 0.

    >>> WeightedHeads(SquaredError())(torch.tensor([[1.0, 3.0]]), torch.tensor([1.0]))  # 1 + 0 · 0 + (4 - 1) · 4
    tensor(13.)
    """

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        loss = self.base(logits.mean(dim=-1), labels, weights, groups)  # (...)
        each = torch.stack([self.base(head, labels, weights, groups) for head in logits.unbind(dim=-1)])  # (M, ...)
        return loss + ((each - loss).clamp_min(0.0).detach() * each).sum(dim=0)


HEADS: dict[str, type[HeadLoss]] = {"own": HeadLoss, "distil": DistilledHeads, "weighted": WeightedHeads}


@torch.no_grad()
def with_heads(loss: Loss, heads: HeadsName, model: Model) -> Loss:
    """The loss of a model, or of each of its paths.

    Raises:
        ConfigError: for a model of one path, for paths whose mean is not the logit, or several classes or tasks.
    """
    if heads == "none":
        return loss
    if model.num_outputs > 1:
        raise ConfigError(f"training.heads={heads} is for one logit; got a label with several classes or tasks.")
    row = model.embedding.weight.new_ones(1, model.layout.input_dim)
    with evaluating(model):
        answers, logit = model.head_logits(row), model.logits(row)
    if not torch.allclose(answers.mean(dim=-1), logit, rtol=1e-3, atol=1e-4):
        raise ConfigError(
            f"The mean of the paths' logits must be the model's; {type(model).__name__} answers a row with "
            f"{logit.item():.4g}, its head_logits with {answers.mean().item():.4g}."
        )
    if answers.shape[-1] < 2:
        raise ConfigError(
            f"training.heads={heads} needs a model of several paths; {type(model).__name__} has one.",
            hint="Set model.structure=parallel, for qnn-alpha model.cross.dropout, or leave training.heads out.",
        )
    return HEADS[heads](loss)


def learned_logits(model: Model, features: Features, heads: HeadsName) -> Tensor:
    """What the loss is a function of: (B,), or (B, M) where each path has its own."""
    logits: Tensor = model(features) if heads == "none" else model.heads(features)
    return logits

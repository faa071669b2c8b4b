"""What training makes small.

A loss is a class with one plain definition. A kernel on a GPU (:mod:`crossrank.training.cuda.kernels`) may compute the
same faster; it is found by the exact class, so that a subclass always runs as it is written.
"""

from __future__ import annotations

import abc
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from crossrank.errors import ConfigError
from crossrank.models import Model

LossName = Literal["auto", "logloss", "squared", "pairwise", "softmax"]


class Loss(abc.ABC):
    """The loss of a batch.

    Shape: logits, labels, weights and groups (..., B) -> (...); weights and groups may be None.
    """

    needs_groups: ClassVar[bool] = False  # rows of a group are compared with each other

    @abc.abstractmethod
    def __call__(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor: ...


def weighted_mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """(..., B) -> (...)"""
    if weights is None:
        return losses.mean(dim=-1)
    return (losses * weights).sum(dim=-1) / weights.sum(dim=-1).clamp_min(1e-12)


class LogLoss(Loss):
    """``-(y log ŷ + (1 - y) log(1 - ŷ))`` with ŷ = σ(logit), in the weighted mean over rows.

    >>> import torch
    >>> LogLoss()(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1.0]))
    tensor(0.6931)
    """

    def __call__(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor:
        return weighted_mean(F.binary_cross_entropy_with_logits(logits, labels, reduction="none"), weights)


class SquaredError(Loss):
    """``(logit - y)²`` in the weighted mean over rows."""

    def __call__(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor:
        return weighted_mean((logits - labels).square(), weights)


class PairwiseLogistic(Loss):
    """``log(1 + exp(s_j - s_i))`` in the mean over pairs of one group with y_i > y_j.

    A pair weighs as much as its two rows multiplied. Rows that share a group with nobody else in the batch count for
    nothing, and a batch without pairs has loss 0.

    Cost: B² comparisons.
    """

    needs_groups: ClassVar[bool] = True

    def __call__(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor:
        if groups is None:
            raise ConfigError(
                "training.loss=pairwise compares rows of a group; the dataset has no groups.",
                hint="Name the group column in the schema and prepare the dataset again.",
            )
        above = (labels[..., :, None] > labels[..., None, :]) & (groups[..., :, None] == groups[..., None, :])
        losses = F.softplus(logits[..., None, :] - logits[..., :, None])  # (..., B, B)
        share = above.to(losses.dtype)
        if weights is not None:
            share = share * weights[..., :, None] * weights[..., None, :]
        return (losses * share).sum(dim=(-2, -1)) / share.sum(dim=(-2, -1)).clamp_min(1e-12)


class SoftmaxLogLoss(Loss):
    """``-log p_y`` with p = softmax(logits), in the weighted mean over rows; y is the position of a row's class.

    Shape: logits (..., B, K), labels and weights (..., B) -> (...).

    >>> import torch
    >>> SoftmaxLogLoss()(torch.zeros(2, 3), torch.tensor([0.0, 2.0]))
    tensor(1.0986)
    """

    def __call__(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor:
        chosen = logits.log_softmax(dim=-1).gather(-1, labels.long()[..., None])[..., 0]  # (..., B)
        return weighted_mean(-chosen, weights)


LOSSES: dict[str, type[Loss]] = {
    "logloss": LogLoss,
    "squared": SquaredError,
    "pairwise": PairwiseLogistic,
    "softmax": SoftmaxLogLoss,
}


def find_loss(name: LossName, label_kind: str) -> Loss:
    """``auto``: the log loss of a binary label, that of the softmax of several classes, the squared error of a number.

    Raises:
        ConfigError: for another loss of several classes, or theirs of another label.
    """
    if name == "auto":
        name = "logloss" if label_kind == "binary" else "softmax" if label_kind == "classes" else "squared"
    if (name == "softmax") != (label_kind == "classes"):
        raise ConfigError(
            f"training.loss=softmax is the one of a label with several classes; got {name} for a {label_kind} label.",
            hint="Leave training.loss out.",
        )
    return LOSSES[name]()


def penalty(model: Model, l2: float) -> Tensor | float:
    """λ Σ ||W||² over the cross and deep kernels."""
    return l2 * sum(kernel.square().sum() for kernel in model.kernels()) if l2 else 0.0

"""What training makes small.

A loss is a class with one plain definition. A kernel on a GPU (:mod:`crossrank.training.cuda.kernels`) may compute the
same faster; it is found by the exact class, so that a subclass always runs as it is written.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from crossrank.errors import ConfigError
from crossrank.models import Model

Column = Tensor | None  # a number for each row of a batch, where there are any
LossName = Literal["auto", "logloss", "squared", "softmax", "pairwise", "lambdarank", "listwise", "logloss+pairwise"]


class Loss(abc.ABC):
    """The loss of a batch: the weighted mean over its rows, unless it needs groups.

    Shape: logits, labels, weights and groups (..., B) -> (...); weights and groups may be None.
    """

    needs_groups: ClassVar[bool] = False  # rows of a group are compared with each other

    @abc.abstractmethod
    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor: ...


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

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        return weighted_mean(F.binary_cross_entropy_with_logits(logits, labels, reduction="none"), weights)


class SquaredError(Loss):
    """``(logit - y)²`` in the weighted mean over rows."""

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        return weighted_mean((logits - labels).square(), weights)


class _Sorted(NamedTuple):
    """The rows of a batch that weigh anything, sorted by group and rising label.

    Shape: the first six (B,), sizes (G,).
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor
    group: Tensor  # its number among the G groups of the batch
    place: Tensor  # in its group, from 0
    below: Tensor  # how many rows of its group have a lower label
    sizes: Tensor

    def by_group(self, values: Tensor) -> Tensor:
        """(B,) -> (G, W), W the rows of the largest group; zeros behind the others."""
        padded = values.new_zeros(len(self.sizes), int(self.sizes.max()) if len(self.sizes) else 0)
        return padded.index_put((self.group, self.place), values)

    def gains(self) -> Tensor:
        return torch.exp2(self.labels) - 1

    def mean_weights(self) -> Tensor:
        """Of each group: (G,)."""
        return self.by_group(self.weights).sum(dim=1) / self.sizes

    def pairs(self) -> tuple[Tensor, Tensor]:
        """The places of all pairs of one group with y_i > y_j: (P,) of i, (P,) of j."""
        i = torch.arange(len(self.below), device=self.below.device).repeat_interleave(self.below)  # (P,)
        lowest = torch.arange(len(self.place), device=self.place.device) - self.place  # of each row's group
        before = self.below.cumsum(0) - self.below  # pairs of the rows before
        return i, lowest[i] + torch.arange(len(i), device=i.device) - before[i]


class GroupLoss(Loss):
    """A loss that compares the rows of a group. A row of weight 0 is not there.

    Shape: logits, labels, weights and groups (B,) -> (). Its tensors have other sizes in every batch.
    """

    needs_groups: ClassVar[bool] = True

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        if groups is None:
            raise ConfigError(
                "This training.loss compares rows of a group; the dataset has no groups.",
                hint="Name the group column in the schema and prepare the dataset again.",
            )
        weights = torch.ones_like(logits) if weights is None else weights
        order = (weights > 0).nonzero()[:, 0]
        for keys in (labels, groups):
            order = order[keys[order].argsort(stable=True)]
        _, group, sizes = torch.unique_consecutive(groups[order], return_inverse=True, return_counts=True)
        places = torch.arange(len(order), device=order.device)
        first = (sizes.cumsum(0) - sizes)[group]
        same = (group[1:] == group[:-1]) & (labels[order[1:]] == labels[order[:-1]])
        level = torch.where(F.pad(same, (1, 0))[: len(order)], 0, places).cummax(0).values  # where a tie begins
        logits, labels, weights = logits[order], labels[order], weights[order]
        return self.of_rows(_Sorted(logits, labels, weights, group, places - first, level - first, sizes))

    @abc.abstractmethod
    def of_rows(self, rows: _Sorted) -> Tensor:
        """The loss of a batch."""


class PairwiseLogistic(GroupLoss):
    """``log(1 + exp(s_j - s_i))`` in the mean over pairs of one group with y_i > y_j.

    A pair weighs as much as its two rows multiplied. Rows that share a group with nobody else in the batch count for
    nothing, and a batch without pairs has loss 0.

    Cost: memory for the pairs alone, at most n² / 2 in a group of n rows.
    """

    def of_rows(self, rows: _Sorted) -> Tensor:
        i, j = rows.pairs()
        return weighted_mean(F.softplus(rows.logits[j] - rows.logits[i]), rows.weights[i] * rows.weights[j])


class LambdaRank(GroupLoss):
    """``Σ |ΔNDCG_ij| log(1 + exp(s_j - s_i))`` over pairs of one group with y_i > y_j, in the mean over groups.

    ``ΔNDCG_ij = (2^y_i - 2^y_j) (1 / log2(1 + r_i) - 1 / log2(1 + r_j)) / best DCG`` is what NDCG would change by if
    the two rows changed places, r being their ranks by the present scores; no gradient flows through it. Of equal
    scores the lower label stands first. It is a sum over the pairs of a group, not a mean: a group with few pairs to
    put right has a small loss.

    A group counts by the mean weight of its rows, and a pair by the weights of its rows over that mean. Groups without
    a label above 0 count for nothing.

    Cost: as of pairs, and the rows of the largest group for each group.
    """

    def of_rows(self, rows: _Sorted) -> Tensor:
        i, j = rows.pairs()
        gains, share = rows.gains(), rows.mean_weights()
        best_ranks = (rows.sizes[rows.group] - rows.place).to(gains)  # from 1
        best = rows.by_group(gains / torch.log2(1 + best_ranks)).sum(dim=1)  # (G,)
        discounts = 1 / torch.log2(1 + self._ranks(rows).to(gains))
        change = (gains[i] - gains[j]) * (discounts[i] - discounts[j]).abs() / best[rows.group[i]].clamp_min(1e-12)
        weights = rows.weights[i] * rows.weights[j] / share[rows.group[i]]
        losses = F.softplus(rows.logits[j] - rows.logits[i])
        return (losses * change * weights).sum() / (share * (best > 0)).sum().clamp_min(1e-12)

    def _ranks(self, rows: _Sorted) -> Tensor:
        """From 1, by falling logit in each group: (B,)."""
        order = rows.logits.detach().argsort(descending=True, stable=True)
        order = order[rows.group[order].argsort(stable=True)]
        return torch.empty_like(order).index_put((order,), rows.place + 1)


class ListwiseSoftmax(GroupLoss):
    """``-Σ_i g_i log softmax(s)_i`` over the rows of a group, in the mean over groups; ListNet's top-one loss.

    ``g_i`` are the gains ``2^y_i - 1`` divided by their sum. A group counts by the mean weight of its rows, and a
    row as often as its weight over that mean, in the softmax too. Groups without a label above 0 count for nothing.

    Cost: the rows of the largest group for each group.
    """

    def of_rows(self, rows: _Sorted) -> Tensor:
        if not len(rows.sizes):
            return rows.logits.sum()
        share = rows.mean_weights()  # (G,)
        weights, logits = rows.by_group(rows.weights) / share[:, None], rows.by_group(rows.logits)  # (G, W)
        gains = weights * rows.by_group(rows.gains())
        total = gains.sum(dim=1)  # (G,)
        chosen = (gains * logits).sum(dim=1) / total.clamp_min(1e-12)
        losses = (logits + weights.log()).logsumexp(dim=1) - chosen  # a row that is not there: log 0
        return weighted_mean(losses, share * (total > 0))


class LogLossAndPairs(Loss):
    """:class:`LogLoss` ``+ pair_weight`` times :class:`PairwiseLogistic`: probabilities, and the order in a group."""

    needs_groups: ClassVar[bool] = True

    def __init__(self, pair_weight: float = 1.0) -> None:
        self.pair_weight, self.rows, self.pairs = pair_weight, LogLoss(), PairwiseLogistic()

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        given = (logits, labels, weights, groups)
        return self.rows(*given) + self.pair_weight * self.pairs(*given)


class SoftmaxLogLoss(Loss):
    """``-log p_y`` with p = softmax(logits), in the weighted mean over rows; y is the position of a row's class.

    Shape: logits (..., B, K), labels and weights (..., B) -> (...).

    >>> import torch
    >>> SoftmaxLogLoss()(torch.zeros(2, 3), torch.tensor([0.0, 2.0]))
    tensor(1.0986)
    """

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        chosen = logits.log_softmax(dim=-1).gather(-1, labels.long()[..., None])[..., 0]  # (..., B)
        return weighted_mean(-chosen, weights)


class TaskLogLoss(Loss):
    """``Σ_k τ_k ℓ_k / Σ_k τ_k``, ℓ_k the log loss of task k, in the weighted mean over rows; τ left out, equal.

    A label that is nan is not known, and counts 0 in its row, whose other tasks stay as they are: each known label
    weighs the same, so a task that few rows know weighs less.

    Shape: logits and labels (..., B, K), weights (..., B) -> (...).

    >>> import torch
    >>> TaskLogLoss()(torch.zeros(1, 2), torch.tensor([[1.0, torch.nan]]))
    tensor(0.3466)
    """

    def __init__(self, task_weights: Sequence[float] = ()) -> None:
        self.task_weights = task_weights

    def __call__(self, logits: Tensor, labels: Tensor, weights: Column = None, groups: Column = None) -> Tensor:
        known = ~labels.isnan()
        losses = F.binary_cross_entropy_with_logits(logits, labels.where(known, 0.0), reduction="none")
        shares = logits.new_tensor(self.task_weights or [1.0] * logits.shape[-1])
        return weighted_mean((losses * known * shares).sum(dim=-1) / shares.sum(), weights)


LOSSES: dict[str, type[Loss]] = {
    "logloss": LogLoss,
    "squared": SquaredError,
    "softmax": SoftmaxLogLoss,
    "pairwise": PairwiseLogistic,
    "lambdarank": LambdaRank,
    "listwise": ListwiseSoftmax,
    "logloss+pairwise": LogLossAndPairs,
}
USUAL = {"binary": "logloss", "real": "squared", "classes": "softmax", "grade": "listwise", "tasks": "logloss"}
FITTING = {"real": ["squared", "pairwise"], "classes": ["softmax"], "tasks": ["logloss"]}  # others: all but softmax


def find_loss(name: LossName, label_kind: str, *, pair_weight: float = 1.0, task_weights: Sequence[float] = ()) -> Loss:
    """``auto``: the log loss of a binary label and of each task, that of the softmax of several classes, the squared
    error of a number, the softmax over a group of grades.

    Raises:
        ConfigError: for a loss that does not go with the label.
    """
    chosen = USUAL[label_kind] if name == "auto" else name
    fitting = FITTING.get(label_kind) or [one for one in LOSSES if one != "softmax"]
    if chosen not in fitting:
        grades = ' Grades 0, 1, 2, … are a label of the kind "grade".' if label_kind == "real" else ""
        raise ConfigError(
            f"A label of the kind {label_kind} is learned by training.loss={' or '.join(fitting)}; got {name}.",
            hint=f"Leave training.loss out.{grades}",
        )
    if label_kind == "tasks":
        return TaskLogLoss(task_weights)
    return LogLossAndPairs(pair_weight) if chosen == "logloss+pairwise" else LOSSES[chosen]()


def is_order(name: LossName, label_kind: str) -> bool:
    """Whether a loss gives logits without a level: only their order in a group means something."""
    return issubclass(LOSSES[USUAL[label_kind] if name == "auto" else name], GroupLoss)


def penalty(model: Model, l2: float) -> Tensor | float:
    """λ Σ ||W||² over the cross and deep kernels."""
    return l2 * sum(kernel.square().sum() for kernel in model.kernels()) if l2 else 0.0

"""What training makes small."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from crossrank.models import Model


def data_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None, *, label_kind: str = "binary") -> Tensor:
    """The weighted mean of each row's loss: log loss of ŷ = σ(logit), or squared error for a number.

    ::

        binary:  -(y log ŷ + (1 - y) log(1 - ŷ))          real:  (logit - y)²

    Example:
        >>> import torch
        >>> data_loss(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1.0]))
        tensor(0.6931)
    """
    if label_kind == "binary":
        losses = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")  # (B,)
    else:
        losses = (logits - labels).square()  # (B,)
    if weights is None:
        return losses.mean()
    return (losses * weights).sum() / weights.sum().clamp_min(1e-12)


def penalty(model: Model, l2: float) -> Tensor | float:
    """λ Σ ||W||² over the cross and deep kernels."""
    return l2 * sum(kernel.square().sum() for kernel in model.kernels()) if l2 else 0.0

"""QNN-α: crosses of x with itself, several in each layer."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.settings import ModelSettings, check_share
from crossrank.nn import CrossNetwork, OutputLayer, QuadraticCrossLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuadraticSettings:
    num_layers: int = setting(4, "cross layers on top of each other")
    num_heads: int = setting(5, "crosses in each layer, which are averaged")
    dropout: float = setting(0.0, "share of each cross layer's outputs set to zero in training")

    def __post_init__(self) -> None:
        check_share("model.cross.dropout", self.dropout)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QNNAlphaSettings(ModelSettings):
    name: str = setting("qnn-alpha", "which model")
    cross: QuadraticSettings = setting(QuadraticSettings(), "")


class QNNAlpha(Model):
    """``logit = wᵀ x_L + b`` with ``x⁺ = x ⊙ 1/M Σ_m h_m + x``, ``[h_1; …; h_M] = relu(LN(W x))`` (Li et al. 2025).

    L layers reach crosses of degree 2^L in each region of the ReLUs; no deep network. See
    :class:`~crossrank.nn.QuadraticCrossLayer`.

    The paper passes each row twice, with two draws of the dropout, y_1 and y_2, and y their mean. They are two paths:
    its loss ``ℓ(y, t) + ℓ(y_1, sg σ(y)) + ℓ(y_2, sg σ(y))`` is ``training.heads = "distil"``. Without heads a row is
    passed once, at half the cost.

    Shape: features of B rows -> (B,).
    Cost: per row and layer M D² + D multiply-adds.
    Limits: the norms' scales and shifts zero, a linear model in x0. Without dropout there is one path. Takes any
    embedding widths.

    Choices: layer norm where the original has batch norm, and the mean of the crosses where it has their sum.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: QNNAlphaSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        cross = settings.cross
        self.dropout = cross.dropout
        self.cross = CrossNetwork(
            layout.input_dim,
            num_layers=cross.num_layers,
            layer=QuadraticCrossLayer,
            num_heads=cross.num_heads,
            dropout=cross.dropout,
        )
        self.output = OutputLayer(layout.input_dim)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.cross(x0))  # (B,)
        return logits

    def head_logits(self, x0: Tensor) -> Tensor:
        return torch.stack([self.logits(x0) for _ in range(2 if self.dropout else 1)], dim=-1)

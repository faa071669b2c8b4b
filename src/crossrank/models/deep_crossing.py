"""Deep Crossing: residual units on the embedded features."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import OutputLayer, ResidualNetwork
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepCrossingSettings(ModelSettings):
    name: str = setting("deep-crossing", "which model")
    deep: DeepSettings = setting(DeepSettings(), "the inner layer of each residual unit")


class DeepCrossing(Model):
    """``logit = wᵀ residual(x0) + b`` with ``x_{l+1} = f(x_l + W_1 f(W_0 x_l + b_0) + b_1)`` (Shan et al. 2016).

    Shape: features of B rows -> (B,).
    Cost: per row 2 D Σ H_l + D multiply-adds for units of inner widths H_l.
    Limits: without units a linear model in x0. Takes any embedding widths.

    Choices: x0 is that of every model here; the original's embeddings pass through a ReLU, and its features below 256
    values are not embedded. Its units were of inner widths 512, 512, 256, 128 and 64.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: DeepCrossingSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        deep = settings.deep
        self.deep = ResidualNetwork(
            layout.input_dim, sizes=deep.sizes, activation=deep.activation, dropout=deep.dropout
        )
        self.output = OutputLayer(layout.input_dim)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.deep(x0))  # (B,)
        return logits

"""Logistic regression: one weight for each value of each feature."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor, nn

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.settings import ModelSettings
from crossrank.nn import OutputLayer
from crossrank.schema import Feature, InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogisticRegressionSettings(ModelSettings):
    name: str = setting("logistic-regression", "which model")

    def layout(self, features: Sequence[Feature]) -> InputLayout:
        """Each value has one weight, whatever the embedding settings say."""
        return InputLayout.plan(features, embedding_dim=1)


class LogisticRegression(Model):
    """``logit = Σ_i w_i[id_i] + Σ_j v_j x_j + b``: no crosses at all.

    The weights w are embedding tables of width one; a multivalent feature counts with the mean of its values' weights.

    Shape: features of B rows -> (B,).
    Cost: per row one addition for each categorical feature, one multiply-add for each number.
    Limits: the model starts at logit zero for every row.
    """

    def __init__(self, layout: InputLayout, settings: LogisticRegressionSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        nn.init.zeros_(self.embedding.weight)
        self.num_embedded = len(layout.embedded)
        self.output = OutputLayer(layout.num_numbers)
        nn.init.zeros_(self.output.weight)

    def logits(self, x0: Tensor) -> Tensor:
        weights, numbers = x0[:, : self.num_embedded], x0[:, self.num_embedded :]  # (B, F), (B, M)
        logits: Tensor = weights.sum(dim=1) + self.output(numbers)  # (B,)
        return logits

"""DNN: the deep network alone, the baseline that is hard to beat."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model, Terms
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class DNNSettings(ModelSettings):
    name: str = setting("dnn", "which model")
    deep: DeepSettings = setting(DeepSettings(), "")


class DNN(Model):
    """``logit = wᵀ deep(x0) + b`` with ``h_{l+1} = f(W_l h_l + b_l)``.

    Shape: features of B rows -> (B,).
    Cost: per row D H_1 + Σ H_l H_{l+1} + H_L multiply-adds.
    Limits: without deep layers it is a linear model in x0.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: DNNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.deep = settings.deep.network(layout.input_dim)
        self.output = OutputLayer(self.deep.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.deep(x0))  # (B,)
        return logits

    def terms(self) -> Terms:
        return Terms(self.output.bias[0], deep=(self.deep, self.output.weight[0]))

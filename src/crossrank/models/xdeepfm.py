"""xDeepFM: a linear term, a compressed interaction network and a deep network side by side."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model, path_logits, with_first
from crossrank.models.cin import CompressedInteractionSettings
from crossrank.models.fields import FieldStack, LinearTerm
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import Features, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class XDeepFMSettings(ModelSettings):
    name: str = setting("xdeepfm", "which model")
    cin: CompressedInteractionSettings = setting(CompressedInteractionSettings(), "")
    deep: DeepSettings = setting(DeepSettings(), "")


class XDeepFM(Model):
    """``logit = Σ_i w_i x_i + w_cinᵀ cin(v_1, …, v_F) + w_deepᵀ deep(x0) + b`` (Lian et al. 2018, section 3.3).

    ``output`` holds [w_cin; w_deep] and b.

    Shape: features of B rows -> (B,).
    Cost: per row Σ_k e F H_{k-1} (H_k + 1) multiply-adds for F fields and H_k feature maps in layer k, plus those of
    the deep network.
    Limits: w_deep zero, CIN with a linear term. All embedded features have one width.

    Choices: numbers are fields x_j v_j of the interaction network; the deep network reads the numbers themselves, as in
    every model here.
    """

    def __init__(self, layout: InputLayout, settings: XDeepFMSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.linear = LinearTerm(layout)
        self.fields = FieldStack(layout, needed_by="xDeepFM")
        self.cin = settings.cin.network(self.fields.num_fields)
        self.deep = settings.deep.network(layout.input_dim)
        self.output = OutputLayer(self.cin.output_dim + self.deep.output_dim)

    def forward(self, features: Features) -> Tensor:
        first_order: Tensor = self.linear(features)  # (B,)
        return first_order + self.logits(self.embedding(features))

    def _paths(self, x0: Tensor) -> list[Tensor]:
        return [self.cin(self.fields(x0)), self.deep(x0)]

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(torch.cat(self._paths(x0), dim=1))  # (B, ΣH + H) -> (B,)
        return logits

    def head_logits(self, x0: Tensor) -> Tensor:
        return path_logits(self.output, self._paths(x0))

    def heads(self, features: Features) -> Tensor:
        return with_first(super().heads(features), self.linear(features))

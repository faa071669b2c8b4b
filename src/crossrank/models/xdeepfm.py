"""xDeepFM: a linear term, a compressed interaction network and a deep network side by side."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import SideBySide
from crossrank.models.cin import CompressedInteractionSettings
from crossrank.models.fields import BesideLinear, FieldStack, LinearTerm
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class XDeepFMSettings(ModelSettings):
    name: str = setting("xdeepfm", "which model")
    cin: CompressedInteractionSettings = setting(CompressedInteractionSettings(), "")
    deep: DeepSettings = setting(DeepSettings(), "")


class XDeepFM(BesideLinear, SideBySide):
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

    def paths(self, x0: Tensor) -> list[Tensor]:
        return [self.cin(self.fields(x0)), self.deep(x0)]  # (B, ΣH), (B, H)

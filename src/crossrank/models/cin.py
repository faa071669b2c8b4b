"""CIN: the compressed interaction network of xDeepFM alone."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.fields import FieldStack
from crossrank.models.settings import ModelSettings
from crossrank.nn import CompressedInteractionNetwork, OutputLayer
from crossrank.nn.activations import ActivationName
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompressedInteractionSettings:
    sizes: tuple[int, ...] = setting((100, 100), "feature maps of each layer")
    split_half: bool = setting(False, "send half of each layer's maps to the next layer, the rest to the output")
    activation: ActivationName = setting("identity", "activation of the feature maps")

    def network(self, num_fields: int) -> CompressedInteractionNetwork:
        return CompressedInteractionNetwork(
            num_fields, sizes=self.sizes, split_half=self.split_half, activation=self.activation
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CINSettings(ModelSettings):
    name: str = setting("cin", "which model")
    cin: CompressedInteractionSettings = setting(CompressedInteractionSettings(), "")


class CIN(Model):
    """``logit = wᵀ cin(v_1, …, v_F) + b`` (Lian et al. 2018, Eq. 8; the bias is ours).

    Shape: features of B rows -> (B,).
    Cost: per row Σ_k e F H_{k-1} (H_k + 1) multiply-adds for F fields and H_k feature maps in layer k.
    Limits: one layer, all products of two fields; each further layer one degree more. All embedded features have one
    width.

    Choices: no linear term, which in xDeepFM belongs to the combined model; numbers are fields x_j v_j.
    """

    def __init__(self, layout: InputLayout, settings: CINSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.fields = FieldStack(layout, needed_by="CIN")
        self.cin = settings.cin.network(self.fields.num_fields)
        self.output = OutputLayer(self.cin.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.cin(self.fields(x0)))  # (B,)
        return logits

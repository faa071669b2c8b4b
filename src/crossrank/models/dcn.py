"""DCN (V1): a cross network with one vector for each layer, beside or under a deep network, or alone."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import SideBySide
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import CrossNetwork, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorCrossSettings:
    num_layers: int = setting(2, "cross layers on top of each other")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCNSettings(ModelSettings):
    name: str = setting("dcn", "which model")
    structure: Literal["parallel", "stacked", "cross-only"] = setting("parallel", "where the deep network stands")
    cross: VectorCrossSettings = setting(VectorCrossSettings(), "")
    deep: DeepSettings = setting(DeepSettings(), "")


class DCN(SideBySide):
    """The parent of DCN-V2: ``x_{l+1} = x_0 (x_lᵀ w_l) + b_l + x_l`` (Wang et al. 2017, Eq. 3).

    ::

        parallel:    logit = wᵀ [cross(x0); deep(x0)] + b        (Eq. 5; the bias is ours)
        stacked:     logit = wᵀ deep(cross(x0)) + b
        cross-only:  logit = wᵀ cross(x0) + b

    Shape: features of B rows -> (B,).
    Cost: per row 2 L_c D multiply-adds, plus the deep network's.
    Limits: without deep layers ``stacked`` is ``cross-only``. Without biases every x_l is a multiple of x_0, which is
    why DCN-V2 has matrices. Takes any embedding widths.
    """

    def __init__(self, layout: InputLayout, settings: DCNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        input_dim = layout.input_dim
        self.structure = settings.structure
        self.cross = CrossNetwork(input_dim, num_layers=settings.cross.num_layers, layer="vector")
        final_dim = input_dim
        if self.structure != "cross-only":
            self.deep = settings.deep.network(input_dim)
            final_dim = self.deep.output_dim + (input_dim if self.structure == "parallel" else 0)
        self.output = OutputLayer(final_dim)

    def paths(self, x0: Tensor) -> list[Tensor]:
        crossed: Tensor = self.cross(x0)  # (B, D)
        if self.structure == "stacked":
            return [self.deep(crossed)]  # (B, H)
        return [crossed, self.deep(x0)] if self.structure == "parallel" else [crossed]

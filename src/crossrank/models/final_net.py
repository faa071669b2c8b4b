"""FinalNet: two blocks of factorised interaction layers."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from crossrank.config import setting
from crossrank.models.base import SideBySide
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import FactorizedNetwork, OutputLayer
from crossrank.nn.checks import check_count
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalNetSettings(ModelSettings):
    name: str = setting("final-net", "which model")
    num_blocks: int = setting(2, "blocks side by side")
    deep: DeepSettings = setting(DeepSettings(), "")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("model.num_blocks", self.num_blocks)


class FinalNet(SideBySide):
    """``logit = mean_i y_i`` with ``y_i = n w_iᵀ block_i(x0) + b``, n blocks (Zhu et al. 2023).

    A block is a :class:`~crossrank.nn.FactorizedNetwork`: ``h⁺ = f(LN(h_2 + h_1 ⊙ h_2))``, ``[h_2; h_1] = W h + b``.
    ``output`` holds [w_1; …; w_n] and b, so that ``logit = wᵀ [block_1(x0); …; block_n(x0)] + b``.

    Each block is a path with a head of its own: the paper's loss ``ℓ(y, t) + Σ_i ℓ(y_i, sg σ(y))`` is
    ``training.heads = "distil"``; the default is the loss of the logit alone.

    Shape: features of B rows -> (B,).
    Cost: per row n (2 D H_1 + Σ 2 H_l H_{l+1} + Σ H_l + H_L) multiply-adds.
    Limits: without layers (``deep.sizes`` empty) a linear model in x0. Takes any embedding widths.

    Choices: layer norm for batch norm, and the sum for the residual (see :class:`~crossrank.nn.FactorizedNetwork`); no
    gates on the fields before the first block, an option of the public code; the blocks share one bias b, and ``deep``
    is both blocks' shape.
    """

    def __init__(self, layout: InputLayout, settings: FinalNetSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        deep, width = settings.deep, layout.input_dim
        self.deep = nn.ModuleList(
            FactorizedNetwork(width, sizes=deep.sizes, activation=deep.activation, dropout=deep.dropout)
            for _ in range(settings.num_blocks)
        )
        self.output = OutputLayer(settings.num_blocks * [width, *deep.sizes][-1])

    def paths(self, x0: Tensor) -> list[Tensor]:
        return [block(x0) for block in self.deep]  # (B, H_L) each

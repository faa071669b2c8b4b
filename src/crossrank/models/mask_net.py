"""MaskNet: dense layers on features that each row masks for itself, on top of each other or side by side."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from crossrank.config import setting
from crossrank.errors import ConfigError
from crossrank.models.base import Model
from crossrank.models.settings import DeepSettings, ModelSettings, check_share
from crossrank.nn import MaskBlock, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskSettings:
    sizes: tuple[int, ...] = setting((128, 128), "outputs of each mask block")
    ratio: float = setting(1.0, "width of a mask's hidden layer, as a multiple of the mask's width")
    dropout: float = setting(0.0, "share of each block's outputs set to zero in training")

    def __post_init__(self) -> None:
        check_share("model.mask.dropout", self.dropout)
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise ConfigError(f"model.mask.sizes must be at least one size, all positive; got {list(self.sizes)}.")
        if self.ratio <= 0:
            raise ConfigError(f"model.mask.ratio must be positive; got {self.ratio}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskNetSettings(ModelSettings):
    name: str = setting("mask-net", "which model")
    structure: Literal["serial", "parallel"] = setting("parallel", "how the mask blocks stand to each other")
    mask: MaskSettings = setting(MaskSettings(), "")
    deep: DeepSettings = setting(DeepSettings(), "")


class MaskNet(Model):
    """Blocks ``block_i(h) = relu(LN(W_i (mask_i(x0) ⊙ h)))`` on ``LN(x0)`` (Wang et al. 2021).

    ::

        serial:    logit = wᵀ block_L(… block_1(LN(x0))) + b
        parallel:  logit = wᵀ deep([block_1(LN(x0)); …; block_L(LN(x0))]) + b

    A mask is a network of one hidden layer on x0; see :class:`~crossrank.nn.MaskBlock`. Serial has no deep network.

    Shape: features of B rows -> (B,).
    Cost: per row and block T (D + H) + H + H H' multiply-adds for a block from H to H' numbers, T = ratio H; parallel
    has H = D in each block, and the deep network's.
    Limits: one block, serial is parallel without deep layers. Takes any embedding widths.

    Choices: LN(x0) is over x0 as a whole; the paper normalises each field for itself, which would leave of a number
    nothing but its sign.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: MaskNetSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        width, mask = layout.input_dim, settings.mask
        self.structure = settings.structure
        serial = self.structure == "serial"
        steps = pairwise([width, *mask.sizes]) if serial else ((width, size) for size in mask.sizes)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            MaskBlock(width, a, b, mask_dim=max(1, round(mask.ratio * a)), dropout=mask.dropout) for a, b in steps
        )
        if not serial:
            self.deep = settings.deep.network(sum(mask.sizes))
        self.output = OutputLayer(mask.sizes[-1] if serial else self.deep.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        h: Tensor = self.norm(x0)  # (B, D)
        if self.structure == "serial":
            for block in self.blocks:
                h = block(x0, h)  # (B, H_l)
        else:
            h = self.deep(torch.cat([block(x0, h) for block in self.blocks], dim=-1))  # (B, H)
        logits: Tensor = self.output(h)  # (B,)
        return logits

"""AutoInt: self-attention between the fields, alone or beside a deep network."""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from crossrank.config import setting
from crossrank.errors import ConfigError
from crossrank.models.base import Model, SideBySide
from crossrank.models.fields import FieldStack
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import InteractingLayer, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionSettings:
    num_layers: int = setting(3, "interacting layers on top of each other")
    num_heads: int = setting(2, "attention heads of each layer")
    head_dim: int = setting(32, "width of a field in each head")
    residual: bool = setting(True, "add each layer's projected input to its output")

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise ConfigError(f"model.attention.num_layers must be at least 1; got {self.num_layers}.")

    @property
    def output_dim(self) -> int:
        """The width of a field behind the layers."""
        return self.num_heads * self.head_dim

    def network(self, input_dim: int) -> nn.Sequential:
        """The layers on top of each other, for fields of this width."""
        widths = [input_dim, *[self.output_dim] * (self.num_layers - 1)]
        return nn.Sequential(*(self._layer(width) for width in widths))

    def _layer(self, input_dim: int) -> InteractingLayer:
        return InteractingLayer(input_dim, num_heads=self.num_heads, head_dim=self.head_dim, residual=self.residual)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoIntSettings(ModelSettings):
    name: str = setting("autoint", "which model")
    attention: AttentionSettings = setting(AttentionSettings(), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoIntPlusSettings(AutoIntSettings):
    name: str = setting("autoint-plus", "which model")
    deep: DeepSettings = setting(DeepSettings(), "")


class AutoInt(Model):
    """``logit = wᵀ [e_1; …; e_F] + b``, the fields behind some interacting layers (Song et al. 2019, Eq. 9).

    Shape: features of B rows -> (B,).
    Cost: per row and layer 4 F e H A + 2 F² H A multiply-adds for F fields of width e and H heads of width A; e is H A
    from the second layer on. 3 F e H A + 2 F² H A without the residual term.
    Limits: one field, a network of one matrix and one ReLU for each layer. All embedded features have one width.

    Choices: no linear term, which DeepCTR adds; see :class:`~crossrank.nn.InteractingLayer` for the attention. Three
    layers of two heads of width 32 are the original's; the search of DCN-V2 found two of two heads of width 40.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: AutoIntSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.fields = FieldStack(layout, needed_by="AutoInt")
        self.attention = settings.attention.network(self.fields.width)
        self.output = OutputLayer(self.fields.num_fields * settings.attention.output_dim)

    def attended(self, x0: Tensor) -> Tensor:
        """(B, D) -> (B, F H A)"""
        attended: Tensor = self.attention(self.fields(x0))  # (B, F, H A)
        return attended.flatten(1)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.attended(x0))  # (B,)
        return logits


class AutoIntPlus(SideBySide, AutoInt):
    """``logit = w_attᵀ [e_1; …; e_F] + w_deepᵀ deep(x0) + b``: AutoInt beside a deep network (section 5.5).

    ``output`` holds [w_att; w_deep] and b.

    Shape: features of B rows -> (B,).
    Cost: per row AutoInt's multiply-adds and the deep network's.
    Limits: w_deep zero, AutoInt. All embedded features have one width.
    """

    def __init__(self, layout: InputLayout, settings: AutoIntPlusSettings) -> None:
        super().__init__(layout, settings)
        self.deep = settings.deep.network(layout.input_dim)
        self.output = OutputLayer(self.output.in_features + self.deep.output_dim)

    def paths(self, x0: Tensor) -> list[Tensor]:
        return [self.attended(x0), self.deep(x0)]  # (B, F H A), (B, H)

"""InterHAt: a Transformer over the fields, and attention over the fields of each order of crosses."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.fields import FieldStack
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import HierarchicalAttention, OutputLayer, TransformerLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class HierarchySettings:
    num_heads: int = setting(2, "attention heads of the Transformer")
    head_dim: int = setting(16, "width of a field in each head")
    num_orders: int = setting(3, "highest order of the crosses")
    hidden_dim: int = setting(64, "width of the networks that weigh the fields")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InterHAtSettings(ModelSettings):
    name: str = setting("interhat", "which model")
    attention: HierarchySettings = setting(HierarchySettings(), "")
    deep: DeepSettings = setting(DeepSettings(), "")


class InterHAt(Model):
    """``logit = wᵀ deep(hierarchy(transformer(v_1, …, v_F))) + b`` (Li et al. 2020).

    Shape: features of B rows -> (B,).
    Cost: per row F (4 e H A + 8 e²) + 2 F² H A multiply-adds for the Transformer, about K F e S for K orders, plus
    those of a deep network of e inputs.
    Limits: without deep layers (``deep.sizes`` empty) the interaction alone. All embedded features have one width.

    Choices: see :class:`~crossrank.nn.TransformerLayer`; the deep network is the paper's final perceptron.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: InterHAtSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        attention = settings.attention
        self.fields = FieldStack(layout, needed_by="InterHAt")
        width = self.fields.width
        self.transformer = TransformerLayer(width, num_heads=attention.num_heads, head_dim=attention.head_dim)
        self.hierarchy = HierarchicalAttention(width, num_orders=attention.num_orders, hidden_dim=attention.hidden_dim)
        self.deep = settings.deep.network(width)
        self.output = OutputLayer(self.deep.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        aggregated = self.hierarchy(self.transformer(self.fields(x0)))  # (B, e)
        logits: Tensor = self.output(self.deep(aggregated))  # (B,)
        return logits

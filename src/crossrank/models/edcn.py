"""EDCN: a cross network and a deep network that meet after each layer."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn

from crossrank.config import setting
from crossrank.models.base import Model
from crossrank.models.fields import FieldStack
from crossrank.models.settings import ModelSettings, check_share
from crossrank.nn import CrossLayer, DeepNetwork, FieldGate, OutputLayer, VectorCrossLayer
from crossrank.nn.activations import ActivationName
from crossrank.nn.checks import check_count
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class EDCNSettings(ModelSettings):
    name: str = setting("edcn", "which model")
    num_layers: int = setting(2, "cross layers, and as many deep layers beside them")
    layer: Literal["vector", "full"] = setting("vector", "kind of cross layer: of DCN, as published, or of DCN-V2")
    temperature: float = setting(1.0, "of the shares with which fields go on to a layer; small, few fields do")
    activation: ActivationName = setting("relu", "activation after each deep layer")
    dropout: float = setting(0.0, "share of each deep layer's outputs set to zero in training")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("model.num_layers", self.num_layers)
        check_share("model.dropout", self.dropout)


class EDCN(Model):
    """Cross and deep layers side by side, each pair reading the product of the pair before (Chen et al. 2021).

    ::

        c_l = cross_l(c, gate_l(b_l)),  h_l = f(W_l gate'_l(b_l) + a_l),  b_{l+1} = c_l ⊙ h_l,  b_0 = x
        logit = wᵀ [c_L; h_L; b_{L+1}] + b

    x is the fields side by side, c = gate_0(x) the crossed input, ``cross_l(c, x) = c (xᵀ w) + a + x`` or, with full
    layers, ``c ⊙ (W x + a) + x``.

    | here      | paper                                                                         |
    | --------- | ----------------------------------------------------------------------------- |
    | ``cross`` | the explicit part, a layer of DCN                                             |
    | ``deep``  | the implicit part, as wide as x                                               |
    | ``gates`` | the regulation modules, two for each layer; :class:`~crossrank.nn.FieldGate`  |
    | b_{l+1}   | the bridge module, in its form of a product                                   |

    Shape: features of B rows -> (B,).
    Cost: per row and layer D² + 5 D multiply-adds for D = F e numbers of F fields, or 2 D² + 4 D with full layers.
    Limits: one layer and gates without norms, DCN (parallel) with a product. All embedded features have one width.

    Choices: the norms in the gates, see :class:`~crossrank.nn.FieldGate`; numbers are fields x_j v_j.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: EDCNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.fields = FieldStack(layout, needed_by="EDCN")
        count, width = self.fields.num_fields, self.fields.width
        dim, layers = count * width, range(settings.num_layers)
        cross = CrossLayer if settings.layer == "full" else VectorCrossLayer
        options = {"activation": settings.activation, "dropout": settings.dropout}
        self.cross = nn.ModuleList(cross(dim) for _ in layers)
        self.deep = nn.ModuleList(DeepNetwork(dim, sizes=[dim], **options) for _ in layers)  # type: ignore[arg-type]
        self.gates = nn.ModuleList(
            FieldGate(count, width=width, temperature=settings.temperature) for _ in layers for _ in ("cross", "deep")
        )
        self.output = OutputLayer(3 * dim)

    def logits(self, x0: Tensor) -> Tensor:
        bridge = self.fields(x0).flatten(1)  # (B, D)
        first: Tensor | None = None
        for number, (cross, deep) in enumerate(zip(self.cross, self.deep, strict=True)):
            crossed, hidden = self.gates[2 * number](bridge), self.gates[2 * number + 1](bridge)  # (B, D) each
            first = crossed if first is None else first
            crossed, hidden = cross(first, crossed), deep(hidden)
            bridge = crossed * hidden
        logits: Tensor = self.output(torch.cat([crossed, hidden, bridge], dim=-1))  # (B,)
        return logits

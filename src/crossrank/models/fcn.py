"""FCN ("DCNv3"): a cross network whose order doubles beside one whose order grows by one; and each of them alone."""

from __future__ import annotations

import dataclasses
from typing import Literal

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model, SideBySide, Terms
from crossrank.models.settings import ModelSettings, check_share
from crossrank.nn import CrossNetwork, MaskedCrossLayer, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedCrossSettings:
    num_layers: int = setting(3, "cross layers on top of each other")
    dropout: float = setting(0.0, "share of each cross layer's outputs set to zero in training")

    def __post_init__(self) -> None:
        check_share("the dropout of cross layers", self.dropout)

    def network(self, layout: InputLayout, source: Literal["x0", "previous"]) -> CrossNetwork:
        widths = [slot.width for slot in layout.slots]
        options = {"widths": widths, "source": source, "dropout": self.dropout}
        return CrossNetwork(layout.input_dim, num_layers=self.num_layers, layer=MaskedCrossLayer, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ECNSettings(ModelSettings):
    name: str = setting("ecn", "which model")
    cross: MaskedCrossSettings = setting(MaskedCrossSettings(), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LCNSettings(ModelSettings):
    name: str = setting("lcn", "which model")
    cross: MaskedCrossSettings = setting(MaskedCrossSettings(num_layers=4), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FCNSettings(ModelSettings):
    name: str = setting("fcn", "which model")
    exponential: MaskedCrossSettings = setting(MaskedCrossSettings(), "")
    linear: MaskedCrossSettings = setting(MaskedCrossSettings(num_layers=4), "")


class ECN(Model):
    """``logit = wᵀ x_L + b`` with ``x⁺ = x ⊙ ([H; H ⊙ relu(LN(H))] + b) + x``, ``H = W x`` (Li et al. 2024).

    The exponential half of :class:`FCN`: L layers reach crosses of degree 2^L. No deep network; see
    :class:`~crossrank.nn.MaskedCrossLayer`.

    Shape: features of B rows -> (B,).
    Cost: per row and layer D² / 2 + 3 D / 2 multiply-adds where all widths are even.
    Limits: all kernels and biases zero, a linear model in x0. Takes any embedding widths.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: ECNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.cross = settings.cross.network(layout, "previous")
        self.output = OutputLayer(layout.input_dim)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.cross(x0))  # (B,)
        return logits


class LCN(Model):
    """``logit = wᵀ x_L + b`` with ``x⁺ = x0 ⊙ ([H; H ⊙ relu(LN(H))] + b) + x``, ``H = W x`` (Li et al. 2024).

    The linear half of :class:`FCN`: L layers reach crosses of degree L + 1. No deep network; see
    :class:`~crossrank.nn.MaskedCrossLayer`.

    Shape: features of B rows -> (B,).
    Cost: per row and layer D² / 2 + 3 D / 2 multiply-adds where all widths are even.
    Limits: all kernels and biases zero, a linear model in x0; one layer, ECN. Takes any embedding widths.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: LCNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.cross = settings.cross.network(layout, "x0")
        self.output = OutputLayer(layout.input_dim)

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.cross(x0))  # (B,)
        return logits

    def terms(self) -> Terms:
        return Terms(self.output.bias[0], [(self.cross, self.output.weight[0])])


class FCN(SideBySide):
    """``logit = (y_e + y_l) / 2``, the mean of :class:`ECN` and :class:`LCN` on the same x0 (Li et al. 2024).

    | here            | paper                                              |
    | --------------- | -------------------------------------------------- |
    | ``exponential`` | ECN, the deep crosses, y_d                         |
    | ``linear_cross``| LCN, the shallow crosses, y_s; the settings linear |
    | ``output``      | [w_e; w_l] / 2 and b                               |

    Each half is a path with a head of its own. The paper's loss ``ℓ + w_d ℓ_d + w_s ℓ_s``, ``w_i = max(0, ℓ_i - ℓ)``,
    is ``training.heads = "weighted"``; the default is ℓ alone, the loss of the logit.

    Shape: features of B rows -> (B,).
    Cost: per row and layer of either half D² / 2 + 3 D / 2 multiply-adds where all widths are even.
    Limits: w_l zero, ECN; w_e zero, LCN. Takes any embedding widths.

    Choices: the halves share one bias b, one table, and no batch norm; see :class:`~crossrank.nn.MaskedCrossLayer`.
    """

    def __init__(self, layout: InputLayout, settings: FCNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.exponential = settings.exponential.network(layout, "previous")
        self.linear_cross = settings.linear.network(layout, "x0")
        self.output = OutputLayer(2 * layout.input_dim)

    def paths(self, x0: Tensor) -> list[Tensor]:
        return [self.exponential(x0), self.linear_cross(x0)]  # (B, D) each

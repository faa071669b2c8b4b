"""AFN: crosses of learned order, alone or beside a deep network."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Model, SideBySide
from crossrank.models.fields import FieldStack
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import LogarithmicLayer, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AFNSettings(ModelSettings):
    name: str = setting("afn", "which model")
    num_neurons: int = setting(100, "logarithmic neurons, each a cross of all fields")
    hidden: DeepSettings = setting(DeepSettings(), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AFNPlusSettings(AFNSettings):
    name: str = setting("afn-plus", "which model")
    deep: DeepSettings = setting(DeepSettings(), "")


class AFN(Model):
    """``logit = wᵀ hidden([y_1; …; y_N]) + b``, y_j products of learned powers of the fields (Cheng et al. 2020).

    Shape: features of B rows -> (B,).
    Cost: per row F e N multiply-adds for N logarithmic neurons over F fields, plus those of a deep network of N e
    inputs.
    Limits: without hidden layers a weighted sum of the crosses. All embedded features have one width.

    Choices: no batch norm, positive fields by magnitude, 100 neurons where the original tried up to 1500; see
    :class:`~crossrank.nn.LogarithmicLayer`.
    """

    takes_classes = True

    def __init__(self, layout: InputLayout, settings: AFNSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.fields = FieldStack(layout, needed_by="AFN")
        self.logarithmic = LogarithmicLayer(self.fields.num_fields, num_neurons=settings.num_neurons)
        self.hidden = settings.hidden.network(self.fields.width * settings.num_neurons)
        self.output = OutputLayer(self.hidden.output_dim)

    def crossed(self, x0: Tensor) -> Tensor:
        """(B, D) -> (B, H)"""
        crosses = self.logarithmic(self.fields(x0))  # (B, e, N)
        hidden: Tensor = self.hidden(crosses.flatten(1))
        return hidden

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.output(self.crossed(x0))  # (B,)
        return logits


class AFNPlus(SideBySide, AFN):
    """``logit = w_crossᵀ hidden([y_1; …; y_N]) + w_deepᵀ deep(x0) + b``: AFN beside a deep network.

    ``output`` holds [w_cross; w_deep] and b.

    Shape: features of B rows -> (B,).
    Cost: per row AFN's multiply-adds and the deep network's.
    Limits: w_deep zero, AFN. All embedded features have one width.

    Choices: both parts read one table and are trained together, as in every model here; the original gives each its
    own table and adds their logits with two learned weights.
    """

    def __init__(self, layout: InputLayout, settings: AFNPlusSettings) -> None:
        super().__init__(layout, settings)
        self.deep = settings.deep.network(layout.input_dim)
        self.output = OutputLayer(self.hidden.output_dim + self.deep.output_dim)

    def paths(self, x0: Tensor) -> list[Tensor]:
        return [self.crossed(x0), self.deep(x0)]  # (B, H), (B, H')

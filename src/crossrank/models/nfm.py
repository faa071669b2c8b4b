"""NFM: all products of two fields, summed, then a deep network."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Terms
from crossrank.models.fields import BesideLinear, FieldStack, LinearTerm
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import BiInteraction, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class NFMSettings(ModelSettings):
    name: str = setting("nfm", "which model")
    deep: DeepSettings = setting(DeepSettings(), "")


class NFM(BesideLinear):
    """``logit = Σ_i w_i x_i + hᵀ deep(Σ_{i<j} x_i v_i ⊙ x_j v_j) + b`` (He and Chua 2017, Eqs. 2 to 7).

    Shape: features of B rows -> (B,).
    Cost: per row (F + 1) e multiply-adds for the products of F fields, plus those of a deep network of e inputs.
    Limits: without deep layers and with h = 1, a factorization machine (the paper's NFM-0); so an empty ``deep.sizes``
    is the interaction alone. All embedded features have one width.

    Choices: a number is a field x_j v_j, as in the paper; DeepCTR lets numbers skip the products. No batch norm and no
    dropout right behind the products, where the original has both: a row's logit is a function of the row, and
    ``deep.dropout`` acts behind each deep layer as in every model here.
    """

    def __init__(self, layout: InputLayout, settings: NFMSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.linear = LinearTerm(layout)
        self.fields = FieldStack(layout, needed_by="NFM")
        self.interaction = BiInteraction()
        self.deep = settings.deep.network(self.fields.width)
        self.output = OutputLayer(self.deep.output_dim)

    def logits(self, x0: Tensor) -> Tensor:
        pooled = self.interaction(self.fields(x0))  # (B, e)
        logits: Tensor = self.output(self.deep(pooled))  # (B,)
        return logits

    def terms(self) -> Terms:
        quadratic = (lambda x0: self.interaction(self.fields(x0))), self.deep, self.output.weight[0]
        return Terms(self.output.bias[0], quadratic=quadratic, linear=self.linear.each)

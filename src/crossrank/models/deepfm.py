"""DeepFM: a factorization machine beside a deep network, on the same embeddings."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from crossrank.config import setting
from crossrank.models.base import Terms, alone, path_logits, with_first
from crossrank.models.fields import BesideLinear, FieldStack, LinearTerm
from crossrank.models.settings import DeepSettings, ModelSettings
from crossrank.nn import FactorizationMachine, OutputLayer
from crossrank.schema import InputLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepFMSettings(ModelSettings):
    name: str = setting("deepfm", "which model")
    deep: DeepSettings = setting(DeepSettings(), "")


class DeepFM(BesideLinear):
    """``logit = y_FM + y_DNN`` (Guo et al. 2017, Eq. 1), both from one table of vectors.

    | ``y_FM = Σ_i w_i x_i + Σ_{i<j} ⟨v_i, v_j⟩ x_i x_j``  (Eq. 2)
    | ``y_DNN = wᵀ deep(x0) + b``  (Eq. 4)

    Shape: features of B rows -> (B,).
    Cost: per row (F + 1) e multiply-adds for the products of F fields, plus those of the deep network.
    Limits: a deep network of zero weights, FM. All embedded features have one width.

    Choices: a number is a field x_j v_j of the factorization machine, as Rendle has it and DeepFM's Eq. 2 repeats it;
    DeepCTR leaves numbers out there. The deep network reads the numbers themselves, as in every model here.
    """

    def __init__(self, layout: InputLayout, settings: DeepFMSettings) -> None:
        super().__init__(layout, embedding_dropout=settings.embedding.dropout)
        self.linear = LinearTerm(layout)
        self.fields = FieldStack(layout, needed_by="DeepFM")
        self.interaction = FactorizationMachine()
        self.deep = settings.deep.network(layout.input_dim)
        self.output = OutputLayer(self.deep.output_dim)

    def head_logits(self, x0: Tensor) -> Tensor:
        return with_first(path_logits(self.output, [x0[:, :0], self.deep(x0)]), self.interaction(self.fields(x0)))

    def logits(self, x0: Tensor) -> Tensor:
        logits: Tensor = self.interaction(self.fields(x0)) + self.output(self.deep(x0))  # (B,)
        return logits

    def terms(self) -> Terms:
        pairs = alone(lambda x0: self.interaction(self.fields(x0)), self.output.bias)
        return Terms(
            self.output.bias[0], quadratic=pairs, linear=self.linear.each, deep=(self.deep, self.output.weight[0])
        )
